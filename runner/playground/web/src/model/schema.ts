/**
 * From a JSON Schema to what a form shows. Local `$ref`, `allOf` of one, nullable `anyOf`, `const` and `enum` are
 * resolved here; what no form can show is left to raw JSON, and nothing is lost between the two.
 */
import { isObject, toJson, type Json } from "./json";
import type { Schema } from "./tools";
import { plural } from "../texts/numbers";

export type Kind = "string" | "number" | "integer" | "boolean" | "enum" | "array" | "object" | "map" | "union" | "json";

export interface Field {
  kind: Kind;
  schema: Schema;
  nullable: boolean;
  description: string | null;
  /** Of `enum`: its values. */
  choices: Json[];
  /** Of `enum`: what people read instead of its values, where the schema says so. */
  names: string[];
  /** Of `union`: its forms. */
  forms: Schema[];
}

const MAX_DEPTH = 32;

export function fieldOf(given: Json | undefined, root: Schema): Field {
  const schema = resolved(given, root, 0);
  const { forms, nullable } = alternatives(schema, root);
  const only = forms.length === 1 && forms[0] !== undefined ? { ...without(schema, "anyOf", "oneOf"), ...forms[0] } : schema;
  const type = typeOf(only);
  const field: Field = {
    kind: "json",
    schema: only,
    nullable: nullable || type.nullable,
    description: text(schema["description"]) ?? text(only["description"]),
    choices: [],
    names: [],
    forms: [],
  };
  const titled = forms.length > 1 && forms.every((form) => form["const"] !== undefined);
  if (titled) return { ...field, kind: "enum", choices: forms.map((form) => form["const"] ?? null), names: forms.map((form) => text(form["title"]) ?? toJson(form["const"] ?? null)) };
  if (forms.length > 1) return { ...field, kind: "union", forms };
  if (only["const"] !== undefined) return { ...field, kind: "enum", choices: [only["const"]] };
  if (Array.isArray(only["enum"])) {
    const choices = only["enum"].filter((choice) => choice !== null);
    // Of an older version of the protocol's schemas of questions.
    const named = Array.isArray(only["enumNames"]) && only["enumNames"].length === choices.length ? only["enumNames"].map(String) : [];
    return { ...field, kind: "enum", choices, names: named, nullable: field.nullable || choices.length < only["enum"].length };
  }
  return { ...field, kind: kindOf(type.name, only) };
}

function kindOf(type: string | null, schema: Schema): Kind {
  switch (type) {
    case "string":
    case "number":
    case "integer":
    case "boolean":
      return type;
    case "array":
      return isObject(schema["items"]) || Array.isArray(schema["prefixItems"]) ? "array" : "json";
    case "object":
      if (isObject(schema["properties"])) return "object";
      return isObject(schema["additionalProperties"]) ? "map" : "json";
    default:
      return isObject(schema["properties"]) ? "object" : "json";
  }
}

function resolved(given: Json | undefined, root: Schema, depth: number): Schema {
  if (!isObject(given) || depth > MAX_DEPTH) return {};
  const ref = given["$ref"];
  if (typeof ref === "string") return { ...resolved(at(root, ref), root, depth + 1), ...without(given, "$ref") };
  const all = given["allOf"];
  if (Array.isArray(all) && all.length === 1) {
    return { ...resolved(all[0], root, depth + 1), ...without(given, "allOf") };
  }
  return given;
}

function at(root: Schema, ref: string): Json | undefined {
  if (!ref.startsWith("#")) return undefined;
  let found: Json | undefined = root;
  for (const part of ref.slice(1).split("/").slice(1)) {
    const key = decoded(part).replaceAll("~1", "/").replaceAll("~0", "~");
    found = isObject(found) && Object.hasOwn(found, key) ? found[key] : undefined;
  }
  return found;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function alternatives(schema: Schema, root: Schema): { forms: Schema[]; nullable: boolean } {
  const list = schema["anyOf"] ?? schema["oneOf"];
  if (!Array.isArray(list)) return { forms: [], nullable: false };
  const forms = list.map((each) => resolved(each, root, 0));
  const real = forms.filter((form) => form["type"] !== "null");
  return { forms: real, nullable: real.length < forms.length };
}

function typeOf(schema: Schema): { name: string | null; nullable: boolean } {
  const type = schema["type"];
  if (typeof type === "string") return { name: type, nullable: type === "null" };
  if (!Array.isArray(type)) return { name: null, nullable: false };
  const named = type.filter((each) => each !== "null");
  return { name: named.length === 1 && typeof named[0] === "string" ? named[0] : null, nullable: named.length < type.length };
}

function without(schema: Schema, ...keys: string[]): Schema {
  return Object.fromEntries(Object.entries(schema).filter(([key]) => !keys.includes(key)));
}

function text(value: Json | undefined): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

/** What a form holds before anybody fills it: defaults and what must be there. Absent stays absent. */
export function blank(given: Json | undefined, root: Schema, depth = 0): Json | undefined {
  const field = fieldOf(given, root);
  if (field.schema["default"] !== undefined) return field.schema["default"];
  if (field.kind === "enum" && field.choices.length === 1) return field.choices[0];
  if (field.nullable || depth > 4) return field.nullable ? null : undefined;
  if (field.kind !== "object") return field.kind === "boolean" ? false : undefined;
  const properties = isObject(field.schema["properties"]) ? field.schema["properties"] : {};
  const required = Array.isArray(field.schema["required"]) ? field.schema["required"] : [];
  const made: { [key: string]: Json } = {};
  for (const [key, property] of Object.entries(properties)) {
    const value = required.includes(key) ? blank(property, root, depth + 1) : defaultOf(property, root);
    if (value !== undefined) made[key] = value;
  }
  return made;
}

function defaultOf(property: Json, root: Schema): Json | undefined {
  return fieldOf(property, root).schema["default"];
}

/** Whether a value lacks something that must be there, at the top or further down. */
export function lacks(value: Json | undefined, given: Json | undefined, root: Schema, required = true, depth = 0): boolean {
  const field = fieldOf(given, root);
  if (value === undefined) return required;
  if (value === null) return required && !field.nullable && field.kind !== "json";
  if (depth > MAX_DEPTH) return false;
  if (field.kind === "object" && isObject(value)) {
    const properties = isObject(field.schema["properties"]) ? field.schema["properties"] : {};
    const must = Array.isArray(field.schema["required"]) ? field.schema["required"] : [];
    return Object.entries(properties).some(([key, property]) =>
      // The server gives this one itself, at the top.
      !(depth === 0 && key === "username") && lacks(Object.hasOwn(value, key) ? value[key] : undefined, property, root, must.includes(key), depth + 1));
  }
  if (field.kind === "array" && Array.isArray(value)) return value.some((item, index) => lacks(item, itemOf(field.schema, index), root, true, depth + 1));
  if (field.kind === "map" && isObject(value)) return Object.values(value).some((item) => lacks(item, field.schema["additionalProperties"], root, true, depth + 1));
  return false;
}

/** The schema of an item of an array, by its place. */
export function itemOf(schema: Schema, index: number): Json | undefined {
  const prefix = schema["prefixItems"];
  return (Array.isArray(prefix) ? prefix[index] : undefined) ?? schema["items"];
}

/** What is wrong with a value, in a sentence for its field; null if nothing is. */
export function fault(value: Json | undefined, field: Field, required: boolean): string | null {
  if (value === undefined) return required ? "required" : null;
  if (value === null) return required && !field.nullable && field.kind !== "json" ? "required" : null;
  const { schema } = field;
  if (field.kind === "string" && typeof value === "string") return stringFault(value, schema);
  if (field.kind === "integer" && typeof value === "number" && !Number.isInteger(value)) return "a whole number";
  if ((field.kind === "number" || field.kind === "integer") && (typeof value === "number" || typeof value === "bigint")) {
    return numberFault(value, schema);
  }
  if (field.kind === "array" && Array.isArray(value)) return arrayFault(value, schema);
  if (field.kind === "enum" && !field.choices.some((choice) => toJson(choice) === toJson(value))) return "one of the choices";
  return null;
}

function stringFault(value: string, schema: Schema): string | null {
  const { minLength, maxLength, pattern } = schema;
  if (typeof minLength === "number" && [...value].length < minLength) return `at least ${minLength} ${plural(minLength, { one: "character", other: "characters" })}`;
  if (typeof maxLength === "number" && [...value].length > maxLength) return `at most ${maxLength} ${plural(maxLength, { one: "character", other: "characters" })}`;
  if (typeof pattern === "string" && !matches(pattern, value)) return `must match ${pattern}`;
  if (schema["format"] === "email" && !/^[^\s@]+@[^\s@]+$/.test(value)) return "not an e-mail address";
  if (schema["format"] === "uri" && !URL.canParse(value)) return "not an address such as https://example.com";
  return null;
}

function matches(pattern: string, value: string): boolean {
  // The server checks every value, in linear time; a browser's own engine may take years for some.
  if (!isCheap(pattern) || value.length > 500) return true;
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return true;
  }
}

/** Whether a pattern repeats so little that no text of some hundred characters takes long. */
function isCheap(pattern: string): boolean {
  const repeats = pattern.replaceAll(/\{\d+\}/g, "").match(/[*+{]/g)?.length ?? 0;
  const options = pattern.match(/\?/g)?.length ?? 0;
  return repeats <= 2 && options <= 8 && !/\)[*+{]/.test(pattern);
}

function numberFault(value: number | bigint, schema: Schema): string | null {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema;
  if (typeof minimum === "number" && value < minimum) return `at least ${minimum}`;
  if (typeof maximum === "number" && value > maximum) return `at most ${maximum}`;
  if (typeof exclusiveMinimum === "number" && value <= exclusiveMinimum) return `more than ${exclusiveMinimum}`;
  if (typeof exclusiveMaximum === "number" && value >= exclusiveMaximum) return `less than ${exclusiveMaximum}`;
  return null;
}

function arrayFault(value: Json[], schema: Schema): string | null {
  const { minItems, maxItems } = schema;
  if (typeof minItems === "number" && value.length < minItems) return `at least ${minItems} ${plural(minItems, { one: "item", other: "items" })}`;
  if (typeof maxItems === "number" && value.length > maxItems) return `at most ${maxItems} ${plural(maxItems, { one: "item", other: "items" })}`;
  return null;
}
