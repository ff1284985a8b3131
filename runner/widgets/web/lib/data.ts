/** Turn what a tool returned into what a page shows: lenient about shape, strict about size. */

import { isDict, own } from "../bridge/read.ts";
import type { Dict } from "../bridge/types.ts";

/** The data cannot be shown; the message is for the reader. */
export class BadData extends Error {
  override readonly name = "BadData";
}

export const MAX_TEXT = 4_000;

export function clip(value: string, max = MAX_TEXT): string {
  if (value.length <= max) return value;
  // Not between the halves of one character.
  const end = /[\uD800-\uDBFF]/.test(value.charAt(max - 1)) ? max - 1 : max;
  return `${value.slice(0, end)}…`;
}

/** A text, or a number or truth value as text; empty for anything else. */
export function words(value: unknown, max = MAX_TEXT): string {
  if (typeof value === "string") return clip(value.trim(), max);
  if (typeof value === "number" || typeof value === "boolean" || typeof value === "bigint") return String(value);
  return "";
}

/** The first of several names under which something was given as a text. */
export function field(record: Dict, names: readonly string[], max = MAX_TEXT): string {
  for (const name of names) {
    const found = words(own(record, name), max);
    if (found !== "") return found;
  }
  return "";
}

/** The first of several names that holds a list. */
export function listAt(record: unknown, names: readonly string[]): unknown[] | undefined {
  for (const name of names) {
    const found = own(record, name);
    if (Array.isArray(found)) return found;
  }
  return undefined;
}

export function dicts(list: readonly unknown[]): Dict[] {
  return list.filter(isDict);
}

/** What the page got, as an object; a bare list stands under the given name. */
export function asRecord(output: unknown, listName: string): Dict {
  if (isDict(output)) return output;
  if (Array.isArray(output)) return { [listName]: output };
  throw new BadData(`An object was expected; the tool returned ${kindOf(output)}.`);
}

/** Refuse what is there but no list; nothing at all is an empty list. */
export function listOrNone(record: Dict, names: readonly string[]): unknown[] {
  const found = listAt(record, names);
  if (found !== undefined) return found;
  const wrong = names.find((name) => own(record, name) !== undefined && own(record, name) !== null);
  if (wrong === undefined) return [];
  throw new BadData(`“${wrong}” should be a list; the tool returned ${kindOf(own(record, wrong))}.`);
}

export function kindOf(value: unknown): string {
  if (value === null || value === undefined) return "nothing";
  if (Array.isArray(value)) return "a list";
  if (typeof value === "string") return "a text";
  if (typeof value === "boolean") return "a truth value";
  return typeof value === "number" ? "a number" : "an object";
}

/** An address an image may come from; the host's policy decides whether it loads. */
export function imageAddress(value: unknown): string | undefined {
  if (typeof value !== "string") return undefined;
  const trimmed = value.trim();
  if (/^data:image\/(png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=\s]+$/.test(trimmed)) return trimmed;
  try {
    const url = new URL(trimmed);
    return url.protocol === "https:" && url.username === "" ? url.href : undefined;
  } catch {
    return undefined;
  }
}
