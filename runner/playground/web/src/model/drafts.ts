/** Text that a person has written and not sent, such as an answer: it is there again after a look at another view, not after a reload. */
import { signal, type Signal } from "@preact/signals";

const kept = new Map<string, Signal<unknown>>();

/** A part of a draft, as it was left. */
export function drafted<T>(draft: string, part: string, first: () => T): Signal<T> {
  const key = `${draft}\n${part}`;
  const held = (kept.get(key) as Signal<T> | undefined) ?? signal(first());
  kept.set(key, held);
  return held;
}

export function forget(draft: string): void {
  for (const key of kept.keys()) if (key.startsWith(`${draft}\n`)) kept.delete(key);
}
