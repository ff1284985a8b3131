/**
 * Requests that are saved by name, in this browser, for all servers, and given to others as a file. A file of others
 * is read like anything that a stranger wrote.
 */
import { effect, signal } from "@preact/signals";
import type { Params } from "./connection";
import { user } from "./info";
import { isObject, tryJson, toJson, type Json } from "./json";
import { byUser, recall, remember } from "./keep";
import { go } from "./route";
import { count } from "../texts/numbers";

export type Kind = "tool" | "prompt" | "resource";

export interface Saved {
  id: string;
  name: string;
  server: string;
  kind: Kind;
  /** The tool, the prompt, or the address of the resource. */
  target: string;
  args: Params;
}

const KEY = "saved requests";
const MOST = 1000;
const MOST_CHARS = 2_000_000;
const FORMAT = "toolcell-requests";

export const saved = signal<Saved[]>([]);

effect(() => {
  saved.value = user.value === null ? [] : listOf(tryJson(recall(byUser(KEY))));
});

/** Keep a list. Throws an Error where the browser has no room for it. */
function keep(next: Saved[]): void {
  const text = toJson(next);
  if (next.length > MOST || text.length > MOST_CHARS) throw new Error(`this browser keeps up to ${count(MOST)} requests of ${count(MOST_CHARS / 1e6)} million characters in all; save some as a file and delete them here`);
  remember(byUser(KEY), text);
  saved.value = next;
}

export function save(...list: Omit<Saved, "id">[]): void {
  keep([...saved.value, ...list.map((each) => ({ ...each, id: crypto.randomUUID() }))]);
}

export function forget(id: string): void {
  keep(saved.value.filter((each) => each.id !== id));
}

/** Fill a saved request in, and run nothing. */
export function open({ kind, target, args }: Saved): void {
  if (kind === "resource") go("resources", target);
  else go(kind === "tool" ? "call" : "prompts", target, { args: toJson(args, 2) });
}

export function asFile(list: readonly Saved[]): string {
  return toJson({ format: FORMAT, version: 1, requests: list.map(({ id: _id, ...rest }) => rest) }, 2);
}

/** Read a file of saved requests. Throws an Error that says what is wrong. */
export function read(text: string): Omit<Saved, "id">[] {
  const value = tryJson(text);
  if (!isObject(value) || value["format"] !== FORMAT) throw new Error("this is not a file of saved requests of a Playground");
  const list = listOf(value["requests"]);
  if (list.length === 0) throw new Error("there are no requests in it");
  return list;
}

function listOf(value: Json | undefined): Saved[] {
  if (!Array.isArray(value)) return [];
  return value.filter(isObject).flatMap((each): Saved[] => {
    const kind = each["kind"];
    if (kind !== "tool" && kind !== "prompt" && kind !== "resource") return [];
    const text = (key: string): string => (typeof each[key] === "string" ? each[key] : "");
    if (text("target") === "") return [];
    return [{ id: text("id") || crypto.randomUUID(), name: text("name") || text("target"), server: text("server"), kind, target: text("target"), args: isObject(each["args"]) ? each["args"] : {} }];
  });
}
