/**
 * What a widget remembers of itself. The model sees one part, the private part never leaves the browser.
 *
 * A host of the `window.openai` kind keeps state itself. For others it is kept in the tab, under the call it
 * belongs to, so that the same widget for the same result finds it again, and no other one does.
 */

import { isDict, own } from "./read.ts";
import type { Dict } from "./types.ts";

const MAX_CHARS = 16_384;
const PARTS = ["modelContent", "privateContent", "imageIds"];

/** Refuse a state that is not JSON, or too large to keep. */
export function checkState(state: unknown): string {
  const json = JSON.stringify(state ?? null) as string | undefined;
  if (json === undefined) throw new TypeError("widget state must be JSON");
  if (json.length > MAX_CHARS) {
    throw new RangeError(`widget state has ${json.length} characters of JSON; at most ${MAX_CHARS} are kept`);
  }
  return json;
}

/** The part of a state that the model may read, as parameters of `ui/update-model-context`. */
export function modelContext(state: unknown, structured: boolean): Dict {
  const inParts = isDict(state) && PARTS.some((part) => own(state, part) !== undefined);
  const visible = inParts ? own(state, "modelContent") : state;
  if (visible === undefined || visible === null) return { content: [] };
  if (structured && isDict(visible)) return { structuredContent: visible };
  return { content: [{ type: "text", text: typeof visible === "string" ? visible : JSON.stringify(visible) }] };
}

/** The state kept in this tab, under the name of one call. */
export class Kept {
  readonly #page: string;
  #call = "";
  readonly #memory = new Map<string, string>();

  constructor(page: string) {
    this.#page = page;
  }

  /** Say which call the state belongs to from now on: the host's id of it, or what it returned. */
  belongsTo(call: unknown): void {
    this.#call = digest(JSON.stringify(call ?? null) ?? "");
  }

  read(): unknown {
    try {
      const json = this.#memory.get(this.#key) ?? sessionStorage.getItem(this.#key);
      return json === null ? null : (JSON.parse(json) as unknown);
    } catch {
      return null; // an opaque origin has no storage
    }
  }

  write(json: string): void {
    this.#memory.set(this.#key, json);
    try {
      sessionStorage.setItem(this.#key, json);
    } catch {
      // Full, or an opaque origin: the state then lasts as long as the page.
    }
  }

  get #key(): string {
    return `widget-state:${this.#page}:${this.#call}`;
  }
}

/** FNV-1a: tells calls apart; nothing depends on it being hard to invert. */
function digest(source: string): string {
  let hash = 0x811c9dc5;
  for (let index = 0; index < source.length; index++) {
    hash = Math.imul(hash ^ source.charCodeAt(index), 0x01000193);
  }
  return (hash >>> 0).toString(16);
}
