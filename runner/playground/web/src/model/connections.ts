/** The connection of this page to the server that serves it, and what that says of servers behind it. */
import { computed, effect, signal } from "@preact/signals";
import { Connection } from "./connection";
import { isEra, USUAL } from "./eras";
import { info } from "./info";
import { isObject, parseJson } from "./json";
import { recall, remember } from "./keep";

export const here = computed(() => {
  const connection = new Connection(info.value?.name ?? "", "/play/mcp");
  const era = recall(`era ${connection.name}`);
  if (isEra(era)) connection.era.value = era;
  return connection;
});

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

/** What is chosen of the connection outlives a reload. */
effect(() => {
  const { name, era } = here.value;
  if (name !== "") remember(`era ${name}`, era.value === USUAL ? null : era.value);
});
