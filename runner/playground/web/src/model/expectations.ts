/** Saved requests made as a set, each looked at by what it was expected to give. */
import { signal } from "@preact/signals";
import { Validator } from "@cfworker/json-schema";
import { itemsOf } from "../canvas/items";
import { modelText, contractOf } from "../views/result";
import type { Connection, Params } from "./connection";
import { here } from "./connections";
import { isObject, toJson, type Json } from "./json";
import { requestAnswered } from "./questions";
import { ended, start } from "./runs";
import type { Expect, Saved } from "./saved";
import { T } from "../texts/texts";

export interface Verdict {
  id: string;
  state: "waits" | "runs" | "passed" | "failed";
  /** What was not as expected: what says it, a sentence each, in the language that is spoken by then. */
  faults: Fault[];
  took: number | null;
  /** The run of a tool, to look at. */
  run: string | null;
}

type Fault = () => string;

export const verdicts = signal<ReadonlyMap<string, Verdict>>(new Map());
export const running = signal(false);
let stopped = false;

export function stop(): void {
  stopped = true;
}

/** Make requests one after the other. Nothing is made twice at a time. */
export async function runAll(list: readonly Saved[]): Promise<void> {
  if (running.value) return;
  running.value = true;
  stopped = false;
  verdicts.value = new Map(list.map(({ id }) => [id, { id, state: "waits", faults: [], took: null, run: null }]));
  try {
    for (const each of list) {
      if (stopped) break;
      put({ id: each.id, state: "runs", faults: [], took: null, run: null });
      put(await made(each));
    }
  } finally {
    running.value = false;
  }
}

function put(verdict: Verdict): void {
  verdicts.value = new Map([...verdicts.value, [verdict.id, verdict]]);
}

async function made(request: Saved): Promise<Verdict> {
  const began = performance.now();
  if (request.kind === "tool") {
    const run = await ended(start(request.target, request.args));
    const result = run.result;
    const faults = faultsOf(request.expect, run.status === "done" ? "done" : "failed", result, run.problem ?? "");
    return { id: request.id, state: faults.length === 0 ? "passed" : "failed", faults, took: run.took, run: run.id };
  }
  const { result, problem } = await asked(here.value, request);
  const faults = faultsOf(request.expect, result === null ? "failed" : "done", result, problem);
  return { id: request.id, state: faults.length === 0 ? "passed" : "failed", faults, took: performance.now() - began, run: null };
}

async function asked(connection: Connection, request: Saved): Promise<{ result: Params | null; problem: string }> {
  try {
    const result = request.kind === "prompt"
      ? await requestAnswered(connection, "prompts/get", { name: request.target, arguments: request.args })
      : await requestAnswered(connection, "resources/read", { uri: request.target });
    return { result, problem: "" };
  } catch (error) {
    return { result: null, problem: (error as Error).message };
  }
}

/** What is not as expected. Where nothing is expected, an end without error is. */
export function faultsOf(expect: Expect, status: "done" | "failed", result: Params | null, problem: string): Fault[] {
  const faults: Fault[] = [];
  const text = result === null ? problem : textOf(result);
  const wanted = expect.status ?? "done";
  if (status !== wanted) faults.push(() => `${T.saved.isNot(status, wanted)}${status === "failed" && problem !== "" ? `: ${problem.split("\n")[0]}` : ""}`);
  const lacked = expect.text !== undefined && !contains(text, expect.text) ? expect.text : null;
  if (lacked !== null) faults.push(() => T.saved.lacks(lacked));
  const { artifact } = expect;
  if (artifact !== undefined) {
    const names = result === null ? [] : itemsOf(result).map((item) => item.name);
    if (!names.some((name) => fits(name, artifact))) faults.push(() => T.saved.noFile(artifact, names.join(", ")));
  }
  if (expect.schema !== undefined) faults.push(...schemaFaults(expect.schema, result));
  return faults;
}

function schemaFaults(schema: Params, result: Params | null): Fault[] {
  const value = result === null ? null : (result["structuredContent"] ?? contractOf(result) ?? result);
  try {
    // Without `eval`, which the page's policy forbids.
    const { valid, errors } = new Validator(schema as object, "2020-12", false).validate(plainJson(value));
    return valid ? [] : errors.filter(({ keyword }) => keyword !== "properties" && keyword !== "items").slice(0, 3).map(({ instanceLocation, error }) => () => `${instanceLocation}: ${error}`);
  } catch (error) {
    const why = (error as Error).message;
    return [() => T.saved.badSchema(why)];
  }
}

/** What a validator knows: a number too large for a double stands as the nearest. */
function plainJson(value: Json): unknown {
  return JSON.parse(toJson(value)) as unknown;
}

function textOf(result: Params): string {
  const parts = [modelText(result), ...(Array.isArray(result["contents"]) ? result["contents"].filter(isObject).map((each) => String(each["text"] ?? "")) : [])];
  if (Array.isArray(result["messages"])) parts.push(toJson(result["messages"]));
  return parts.join("\n");
}

function contains(text: string, wanted: string): boolean {
  const pattern = /^\/(.+)\/([imsu]*)$/.exec(wanted);
  if (pattern === null) return text.includes(wanted);
  try {
    return new RegExp(pattern[1] ?? "", pattern[2]).test(text.slice(0, 100_000));
  } catch {
    return false;
  }
}

function fits(name: string, pattern: string): boolean {
  const parts = pattern.split("*").map((each) => each.replaceAll(/[.+?^${}()|[\]\\]/g, "\\$&"));
  return parts.length < 10 && new RegExp(`^${parts.join(".*")}$`).test(name);
}
