/**
 * What widgets remember of themselves, in this browser. A widget decides what it writes and how often, so each has its
 * bound and all together have one: what was written longest ago goes first.
 */
import { count } from "../texts/numbers";

/** In characters, as a browser counts what it keeps. */
const MOST_EACH = 64 * 1024;
const MOST_IN_ALL = 1024 * 1024;
const MOST_WIDGETS = 200;
const PREFIX = "toolcell widget ";

interface Kept {
  key: string;
  at: number;
  length: number;
}

/** Return what the widget of a run wrote last, or null. */
export function recallState(run: string): unknown {
  try {
    const text = localStorage.getItem(PREFIX + run);
    return text === null ? null : (JSON.parse(text.slice(text.indexOf(" ") + 1)) as unknown);
  } catch {
    return null;
  }
}

/** Keep what the widget of a run says of itself. Throws an Error where it is too much, or the browser keeps nothing. */
export function keepState(run: string, state: unknown): void {
  const json = JSON.stringify(state ?? null);
  if (json.length > MOST_EACH) {
    throw new Error(`the state of a widget may have ${count(MOST_EACH)} characters of JSON, this one has ${count(json.length)}; keep less, or keep it on the server`);
  }
  const key = PREFIX + run;
  try {
    localStorage.removeItem(key);
    makeRoom(json.length);
    localStorage.setItem(key, `${Date.now()} ${json}`);
  } catch {
    throw new Error("this browser keeps nothing for this page, or has no room left; the state lasts as long as the widget");
  }
}

/** Forget what all widgets wrote. */
export function forgetStates(): void {
  try {
    for (const { key } of kept()) localStorage.removeItem(key);
  } catch {
    // Where nothing can be kept, nothing is to be forgotten.
  }
}

function makeRoom(wanted: number): void {
  const oldest = kept().sort((one, other) => one.at - other.at);
  let used = oldest.reduce((sum, { length }) => sum + length, wanted);
  for (const [gone, { key, length }] of oldest.entries()) {
    if (used <= MOST_IN_ALL && oldest.length - gone < MOST_WIDGETS) return;
    localStorage.removeItem(key);
    used -= length;
  }
}

function kept(): Kept[] {
  const keys = Array.from({ length: localStorage.length }, (_, index) => localStorage.key(index) ?? "");
  return keys.filter((key) => key.startsWith(PREFIX)).map((key) => {
    const text = localStorage.getItem(key) ?? "";
    // What was written without a time is the oldest.
    return { key, at: Number(/^\d+(?= )/.exec(text)?.[0] ?? 0), length: text.length };
  });
}
