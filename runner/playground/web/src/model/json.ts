/**
 * JSON without loss: an integer that a double cannot hold becomes a bigint on the way in, and its own digits on
 * the way out.
 */

export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

/** Read JSON text. Throws a SyntaxError that names the place. */
export function parseJson(text: string): Json {
  return JSON.parse(text, exact as (this: unknown, key: string, value: unknown) => unknown) as Json;
}

function exact(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
  const source = context?.source;
  return source !== undefined && /^-?\d+$/.test(source) ? BigInt(source) : value;
}

/** Read JSON text; null where it is not JSON. */
export function tryJson(text: string | null): Json {
  try {
    return text === null ? null : parseJson(text);
  } catch {
    return null;
  }
}

/** Read a JSON object that a person wrote, or return the problem with it. */
export function readObject(text: string): { value: { [key: string]: Json }; problem: null } | { value: null; problem: string } {
  try {
    const value = parseJson(text);
    return isObject(value) ? { value, problem: null } : { value: null, problem: "must be a JSON object, in braces" };
  } catch (error) {
    return { value: null, problem: (error as Error).message };
  }
}

/** Write JSON text. `indent` as for JSON.stringify. */
export function toJson(value: unknown, indent?: number): string {
  // A string that no value contains marks a bigint until it stands in the text.
  const mark = "\u{f8ff}int:";
  const text = JSON.stringify(value, (_key, each: unknown) => (typeof each === "bigint" ? mark + String(each) : each), indent);
  return text === undefined ? "null" : text.replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

export function isObject(value: unknown): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
