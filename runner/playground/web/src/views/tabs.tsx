/** Tabs as the ARIA practices describe them: arrow keys move, only the chosen one is in the order of focus. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

export interface Tab {
  id: string;
  title: ComponentChildren;
  body: () => JSX.Element | null;
}

export function Tabs({ tabs, chosen, choose, label }: {
  tabs: Tab[];
  chosen: string;
  choose: (id: string) => void;
  label: string;
}): JSX.Element {
  const base = useId();
  const list = useRef<HTMLDivElement>(null);
  const shown = tabs.find((tab) => tab.id === chosen) ?? tabs[0];
  useEffect(() => {
    // Only the list itself: the page stays where it is.
    const row = list.current;
    const tab = row?.querySelector<HTMLElement>("[aria-selected=true]");
    if (row === null || tab === null || tab === undefined) return;
    const [one, all] = [tab.getBoundingClientRect(), row.getBoundingClientRect()];
    if (one.left < all.left || one.right > all.right) row.scrollLeft += one.left - all.left - row.clientWidth / 3;
  }, [shown?.id]);
  const move = (event: KeyboardEvent): void => {
    const at = tabs.findIndex((tab) => tab.id === shown?.id);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length];
    if (next === undefined) return;
    choose(next.id);
    (list.current?.querySelector(`[data-tab="${CSS.escape(next.id)}"]`) as HTMLElement | null)?.focus();
  };
  return (
    <div>
      <div role="tablist" aria-label={label} onKeyDown={move} ref={list}>
        {tabs.map((tab, index) => (
          <button key={tab.id} type="button" role="tab" id={`${base}-${index}`} data-tab={tab.id} aria-selected={tab.id === shown?.id}
            aria-controls={`${base}-panel`} tabIndex={tab.id === shown?.id ? 0 : -1} onClick={() => choose(tab.id)}>{tab.title}</button>
        ))}
      </div>
      <div role="tabpanel" id={`${base}-panel`} aria-labelledby={shown === undefined ? undefined : `${base}-${tabs.indexOf(shown)}`} tabIndex={0}>{shown?.body()}</div>
    </div>
  );
}
