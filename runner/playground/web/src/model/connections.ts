/** The connection of this page to the server that serves it, and what that says of servers behind it. */
import { computed, signal } from "@preact/signals";
import { Connection, type Params } from "./connection";
import { isEra, USUAL, type Era } from "./eras";
import { info } from "./info";
import { isObject, parseJson, type Json } from "./json";
import { recall, remember } from "./keep";

const spoken = signal<Era | null>(null);

/** Another version of the protocol is another connection: what was asked of one is never taken for an answer of the other. */
export const here = computed(() => {
  const name = info.value?.name ?? "";
  const kept = recall(`era ${name}`);
  return new Connection(name, "/play/mcp", spoken.value ?? (isEra(kept) ? kept : USUAL));
});

/** Speak another version of the protocol from now on, also after a reload. */
export function speak(era: Era): void {
  const before = here.value;
  if (era === before.era) return;
  void before.leave();
  remember(`era ${before.name}`, era === USUAL ? null : era);
  spoken.value = era;
}

/** Why servers behind the page's own, if that is a proxy, cannot be reached; by name. */
export const problems = signal<Record<string, string>>({});

export async function loadProblems(): Promise<void> {
  if ((info.value?.servers.length ?? 0) === 0) return;
  const response = await fetch("/play/info", { headers: { accept: "application/json" } }).catch(() => null);
  if (response === null || !response.ok) return;
  const body = parseJson(await response.text());
  const told = isObject(body) ? body["problems"] : null;
  problems.value = isObject(told) ? Object.fromEntries(Object.entries(told).map(([name, why]) => [name, String(why)])) : {};
}

/** Ask for all pages of a list. */
export async function listAll(method: string, key: string, connection: Connection): Promise<Params[]> {
  const found: Params[] = [];
  let cursor: Json | undefined;
  do {
    const page = await connection.request(method, cursor === undefined ? {} : { cursor });
    const items = page[key];
    if (Array.isArray(items)) found.push(...items.filter(isObject));
    cursor = page["nextCursor"] ?? undefined;
  } while (cursor !== undefined && found.length < 5000);
  return found;
}
