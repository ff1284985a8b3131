/** Ctrl+K: everything that has an address, and what the buttons at the top do. Keys: `/` searches, Ctrl+Enter runs, Esc closes, or cancels outside of fields. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { here } from "../model/connections";
import { ERAS } from "../model/eras";
import { files, filesLoaded, loadFiles } from "../model/files";
import { info, leaves } from "../model/info";
import { loadPrompts, prompts } from "../model/prompts";
import { openRequest } from "../model/opening";
import { plain } from "../model/plain";
import { loadResources, resources, templates } from "../model/resources";
import { press, type Pressed } from "../model/press";
import { go, route, to } from "../model/route";
import { cancel, picked, runs } from "../model/runs";
import { saved } from "../model/saved";
import { theme, type Theme } from "../model/theme";
import { loadTools, tools } from "../model/tools";
import { ago } from "../texts/numbers";
import { escape, useDialog, useEscapeToEnd } from "./escape";
import { T } from "../texts/texts";

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

export function Palette({ views }: { views: { id: string; title: string }[] }): JSX.Element | null {
  return paletteOpen.value ? <Open views={views} /> : null;
}

function Open({ views }: { views: { id: string; title: string }[] }): JSX.Element {
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
    <dialog ref={dialog} class="palette" aria-label={T.palette.title} onClose={close} onClick={(event) => { if (event.target === dialog.current) close(); }}>
      <input class="input" role="combobox" aria-expanded="true" aria-controls="choices" aria-activedescendant={chosen === undefined ? undefined : `choice-${listed.indexOf(chosen)}`}
        aria-label={T.palette.label} placeholder={T.palette.placeholder} autofocus value={asked.value}
        onInput={(event) => { asked.value = event.currentTarget.value; at.value = 0; }} onKeyDown={pressed} />
      <ul id="choices" role="listbox" aria-label={T.palette.choices} class="tools">
        {listed.map((each, index) => (
          <li key={`${index} ${each.title}`} id={`choice-${index}`} role="option" aria-selected={each === chosen} ref={each === chosen ? inSight : null}
            onPointerMove={(event) => { if (event.movementX !== 0 || event.movementY !== 0) at.value = index; }} onClick={() => take(each)}>
            <span class="mono grow">{plain(each.title)}</span><span class="soft small">{each.kind}</span>
          </li>
        ))}
      </ul>
      <p class="soft small" role="status">{found.length === 0 ? T.palette.nothing : found.length > listed.length ? T.palette.listed(listed.length, found.length) : ""}</p>
    </dialog>
  );
}

const MOST_LISTED = 50;

function inSight(choice: HTMLElement | null): void {
  choice?.scrollIntoView({ block: "nearest" });
}

const THEMES: Theme[] = ["light", "dark", "system"];

/** What buttons of the views do, each where it can be pressed. */
function actions(): Choice[] {
  const { kinds } = T.palette;
  const connection = here.value;
  const inPrompt = route.value.view === "prompts" && route.value.rest !== "";
  const newest = runs.value[0]?.value;
  const button = (title: string, kind: string, which: Pressed, view: string, rest = ""): Choice => ({ title, kind, does: () => press(which, view, rest) });
  const at = inPrompt ? "prompts" : "call";
  return [
    ...(tools.value.length === 0 ? [] : [button(T.call.run, kinds.action, "run", "call"), button(T.call.reset, kinds.action, "reset", "call")]),
    ...(tools.value.length === 0 && !inPrompt ? [] : [button(T.call.copyLink, kinds.action, "copy-link", at), button(T.saved.saveAs, kinds.action, "save", at)]),
    button(T.form.upload, kinds.action, "upload", "files"),
    button(T.session.ping, kinds.action, "ping", "session"),
    ...ERAS.filter((era) => era !== connection.era.value).map((era) => ({ title: T.session.speak(era), kind: kinds.era, does: () => connection.speak(era) })),
    button(T.messages.compose, kinds.action, "compose", "messages"),
    button(T.palette.clearMessages, kinds.action, "clear", "messages"),
    ...(saved.value.length === 0 ? [] : [
      button(`${T.page.titles.saved}: ${T.saved.file}`, kinds.exported, "saved-file", "saved"),
      button(`${T.page.titles.saved}: ${T.saved.pytest}`, kinds.exported, "saved-pytest", "saved"),
      button(`${T.page.titles.saved}: ${T.saved.runAll(saved.value.length)}`, kinds.action, "saved-run", "saved"),
    ]),
    ...(newest === undefined ? [] : [
      button(T.palette.exportCall(newest.tool), kinds.exported, "export", "history", newest.id),
      button(T.palette.forgetCalls, kinds.action, "forget", "history"),
    ]),
    ...(runs.value.length < 2 ? [] : [{ title: T.palette.compare, kind: kinds.action, does: () => { go("history"); picked.value = runs.value.slice(0, 2).map((run) => run.value.id); } }]),
  ];
}

function choices(views: { id: string; title: string }[]): Choice[] {
  const running = runs.value.find((run) => run.value.status === "running");
  const { kinds } = T.palette;
  return [
    ...(running === undefined ? [] : [{ title: T.palette.cancel(running.value.tool), kind: kinds.action, does: () => cancel(running.value.id) }]),
    ...tools.value.map((tool) => ({ title: tool.name, kind: kinds.tool, does: to("call", tool.name) })),
    ...views.map((view) => ({ title: view.title, kind: kinds.view, does: to(view.id) })),
    ...prompts.value.map((prompt) => ({ title: prompt.name, kind: kinds.prompt, does: to("prompts", prompt.name) })),
    ...resources.value.map((each) => ({ title: each.uri, kind: kinds.resource, does: to("resources", each.uri) })),
    // Filled in where they are listed.
    ...templates.value.map((each) => ({ title: each.uriTemplate, kind: kinds.template, does: to("resources") })),
    ...saved.value.map((each) => ({ title: each.name, kind: kinds.saved, does: () => openRequest(each) })),
    ...runs.value.map((run) => ({ title: run.value.tool, kind: T.palette.call(ago(new Date(run.value.began).toISOString())), does: to("history", run.value.id) })),
    ...THEMES.filter((id) => id !== theme.value).map((id) => ({ title: T.palette.themes[id], kind: kinds.theme, does: () => { theme.value = id; } })),
    ...files.value.map((each) => ({ title: each.filename, kind: kinds.file, does: to("show", each.uri, { name: each.filename }) })),
    ...actions(),
    { title: T.palette.listAnew, kind: kinds.action, does: () => void loadTools() },
    ...(info.value === null ? [] : [{ title: T.page.logOut, kind: kinds.action, does: () => { leaves.value = true; } }]),
  ];
}
