/** The key Escape: of what lies over the page the top-most closes, alone. Where nothing does, what runs ends. */
import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Returns false where there is nothing to end. */
type Act = () => boolean | void;

/** What opened over the page, in the order in which it did. */
const layers: Act[] = [];
/** What ends that which runs, the innermost last. */
const ends: Act[] = [];

/** While `isOpen`, have Escape call `close`, unless something has opened since. */
export function useEscape(close: Act, isOpen: boolean): void {
  useAmong(layers, close, isOpen);
}

/** Show a dialog over the page as long as it is drawn. Escape closes it and calls `close`, which has to take it away. */
export function useDialog(close: () => void): RefObject<HTMLDialogElement | null> {
  const dialog = useRef<HTMLDialogElement>(null);
  // With the picture, not after it: who is quick types into it by then.
  useLayoutEffect(() => dialog.current?.showModal(), []);
  useEscape(() => {
    // The dialog gives the focus back as it closes, but tells of it later than the next key may come.
    dialog.current?.close();
    close();
  }, true);
  return dialog;
}

/** Have Escape call `end` where nothing lies over the page. */
export function useEscapeToEnd(end: Act): void {
  useAmong(ends, end, true);
}

function useAmong(acts: Act[], act: Act, isIn: boolean): void {
  const latest = useRef(act);
  latest.current = act;
  // With the picture, not after it: who is quick presses the key by then.
  useLayoutEffect(() => {
    if (!isIn) return undefined;
    const mine = (): boolean | void => latest.current();
    acts.push(mine);
    return () => { acts.splice(acts.indexOf(mine), 1); };
  }, [isIn]);
}

/** Do what the key asks for. */
export function escape(event: KeyboardEvent): void {
  if (event.isComposing || event.defaultPrevented) return;
  const top = layers.at(-1);
  if (top !== undefined) {
    // Or the browser would close the dialog below it, too.
    event.preventDefault();
    top();
  } else if (!isField(event.target)) ends.findLast((end) => end() !== false);
  // A search field clears itself by the key before it is left.
  else if (!(event.target instanceof HTMLInputElement && event.target.type === "search" && event.target.value !== "")) event.target.blur();
}

/** Whether the key belongs to a field: it ends nothing there that the person may be waiting for. */
function isField(target: EventTarget | null): target is HTMLElement {
  return target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]");
}
