/**
 * A chat in which a model calls tools. The loop is here: the host relays one turn at a time, and each tool is called as any
 * call of this page is. What the model is given follows from what is shown, so that neither can say something else.
 */
import { computed, signal, type Signal } from "@preact/signals";
import { T } from "../texts/texts";
import { here } from "./connections";
import type { Connection, Params } from "./connection";
import { door, info } from "./info";
import { isObject, parseJson, toJson, type Json } from "./json";
import { paced } from "./pace";
import { cancel, ended, runById, start, type Run } from "./runs";
import { seenByModel } from "./seen";
import { answers, NoAnswer } from "./streams";
import { tools, toolsListed, type Tool } from "./tools";
import { chatAsks } from "./waiting";
import { mayDestroy } from "./widget_calls";

/** What a model reads of a call that gave it no result. It goes over the wire, in English whatever the page speaks. */
const TO_MODEL = {
  refused: "The person did not allow this call.",
  cancelled: "The person cancelled before this call had ended.",
  noTool: (tool: string): string => `There is no tool ${tool}.`,
  badArguments: (why: string): string => `The arguments are no JSON object: ${why}`,
  picture: (mime: string): string => `[a picture, ${mime}, which the person sees]`,
  asked: "The tool asked for more than could be answered.",
};

export const MOST_TURNS = 20;

export type CallState = "waits" | "asked" | "running" | "done" | "failed" | "refused" | "cancelled";

export interface ChatCall {
  id: string;
  tool: string;
  /** As the model wrote them. */
  text: string;
  args: Params | null;
  state: CallState;
  /** The run in History; null where none was made. */
  run: string | null;
  /** What the model sees of the result, exactly. */
  saw: string | null;
  images: Picture[];
}

interface Picture {
  mime: string;
  data: string;
}

interface Offered {
  name: string;
  description: string;
  parameters: Params;
}

export interface Usage {
  input: number | null;
  output: number | null;
  cached: number | null;
}

export interface Turn {
  kind: "turn";
  id: string;
  model: string;
  server: string;
  began: number;
  took: number | null;
  state: "running" | "done" | "failed" | "cancelled";
  /** What it was asked with, beside what stands before it. */
  system: string;
  temperature: number | null;
  offered: Offered[];
  names: Record<string, string>;
  /** Characters of what was sent. */
  chars: number;
  text: string;
  thinking: string;
  calling: string[];
  calls: ChatCall[];
  usage: Usage | null;
  stop: string;
  problem: string | null;
}

export interface Said {
  kind: "said";
  id: string;
  text: string;
}

export type Entry = Signal<Turn> | Signal<Said>;

export const entries = signal<Entry[]>([]);
export const busy = signal(false);
/** Whether the model wants to go on and has had all its turns. */
export const paused = signal(false);
export const used = signal(0);
export const draft = signal("");
export const model = signal("");
export const system = signal("");
export const temperature = signal("");
/** Tools that are not offered, by name. */
export const without = signal<ReadonlySet<string>>(new Set());
export const asksFirst = signal(false);
/** Why nothing can be asked for as it is chosen. */
export const refused = signal<string | null>(null);
/** The call that waits for a person. */
export const asking = signal<{ call: ChatCall; tool: Tool; decide: (allowed: boolean, always: boolean) => void } | null>(null);

export const models = computed(() => info.value?.chat?.models ?? []);
export const chosenModel = computed(() => (models.value.includes(model.value) ? model.value : (models.value[0] ?? "")));
export const offered = computed(() => tools.value.filter((tool) => !without.value.has(tool.name)));

/** Whom a turn was about: another server may be looked at by the time at which its calls are made. */
interface Offer {
  connection: Connection;
  tools: ReadonlyMap<string, Tool>;
}

const offers = new WeakMap<Signal<Turn>, Offer>();
const always = new Set<string>();
let abort: AbortController | null = null;

/** Say something, and let the model go on until it stops. */
export async function say(text: string): Promise<void> {
  if (busy.value || text.trim() === "" || !canAsk()) return;
  draft.value = "";
  entries.value = [...entries.value, signal<Said>({ kind: "said", id: crypto.randomUUID(), text })];
  await goOn();
}

/** Let the model go on with what there is, for as many turns as it may have. */
export async function goOn(): Promise<void> {
  if (busy.value || !canAsk()) return;
  busy.value = true;
  paused.value = false;
  used.value = 0;
  abort = new AbortController();
  const { signal: leaves } = abort;
  try {
    while (used.value < MOST_TURNS) {
      used.value += 1;
      const turn = await answered(leaves);
      if (turn.value.state !== "done" || turn.value.calls.length === 0) return;
      await callAll(turn, leaves);
      if (leaves.aborted) return;
    }
    paused.value = true;
  } finally {
    busy.value = false;
    abort = null;
  }
}

/** End the turn and the call that are under way. */
export function stop(): void {
  abort?.abort();
  asking.value?.decide(false, false);
  for (const entry of entries.value) {
    if (entry.value.kind === "turn") for (const call of entry.value.calls) if (call.state === "running" && call.run !== null) cancel(call.run);
  }
}

export function forgetChat(): void {
  stop();
  entries.value = [];
  paused.value = false;
  used.value = 0;
  always.clear();
}

/** What the model has read before an entry, or reads next. */
export function messagesBefore(end?: Entry): Params[] {
  const messages: Params[] = [];
  for (const entry of entries.value) {
    if (entry === end) break;
    const { value } = entry;
    if (value.kind === "said") messages.push({ role: "user", text: value.text });
    else if (value.state === "done") messages.push(...ofTurn(value));
  }
  return messages;
}

function ofTurn(turn: Turn): Params[] {
  if (turn.text.trim() === "" && turn.calls.length === 0) return [];
  const calls = turn.calls.map((call): Params => ({ id: call.id, name: call.tool, arguments: call.args ?? {} }));
  const said: Params = { role: "assistant", text: turn.text, calls };
  if (calls.length === 0) return [said];
  const results = turn.calls.map((call): Params => ({
    id: call.id,
    text: call.saw ?? TO_MODEL.cancelled,
    is_error: call.state !== "done",
    images: call.images as unknown as Json,
  }));
  return [said, { role: "tool", results }];
}

/** All that a turn was asked with, as the host was given it. */
export function sentWith(entry: Signal<Turn>): Params {
  const { model: asked, system: read, temperature: heat, offered: given } = entry.value;
  return {
    model: asked,
    system: read,
    messages: messagesBefore(entry),
    tools: given as unknown as Json,
    ...(heat === null ? {} : { temperature: heat }),
  };
}

/** As it is given; null for the model's own. */
function heatOf(text: string): number | null {
  return text.trim() === "" ? null : Number(text);
}

function canAsk(): boolean {
  const heat = heatOf(temperature.value);
  refused.value = heat === null || (heat >= 0 && heat <= 2) ? null : T.chat.temperatureBad;
  return refused.value === null;
}

async function answered(leaves: AbortSignal): Promise<Signal<Turn>> {
  // A model that is asked before the page knows the tools would be asked without any.
  await toolsListed(leaves);
  const turn = signal<Turn>({
    kind: "turn", id: crypto.randomUUID(), model: chosenModel.value, server: here.value.name, began: Date.now(), took: null, state: "running",
    system: system.value, temperature: heatOf(temperature.value),
    offered: offered.value.map((tool) => ({ name: tool.name, description: tool.description, parameters: tool.inputSchema })),
    names: {}, chars: 0, text: "", thinking: "", calling: [], calls: [], usage: null, stop: "", problem: null,
  });
  offers.set(turn, { connection: here.value, tools: new Map(offered.value.map((tool) => [tool.name, tool])) });
  entries.value = [...entries.value, turn];
  const heard = { ...turn.value };
  const show = (): void => { turn.value = { ...heard }; };
  const paints = paced(show);
  try {
    const body = toJson(sentWith(turn));
    heard.chars = body.length;
    const response = await fetch("/play/chat", { method: "POST", headers: { "content-type": "application/json" }, body, signal: leaves });
    for await (const event of answers(response)) {
      if (isObject(event)) take(heard, event);
      paints.soon();
    }
    if (heard.problem === null && heard.stop === "") heard.problem = T.chat.failed;
    heard.state = heard.problem === null ? "done" : "failed";
  } catch (error) {
    heard.state = leaves.aborted ? "cancelled" : "failed";
    heard.problem = leaves.aborted ? null : error instanceof Error ? error.message : String(error);
    if (error instanceof NoAnswer && error.status === 401) {
      door.value = { state: "closed", login: info.value?.login ?? false, provider: info.value?.provider ?? false, why: error.message };
    }
  }
  heard.took = Date.now() - heard.began;
  paints.now();
  return turn;
}

/** Take an event of the relay. */
function take(turn: Turn, event: Params): void {
  switch (event["type"]) {
    case "names": turn.names = isObject(event["names"]) ? (event["names"] as Record<string, string>) : {}; break;
    case "text": turn.text += String(event["text"]); break;
    case "thinking": turn.thinking += String(event["text"]); break;
    case "calling": turn.calling = [...turn.calling, String(event["name"])]; break;
    case "call": turn.calls = [...turn.calls, callOf(event, turn.calls)]; break;
    case "usage": turn.usage = { input: numberOf(event["input"]), output: numberOf(event["output"]), cached: numberOf(event["cached"]) }; break;
    case "end": turn.stop = String(event["stop"]); break;
    case "error": turn.problem = String(event["error"]); break;
  }
}

function numberOf(value: Json | undefined): number | null {
  return typeof value === "number" ? value : null;
}

function callOf(event: Params, before: ChatCall[]): ChatCall {
  const text = String(event["arguments"] ?? "");
  const given = String(event["id"] ?? "");
  // Each result names its call.
  const id = given === "" || before.some((each) => each.id === given) ? `call_${before.length}_${given}`.slice(0, 200) : given;
  const call: ChatCall = { id, tool: String(event["name"]), text, args: null, state: "waits", run: null, saw: null, images: [] };
  try {
    const args = parseJson(text.trim() === "" ? "{}" : text);
    if (isObject(args)) return { ...call, args };
    return { ...call, state: "failed", saw: TO_MODEL.badArguments(text.slice(0, 100)) };
  } catch (error) {
    return { ...call, state: "failed", saw: TO_MODEL.badArguments((error as Error).message) };
  }
}

/** Make the calls that a turn asks for, one after the other. */
async function callAll(turn: Signal<Turn>, leaves: AbortSignal): Promise<void> {
  const offer = offers.get(turn);
  if (offer === undefined) return;
  const { connection } = offer;
  for (const { id } of turn.value.calls) {
    const call = turn.value.calls.find((each) => each.id === id);
    if (call === undefined || call.state !== "waits") continue;
    const change = (part: Partial<ChatCall>): void => {
      turn.value = { ...turn.value, calls: turn.value.calls.map((each) => (each.id === id ? { ...each, ...part } : each)) };
    };
    const tool = offer.tools.get(call.tool);
    if (leaves.aborted) change({ state: "cancelled", saw: TO_MODEL.cancelled });
    else if (tool === undefined || call.args === null) change({ state: "failed", saw: TO_MODEL.noTool(call.tool) });
    else if (!(await allowed(connection, call, tool, change))) change(leaves.aborted ? { state: "cancelled", saw: TO_MODEL.cancelled } : { state: "refused", saw: TO_MODEL.refused });
    else {
      const run = start(tool.name, call.args, { connection, inChat: true });
      change({ state: "running", run: run.value.id });
      change(endOf(await ended(run)));
    }
  }
}

/** Whether a tool is called without asking once it was allowed: never one that says that it destroys. */
export function mayBeAlways(tool: Tool): boolean {
  return tool.annotations["destructiveHint"] !== true || tool.annotations["readOnlyHint"] === true;
}

async function allowed(connection: Connection, call: ChatCall, tool: Tool, change: (part: Partial<ChatCall>) => void): Promise<boolean> {
  const key = `${connection.id} ${tool.name}`;
  if (!(mayDestroy(tool) || asksFirst.value) || (mayBeAlways(tool) && always.has(key))) return true;
  change({ state: "asked" });
  chatAsks.value = true;
  try {
    return await new Promise<boolean>((resolve) => {
      asking.value = { call, tool, decide: (yes, andAlways) => {
        if (yes && andAlways) always.add(key);
        resolve(yes);
      } };
    });
  } finally {
    asking.value = null;
    chatAsks.value = false;
  }
}

function endOf(run: Run): Partial<ChatCall> {
  const state: CallState = run.status === "running" ? "failed" : run.status;
  if (run.status === "cancelled") return { state, saw: TO_MODEL.cancelled };
  if (run.result === null) return { state, saw: run.problem ?? TO_MODEL.asked };
  return { state, ...seenOf(run.result, info.value?.chat?.images ?? false) };
}

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** What a model is given of a result: its texts as they are, pictures where it may have them, all else by name. */
export function seenOf(result: Params, withPictures: boolean): { saw: string; images: Picture[] } {
  const images: Picture[] = [];
  const content = Array.isArray(result["content"]) ? result["content"].filter(isObject) : [];
  const texts = content.flatMap((block): string[] => {
    if (block["type"] === "text") return [String(block["text"])];
    const mime = String(block["mimeType"] ?? "");
    if (block["type"] === "image") {
      if (!withPictures || !PICTURES.includes(mime)) return [TO_MODEL.picture(mime)];
      images.push({ mime, data: String(block["data"]) });
      return [];
    }
    return [toJson(seenByModel(block))];
  });
  if (content.length === 0 && result["structuredContent"] !== undefined) return { saw: toJson(result["structuredContent"]), images };
  return { saw: texts.join("\n"), images };
}

/** The whole chat, as a file. */
export function chatAsJson(): string {
  const told = entries.value.map(({ value }): Json => {
    if (value.kind === "said") return { role: "user", text: value.text };
    const { kind, calls, ...rest } = value;
    void kind;
    const made = calls.map((call) => ({ ...call, took_ms: call.run === null ? null : (runById(call.run)?.value.took ?? null) }));
    return { role: "assistant", ...(rest as unknown as Params), calls: made as unknown as Json };
  });
  return toJson({ format: "toolcell/chat", version: 1, saved: new Date().toISOString(), endpoint: info.value?.chat?.host ?? "", chat: told }, 2);
}
