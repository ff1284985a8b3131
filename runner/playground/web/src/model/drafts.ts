/** What a person has written and not sent, as in answer to a question: it is there again after a look at another view. */
import { signal, type Signal } from "@preact/signals";

const kept = new Map<string, Map<string, Signal<unknown>>>();

/** A part of a draft, as it was left. Drafts are of this page: a reload forgets them, as it forgets the questions. */
export function drafted<T>(draft: string, part: string, first: () => T): Signal<T> {
  const parts = kept.get(draft) ?? new Map<string, Signal<unknown>>();
  kept.set(draft, parts);
  const held = (parts.get(part) as Signal<T> | undefined) ?? signal(first());
  parts.set(part, held);
  return held;
}

export function forget(draft: string): void {
  kept.delete(draft);
}
