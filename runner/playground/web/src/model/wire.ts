/**
 * Every JSON-RPC message between this page and its servers, in the order in which it came or went. A log of this
 * page only: it is kept nowhere, and the oldest messages go when there are too many, or when they are too long.
 */
import { signal } from "@preact/signals";
import { isObject, toJson, type Json } from "./json";
import { paced } from "./pace";

export interface Message {
  /** Its place in the session, from 1 on. */
  n: number;
  /** Milliseconds since the epoch. */
  at: number;
  /** The server's name, as this page calls it. */
  server: string;
  direction: "sent" | "received";
  message: Json;
  /** Its length as JSON, in characters. */
  size: number;
  kind: "request" | "notification" | "result" | "error";
  /** The method; of an answer that of its request. */
  method: string;
  /** Known by both messages of a pair; null for a notification. */
  pair: string | null;
  /** Milliseconds from the request to this answer; null for other messages. */
  took: number | null;
}

const MOST = 5000;
const MOST_CHARS = 30_000_000;

let log: Message[] = [];
let chars = 0;
let last = 0;
const asked = new Map<string, Message>();

/** Counts changes of the log: read it, and read `messages()`. */
export const wireChanges = signal(0);
/** How many of the oldest messages are no longer here. */
export const forgotten = signal(0);

const told = paced(() => { wireChanges.value += 1; });

export function messages(): readonly Message[] {
  return log;
}

/** Note a message, as it goes out or comes in. */
export function noted(server: string, direction: Message["direction"], message: Json): Message {
  const text = toJson(message);
  const body = isObject(message) ? message : {};
  const id = body["id"];
  const named = typeof body["method"] === "string" ? body["method"] : null;
  // Each side counts for itself: a number of ours and the same number of the server are two requests.
  const asker = (named !== null) === (direction === "sent") ? "page" : "server";
  const pair = id === undefined || id === null ? null : `${server} ${asker} ${toJson(id)}`;
  const question = named === null && pair !== null ? asked.get(pair) : undefined;
  const at = Date.now();
  const entry: Message = {
    n: ++last,
    at,
    server,
    direction,
    message,
    size: text.length,
    kind: named !== null ? (pair === null ? "notification" : "request") : body["error"] !== undefined ? "error" : "result",
    method: named ?? question?.method ?? "",
    pair,
    took: question === undefined ? null : at - question.at,
  };
  if (named !== null && pair !== null) asked.set(pair, entry);
  log.push(entry);
  chars += entry.size;
  while (log.length > MOST || (chars > MOST_CHARS && log.length > 1)) drop();
  told();
  return entry;
}

function drop(): void {
  const [gone] = log.splice(0, 1);
  if (gone === undefined) return;
  chars -= gone.size;
  forgotten.value += 1;
  if (gone.pair !== null && asked.get(gone.pair) === gone) asked.delete(gone.pair);
}

export function forgetMessages(): void {
  log = [];
  chars = 0;
  asked.clear();
  forgotten.value = 0;
  wireChanges.value += 1;
}

/** The other message of a pair: of a request its answer, of an answer its request. */
export function partner(one: Message): Message | undefined {
  return one.pair === null ? undefined : log.find((each) => each.pair === one.pair && each !== one && (each.kind === "request") !== (one.kind === "request"));
}
