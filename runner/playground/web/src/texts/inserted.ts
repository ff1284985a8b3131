/** Elements within a sentence: the order of both is the language's. */
import type { ComponentChildren } from "preact";

/** Return a sentence with elements in place of its `{names}`. */
export function inserted(sentence: string, parts: Record<string, ComponentChildren>): ComponentChildren[] {
  return sentence.split(/\{(\w+)\}/).map((piece, at) => (at % 2 === 0 ? piece : (parts[piece] ?? "")));
}
