/** How questions of a server are answered: by hand, or by what a person wrote down before. For each server, in this browser. */
import { signal, type Signal } from "@preact/signals";
import type { Connection, Params } from "./connection";
import { isObject, parseJson, toJson, type Json } from "./json";
import { recall, remember } from "./keep";

export type Way = "hand" | "canned" | "refuse";
export const ASKS = ["sampling/createMessage", "roots/list", "elicitation/create"] as const;
export type Ask = (typeof ASKS)[number];

export interface Canned {
  way: Way;
  /** The answer, as JSON. */
  text: string;
}

const BEGIN: Record<Ask, Canned> = {
  "sampling/createMessage": { way: "hand", text: toJson({ role: "assistant", content: { type: "text", text: "A canned answer." }, model: "canned", stopReason: "endTurn" }, 2) },
  // A server asks for roots as soon as it meets its client: nobody wants a question then.
  "roots/list": { way: "canned", text: toJson({ roots: [] }, 2) },
  "elicitation/create": { way: "hand", text: toJson({ action: "decline" }, 2) },
};

const held = new Map<string, Signal<Record<Ask, Canned>>>();

export function cannedOf(connection: Connection): Signal<Record<Ask, Canned>> {
  let found = held.get(connection.name);
  if (found === undefined) {
    found = signal(read(recall(`canned ${connection.name}`)));
    held.set(connection.name, found);
  }
  return found;
}

export function setCanned(connection: Connection, ask: Ask, next: Canned): void {
  const all = cannedOf(connection);
  all.value = { ...all.value, [ask]: next };
  remember(`canned ${connection.name}`, toJson(all.value));
  if (ask === "roots/list" && connection.about.value !== null) void connection.notify("notifications/roots/list_changed").catch(() => undefined);
}

/** What stands ready for a question; null where a person answers. */
export function ready(connection: Connection, method: string): { refuse: true } | { result: Params } | null {
  if (!isAsk(method)) return { refuse: true };
  const { way, text } = cannedOf(connection).value[method];
  if (way === "refuse") return { refuse: true };
  const result = way === "canned" ? parsed(text) : null;
  return isObject(result) ? { result } : null;
}

export function isAsk(method: string): method is Ask {
  return ASKS.some((ask) => ask === method);
}

function read(text: string | null): Record<Ask, Canned> {
  const kept = parsed(text ?? "");
  const all = { ...BEGIN };
  if (!isObject(kept)) return all;
  for (const ask of ASKS) {
    const one = kept[ask];
    if (isObject(one) && typeof one["text"] === "string" && ["hand", "canned", "refuse"].includes(String(one["way"]))) all[ask] = { way: one["way"] as Way, text: one["text"] };
  }
  return all;
}

function parsed(text: string): Json {
  try {
    return parseJson(text);
  } catch {
    return null;
  }
}
