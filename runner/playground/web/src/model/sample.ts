/** Arguments to try a tool with, made from its schema; null where nothing fits that a schema could say. */
import { isObject, type Json } from "./json";
import { blank, fault, fieldOf, lacks } from "./schema";
import type { Schema } from "./tools";

export function sampleOf(schema: Schema): { [key: string]: Json } | null {
  const made = filled(blank(schema, schema) ?? {}, schema, schema, 0);
  return isObject(made) && !lacks(made, schema, schema) ? made : null;
}

function filled(value: Json | undefined, given: Json | undefined, root: Schema, depth: number): Json | undefined {
  const field = fieldOf(given, root);
  if (value === undefined && field.kind !== "object") {
    const { examples, minimum } = field.schema;
    const choice = Array.isArray(examples) ? examples[0] : undefined;
    const guess: Json | undefined = choice ?? {
      string: field.schema["format"] === undefined ? "hello" : undefined,
      integer: typeof minimum === "number" ? Math.ceil(minimum) : 3,
      number: typeof minimum === "number" ? minimum : 3,
      boolean: false,
      enum: field.choices[0],
      array: [],
      map: {},
      json: undefined,
      union: undefined,
    }[field.kind];
    return guess !== undefined && fault(guess, field, true) === null ? guess : undefined;
  }
  if (field.kind !== "object" || depth > 4) return value;
  const held: { [key: string]: Json } = isObject(value) ? { ...value } : {};
  const properties = isObject(field.schema["properties"]) ? field.schema["properties"] : {};
  const required = Array.isArray(field.schema["required"]) ? field.schema["required"] : [];
  for (const [key, property] of Object.entries(properties)) {
    // The server gives this one itself; and no file can be guessed.
    if ((depth === 0 && key === "username") || !required.includes(key) || /^file_?names?$/.test(key)) continue;
    const made = filled(Object.hasOwn(held, key) ? held[key] : undefined, property, root, depth + 1);
    if (made !== undefined) held[key] = made;
  }
  return held;
}
