/** Ctrl+K: everything that has an address. Keys: `/` searches, Ctrl+Enter runs, Esc closes, or cancels outside of fields. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { files, filesLoaded, loadFiles } from "../model/files";
import { info, leaves } from "../model/info";
import { loadPrompts, prompts } from "../model/prompts";
import { plain } from "../model/plain";
import { loadResources, resources, templates } from "../model/resources";
import { to } from "../model/route";
import { cancel, runs } from "../model/runs";
import { open, saved } from "../model/saved";
import { theme } from "../model/theme";
import { loadTools, tools } from "../model/tools";
import { ago, count } from "../texts/numbers";
import { escape, useDialog, useEscapeToEnd } from "./escape";
import { inSight } from "./sight";

export const paletteOpen = signal(false);

interface Choice {
  title: string;
  kind: string;
  /** Where it leads, or what it does. */
  does: string | (() => void);
}

export function usePalette(): void {
  useEscapeToEnd(() => {
    const running = runs.value.find((run) => run.value.status === "running");
    if (running === undefined) return false;
    cancel(running.value.id);
    return true;
  });
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const typing = event.target instanceof HTMLElement && event.target.matches("input, textarea, select, [contenteditable]");
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        paletteOpen.value = !paletteOpen.value;
      } else if (event.key === "/" && !typing) {
        const search = document.getElementById("search");
        if (search !== null) {
          event.preventDefault();
          search.focus();
        }
      } else if (event.key === "Escape") escape(event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

export function Palette({ views }: { views: { id: string; title: string }[] }): JSX.Element {
  const asked = useSignal("");
  const at = useSignal(0);
  useEffect(() => {
    // Listed when somebody looks at them, or looks for them here.
    if (prompts.value.length === 0) void loadPrompts();
    if (resources.value.length === 0) void loadResources();
    if (!filesLoaded.value) void loadFiles();
  }, []);
  const close = (): void => {
    paletteOpen.value = false;
  };
  const dialog = useDialog(close);
  const take = (choice: Choice): void => {
    // While it is there, so that the focus goes back to where it was.
    dialog.current?.close();
    close();
    if (typeof choice.does === "string") location.hash = choice.does.slice(1);
    else choice.does();
  };
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = choices(views).filter((each) => words.every((word) => `${each.title} ${each.kind}`.toLowerCase().includes(word)));
  const listed = found.slice(0, MOST_LISTED);
  const chosen = listed[Math.min(at.value, listed.length - 1)];
  const pressed = (event: KeyboardEvent): void => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      at.value = Math.max(0, Math.min(listed.length - 1, at.value + step));
    } else if (event.key === "Enter" && chosen !== undefined) {
      event.preventDefault();
      take(chosen);
    }
  };
  return (
    <dialog ref={dialog} class="palette" aria-label="Go to" onClose={close} onClick={(event) => { if (event.target === dialog.current) close(); }}>
      <input class="input" role="combobox" aria-expanded="true" aria-controls="choices" aria-activedescendant={chosen === undefined ? undefined : `choice-${listed.indexOf(chosen)}`}
        aria-label="Go to a tool, a view, a call or anything else" placeholder="Go to…" autofocus value={asked.value}
        onInput={(event) => { asked.value = event.currentTarget.value; at.value = 0; }} onKeyDown={pressed} />
      <ul id="choices" role="listbox" aria-label="Choices" class="tools">
        {listed.map((each, index) => (
          <li key={`${index} ${each.title}`} id={`choice-${index}`} role="option" aria-selected={each === chosen} ref={each === chosen ? inSight : null}
            onPointerMove={(event) => { if (event.movementX !== 0 || event.movementY !== 0) at.value = index; }} onClick={() => take(each)}>
            <span class="mono grow">{plain(each.title)}</span><span class="soft small">{each.kind}</span>
          </li>
        ))}
      </ul>
      <p class="soft small" role="status">{found.length === 0 ? "No matches" : found.length > listed.length ? `${count(listed.length)} of ${count(found.length)}; more words find the others.` : ""}</p>
    </dialog>
  );
}

const MOST_LISTED = 50;

function choices(views: { id: string; title: string }[]): Choice[] {
  const running = runs.value.find((run) => run.value.status === "running");
  return [
    ...(running === undefined ? [] : [{ title: `Cancel ${running.value.tool}`, kind: "action", does: () => cancel(running.value.id) }]),
    ...tools.value.map((tool) => ({ title: tool.name, kind: "tool", does: to("call", tool.name) })),
    ...views.map((view) => ({ title: view.title, kind: "view", does: to(view.id) })),
    ...prompts.value.map((prompt) => ({ title: prompt.name, kind: "prompt", does: to("prompts", prompt.name) })),
    ...resources.value.map((each) => ({ title: each.uri, kind: "resource", does: to("resources", each.uri) })),
    // Filled in where they are listed.
    ...templates.value.map((each) => ({ title: each.uriTemplate, kind: "resource template", does: to("resources") })),
    ...saved.value.map((each) => ({ title: each.name, kind: "saved request", does: () => open(each) })),
    ...runs.value.map((run) => ({ title: run.value.tool, kind: `call ${ago(new Date(run.value.began).toISOString())}`, does: to("history", run.value.id) })),
    ...(["light", "dark", "system"] as const).filter((id) => id !== theme.value).map((id) => ({ title: id === "system" ? "As the system has it" : id === "light" ? "Light" : "Dark", kind: "theme", does: () => { theme.value = id; } })),
    ...files.value.map((each) => ({ title: each.filename, kind: "file", does: to("show", each.uri, { name: each.filename }) })),
    { title: "Refresh the tool list", kind: "action", does: () => void loadTools() },
    ...(info.value === null ? [] : [{ title: "Log out", kind: "action", does: () => { leaves.value = true; } }]),
  ];
}
