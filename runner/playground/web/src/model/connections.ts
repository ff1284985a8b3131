/**
 * The servers that this page speaks to: the one that serves it, and others that its host connected to for it. One is
 * looked at at a time; the others stay as they are.
 */
import { computed, effect, signal } from "@preact/signals";
import { Connection, type Params } from "./connection";
import { isEra, NEWEST } from "./eras";
import { info } from "./info";
import { isObject, parseJson, toJson, type Json } from "./json";
import { recall, remember } from "./keep";

/** What the host says of a server that it connected to for this page. */
export interface Beside {
  id: string;
  name: string;
  /** Its address, or the command that starts it. */
  target: string;
  kind: "address" | "command";
  state: "connecting" | "up" | "down";
  /** Why it is down; empty where it is not. */
  why: string;
  tier: string | null;
  /** What it said of itself to the proxy; null while that is not connected to it. */
  said: Said | null;
}

/** A server's word on itself, and the version that the proxy speaks with it. */
export interface Said {
  protocol: string;
  name: string;
  version: string;
  capabilities: Params;
}

/** What a person says of a server to connect to. */
export interface Wanted {
  name: string;
  url?: string;
  headers?: Record<string, string>;
  command?: string[];
  env?: Record<string, string>;
}

const own = computed(() => {
  const connection = new Connection("", info.value?.name ?? "", "/play/mcp");
  const era = recall(`era ${connection.name}`);
  if (isEra(era)) connection.era.value = era;
  return connection;
});

const others = signal<ReadonlyMap<string, Connection>>(new Map());
const chosen = signal(recall("server") ?? "");

export const beside = signal<Beside[]>([]);
export const besideProblem = signal<string | null>(null);
/** Why servers behind the page's own, if that is a proxy, cannot be reached; by name. */
export const ownProblems = signal<Record<string, string>>({});

/** All that can be looked at: the page's own server first. */
export const connections = computed(() => [own.value, ...others.value.values()]);
export const here = computed<Connection>(() => others.value.get(chosen.value) ?? own.value);

export function look(id: string): void {
  chosen.value = id;
  remember("server", id === "" ? null : id);
}

export function connectionNamed(name: string): Connection | undefined {
  return connections.value.find((each) => each.name === name);
}

/** Whether this page may have its host connect to others, and to which. */
export const mayConnect = computed(() => info.value?.connect ?? []);

/** Counts how often the server that is looked at came up or went down: what it offers is another then. */
export const turned = signal(0);

/** Whether the host has a way to a server, and if not, why. */
export function way(connection: Connection): Pick<Beside, "state" | "why"> {
  return beside.value.find((each) => each.id === connection.id) ?? { state: "up", why: "" };
}

/** What the server behind the proxy said to that; null of the page's own, which the page speaks to itself. */
export function saidOf(connection: Connection): Said | null {
  return beside.value.find((each) => each.id === connection.id)?.said ?? null;
}

/** Take what the host says of its connections. */
function toldOf(list: Beside[]): void {
  const before = new Map(beside.value.map((each) => [each.id, each.state]));
  beside.value = list;
  const known = new Map(others.value);
  for (const { id, name } of list) if (!known.has(id)) known.set(id, made(id, name));
  for (const id of known.keys()) if (!list.some((each) => each.id === id)) known.delete(id);
  const changed = known.size !== others.value.size || [...known.keys()].some((id) => !others.value.has(id));
  if (changed) others.value = known;
  for (const each of list) {
    const connection = known.get(each.id);
    if (connection === undefined) continue;
    if (each.state !== "up") {
      connection.state.value = each.state;
      connection.why.value = each.why;
    }
    if (before.get(each.id) !== each.state && connection === here.value) turned.value += 1;
  }
}

function made(id: string, name: string): Connection {
  const connection = new Connection(id, name, `/play/servers/${id}/mcp`);
  const era = recall(`era ${name}`);
  connection.era.value = isEra(era) ? era : NEWEST;
  return connection;
}

export async function loadBeside(): Promise<void> {
  if (mayConnect.value.length === 0 && (info.value?.servers.length ?? 0) === 0) return;
  try {
    const body = await asked("/play/servers");
    toldOf(listOf(body));
    const own = isObject(body) ? body["own"] : null;
    ownProblems.value = isObject(own) ? Object.fromEntries(Object.entries(own).map(([name, why]) => [name, String(why)])) : {};
    besideProblem.value = null;
  } catch (error) {
    besideProblem.value = (error as Error).message;
  }
}

/** Have the host connect to a server. Returns its id. Throws an Error that says what is wrong. */
export async function connect(wanted: Wanted): Promise<string> {
  const body = await asked("/play/servers", { method: "POST", headers: { "content-type": "application/json" }, body: toJson(wanted) });
  await loadBeside();
  return isObject(body) ? String(body["id"]) : "";
}

export async function again(id: string): Promise<void> {
  await asked(`/play/servers/${id}/again`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  await loadBeside();
}

export async function disconnect(id: string): Promise<void> {
  await asked(`/play/servers/${id}`, { method: "DELETE" });
  if (chosen.value === id) look("");
  await loadBeside();
}

function listOf(body: Json): Beside[] {
  const list = isObject(body) ? body["servers"] : null;
  return Array.isArray(list) ? (list.filter(isObject) as unknown as Beside[]) : [];
}

async function asked(path: string, init: RequestInit = {}): Promise<Json> {
  const response = await fetch(path, init);
  const text = await response.text();
  let body: Json = null;
  try {
    body = text === "" ? null : parseJson(text);
  } catch {
    // What is no JSON says nothing beyond its status.
  }
  if (!response.ok) throw new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${response.status}`);
  return body;
}

/** What is chosen of a connection outlives a reload. */
effect(() => {
  for (const { name, era } of connections.value) if (name !== "") remember(`era ${name}`, era.value === NEWEST ? null : era.value);
});
