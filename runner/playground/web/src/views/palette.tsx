/** Ctrl+K: go to a tool, a view or a past call. Keys: `/` searches, Ctrl+Enter runs, Esc closes and cancels. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { to } from "../model/route";
import { cancel, runs } from "../model/runs";
import { tools } from "../model/tools";
import { ago } from "../model/words";

export const paletteOpen = signal(false);

interface Choice {
  title: string;
  kind: string;
  href: string;
}

export function usePalette(): void {
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
      } else if (event.key === "Escape" && !paletteOpen.value && !typing) {
        const running = runs.value.find((run) => run.value.status === "running");
        if (running !== undefined) cancel(running.value.id);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

export function Palette({ views }: { views: { id: string; title: string }[] }): JSX.Element | null {
  return paletteOpen.value ? <Open views={views} /> : null;
}

function Open({ views }: { views: { id: string; title: string }[] }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const asked = useSignal("");
  const at = useSignal(0);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const close = (): void => {
    paletteOpen.value = false;
  };
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = choices(views).filter((each) => words.every((word) => `${each.title} ${each.kind}`.toLowerCase().includes(word))).slice(0, 50);
  const chosen = found[Math.min(at.value, found.length - 1)];
  const pressed = (event: KeyboardEvent): void => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      at.value = Math.max(0, Math.min(found.length - 1, at.value + step));
    } else if (event.key === "Enter" && chosen !== undefined) {
      event.preventDefault();
      location.hash = chosen.href.slice(1);
      close();
    }
  };
  return (
    <dialog ref={dialog} class="palette" aria-label="Go to" onClose={close} onClick={(event) => { if (event.target === dialog.current) close(); }}>
      <input class="input" role="combobox" aria-expanded="true" aria-controls="choices" aria-activedescendant={chosen === undefined ? undefined : `choice-${found.indexOf(chosen)}`}
        aria-label="Go to a tool, a view or a call" placeholder="Go to…" autofocus value={asked.value}
        onInput={(event) => { asked.value = event.currentTarget.value; at.value = 0; }} onKeyDown={pressed} />
      <ul id="choices" role="listbox" aria-label="Choices" class="tools">
        {found.map((each, index) => (
          <li key={each.href} id={`choice-${index}`} role="option" aria-selected={each === chosen} onClick={() => { location.hash = each.href.slice(1); close(); }}>
            <span class="mono grow">{each.title}</span><span class="soft small">{each.kind}</span>
          </li>
        ))}
        {found.length === 0 && <li class="soft">Nothing has these words.</li>}
      </ul>
    </dialog>
  );
}

function choices(views: { id: string; title: string }[]): Choice[] {
  return [
    ...tools.value.map((tool) => ({ title: tool.name, kind: "tool", href: to("call", tool.name) })),
    ...views.map((view) => ({ title: view.title, kind: "view", href: to(view.id) })),
    ...runs.value.slice(0, 30).map((run) => ({ title: run.value.tool, kind: `call ${ago(new Date(run.value.began).toISOString())}`, href: to("history", run.value.id) })),
  ];
}
