/**
 * Requests that are kept by name, in this browser, for all servers: made again, run as a set, and given to
 * others as a file or a link. What comes from others is read like anything that a stranger wrote.
 */
import { effect, signal } from "@preact/signals";
import type { Params } from "./connection";
import { user } from "./info";
import { isObject, parseJson, toJson, type Json } from "./json";
import { byUser, recall, remember } from "./keep";
import { T } from "../texts/texts";

export type Kind = "tool" | "prompt" | "resource";

/** What is to come of a request. What is left out is not looked at. */
export interface Expect {
  status?: "done" | "failed";
  /** Text that the model's text must contain, or a pattern between slashes. */
  text?: string;
  /** A JSON Schema for the structured result. */
  schema?: Params;
  /** The name of a file that must be among the artifacts; `*` stands for anything. */
  artifact?: string;
}

export interface Saved {
  id: string;
  name: string;
  server: string;
  kind: Kind;
  /** The tool, the prompt, or the address of the resource. */
  target: string;
  args: Params;
  expect: Expect;
}

const KEY = "saved requests";
const MOST = 1000;
const MOST_CHARS = 2_000_000;
const FORMAT = "toolcell-requests";

export const saved = signal<Saved[]>([]);

effect(() => {
  saved.value = user.value === null ? [] : listOf(parsed(recall(byUser(KEY))));
});

/** Keep a list. Throws an Error where the browser has no room for it. */
function keep(next: Saved[]): void {
  const text = toJson(next);
  if (next.length > MOST || text.length > MOST_CHARS) throw new Error(T.saved.tooMany(MOST, MOST_CHARS / 1e6));
  remember(byUser(KEY), text);
  saved.value = next;
}

export function save(request: Omit<Saved, "id" | "expect"> & { expect?: Expect }): Saved {
  const made: Saved = { expect: {}, ...request, id: crypto.randomUUID() };
  keep([...saved.value, made]);
  return made;
}

export function change(id: string, part: Partial<Saved>): void {
  keep(saved.value.map((each) => (each.id === id ? { ...each, ...part } : each)));
}

export function forget(ids: readonly string[]): void {
  keep(saved.value.filter((each) => !ids.includes(each.id)));
}

export function asFile(list: readonly Saved[]): string {
  return toJson({ format: FORMAT, version: 1, requests: list.map(({ id: _id, ...rest }) => rest) }, 2);
}

/** Read a file or a link of somebody. Throws an Error that says what is wrong. */
export function read(text: string): Omit<Saved, "id">[] {
  const value = parsed(text);
  if (!isObject(value) || value["format"] !== FORMAT) throw new Error(T.saved.noFormat);
  const list = listOf(value["requests"]);
  if (list.length === 0) throw new Error(T.saved.noRequests);
  return list;
}

export function takeOver(list: readonly Omit<Saved, "id">[]): void {
  keep([...saved.value, ...list.map((each) => ({ ...each, id: crypto.randomUUID() }))]);
}

function listOf(value: Json | undefined): Saved[] {
  if (!Array.isArray(value)) return [];
  return value.filter(isObject).flatMap((each): Saved[] => {
    const kind = each["kind"];
    if (kind !== "tool" && kind !== "prompt" && kind !== "resource") return [];
    const text = (key: string): string => (typeof each[key] === "string" ? each[key] : "");
    if (text("target") === "") return [];
    return [{ id: text("id") || crypto.randomUUID(), name: text("name") || text("target"), server: text("server"), kind, target: text("target"), args: isObject(each["args"]) ? each["args"] : {}, expect: expectOf(each["expect"]) }];
  });
}

function expectOf(value: Json | undefined): Expect {
  if (!isObject(value)) return {};
  const { status, text, schema, artifact } = value;
  return {
    ...(status === "done" || status === "failed" ? { status } : {}),
    ...(typeof text === "string" && text !== "" ? { text } : {}),
    ...(isObject(schema) ? { schema } : {}),
    ...(typeof artifact === "string" && artifact !== "" ? { artifact } : {}),
  };
}

function parsed(text: string | null): Json {
  try {
    return text === null ? null : parseJson(text);
  } catch {
    return null;
  }
}
