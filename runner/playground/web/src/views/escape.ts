/** The key Escape: of what lies over the page the top-most closes, alone. Where nothing does, what runs ends. */
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

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
  useEffect(() => dialog.current?.showModal(), []);
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
  } else if (isAnswer(event.target)) event.target.blur();
  else if (!belongsToField(event.target)) ends.findLast((end) => end() !== false);
}

/** Whether something is written there in answer to a question: the key leaves it, and ends nothing. */
function isAnswer(target: EventTarget | null): target is HTMLTextAreaElement | HTMLInputElement {
  const isText = target instanceof HTMLTextAreaElement || target instanceof HTMLInputElement;
  return isText && target.value !== "" && target.closest(".question") !== null;
}

/** Whether the key clears or closes something of the field that has the focus. */
function belongsToField(target: EventTarget | null): boolean {
  if (target instanceof HTMLInputElement && target.type === "search") return target.value !== "";
  return target instanceof HTMLElement && target.matches("select, input[list]");
}
