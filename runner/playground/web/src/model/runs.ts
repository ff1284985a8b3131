/** Calls that this page made: what was asked, what was heard, how it ended. Kept across reloads. */
import { signal, type Signal } from "@preact/signals";
import { isObject, toJson, type Json } from "./json";
import { here, speak } from "./connections";
import { McpError, SessionEnded, type Connection, type Params, type Wire } from "./connection";
import { NEWEST } from "./eras";
import { door, info } from "./info";
import { keepRun, keptRuns } from "./keep";
import { paced } from "./pace";
import { requestAnswered } from "./questions";
import type { WidgetCall } from "./widget_calls";

export type Status = "running" | "done" | "failed" | "cancelled";

/** Why a call has no result, where this page knows. */
export type Cause = "cancelled" | "unreachable";

export interface Progress {
  progress: number;
  total: number | null;
  message: string | null;
  /** Milliseconds since the run began. */
  at: number;
}

export interface LogLine {
  at: number;
  level: string;
  text: string;
  /** Whether the runner says it of the call's silence. */
  notice: boolean;
}

export interface Report {
  steps_ms: Record<string, number>;
  tier: string;
  denials?: Params[];
  limits?: Record<string, number>;
  layers?: string[];
  /** The call's span as a `traceparent`, and those below it, where the server makes spans. */
  trace?: string;
  spans?: Span[];
  usage?: { peak_bytes?: number; cpu_s?: number };
}

export interface Span {
  name: string;
  start_ms: number;
  took_ms: number;
}

export interface Run {
  id: string;
  tool: string;
  args: Params;
  /** The server that was asked, and what it called its version; absent in runs of before that was noted. */
  server?: string;
  version?: string;
  /** Kept when others go, and shown first. */
  pinned?: boolean;
  /** Milliseconds since the epoch. */
  began: number;
  /** Milliseconds that it took; null while it runs. */
  took: number | null;
  /** Milliseconds into the run at which something was last heard. */
  heard: number;
  status: Status;
  progress: Progress[];
  logs: LogLine[];
  wire: Wire[];
  result: Params | null;
  problem: string | null;
  cause?: Cause;
  /** The page that the tool showed last while it ran: HTML, or where it is kept. */
  canvas?: { html: string } | { uri: string; size: number };
  /** Files that it showed while it ran, as the server announced them. */
  soFar?: Params[];
  /** What the widget of its result called; absent where it called nothing. */
  widgetCalls?: WidgetCall[];
}

const MAX_LOGS = 2000;
const MAX_WIRE = 500;
const MOST_SAID = 2_000;
const MAX_RUNS = 200;

export const runs = signal<Signal<Run>[]>([]);
/** The ids of up to two calls that are compared. */
export const picked = signal<string[]>([]);
const cancels = new Map<string, AbortController>();

export async function loadRuns(): Promise<void> {
  const kept = await keptRuns(MAX_RUNS);
  runs.value = kept.map((run) => signal(asLeft(run)));
}

/** What went on when the page was left has ended with it. */
function asLeft(run: Run): Run {
  const calls = (run.widgetCalls ?? []).map((call) => (call.status === "asked" || call.status === "running" ? { ...call, status: "left" as const } : call));
  const left = run.status === "running" ? { ...run, status: "cancelled" as const, cause: "cancelled" as const, problem: "The page was left while this call ran, which ended it." } : run;
  return calls.length === 0 ? left : { ...left, widgetCalls: calls };
}

export function runById(id: string): Signal<Run> | undefined {
  return runs.value.find((run) => run.value.id === id);
}

export function cancel(id: string): void {
  cancels.get(id)?.abort();
}

export function reportOf(run: Run): Report | null {
  const meta = run.result?.["_meta"];
  const report = isObject(meta) ? meta["toolcell/report"] : null;
  return isObject(report) ? (report as unknown as Report) : null;
}

/** Call a tool; the run tells how it goes. */
export function start(tool: string, args: Params): Signal<Run> {
  const connection = here.value;
  const run = signal<Run>({
    id: crypto.randomUUID(),
    tool,
    args,
    server: connection.name,
    version: connection.about.value?.version ?? "",
    began: Date.now(),
    took: null,
    heard: 0,
    status: "running",
    progress: [],
    logs: [],
    wire: [],
    result: null,
    problem: null,
  });
  runs.value = trimmed([run, ...runs.value]);
  void carryOut(run, { name: tool, arguments: args }, connection);
  return run;
}

/** The newest runs, and those that are pinned. */
function trimmed(all: Signal<Run>[]): Signal<Run>[] {
  let rest = MAX_RUNS;
  return all.filter((run) => run.value.pinned === true || rest-- > 0);
}

export function pin(run: Signal<Run>, pinned: boolean): void {
  run.value = { ...run.value, pinned };
  void keepRun(run.value);
}

/** Take what a running tool shows. The news of other clients' calls are of no run here. */
export function showMeanwhile(token: Json | undefined, part: Pick<Run, "canvas" | "soFar">): void {
  const run = typeof token === "string" ? runById(token) : undefined;
  if (run === undefined) return;
  run.value = { ...run.value, ...part };
  // The news may come after the answer, which was kept without them.
  if (run.value.status !== "running") void keepRun(run.value);
}

/** What came of a run and is not shown yet. */
interface Heard {
  wire: Wire[];
  said: { method: string; params: Params; at: number }[];
}

/** Keep the last `most`, or a few more. */
function push<T>(list: T[], item: T, most: number): void {
  list.push(item);
  if (list.length > 2 * most) list.splice(0, list.length - most);
}

function withHeard(run: Run, { wire, said }: Heard): Run {
  const now: Run = { ...run, wire: [...run.wire, ...wire].slice(-MAX_WIRE), progress: [...run.progress], logs: [...run.logs] };
  for (const { method, params, at } of said) hear(now, method, params, at);
  return { ...now, progress: now.progress.slice(-MAX_LOGS), logs: now.logs.slice(-MAX_LOGS) };
}

async function carryOut(run: Signal<Run>, params: Params, connection: Connection): Promise<void> {
  const abort = new AbortController();
  cancels.set(run.value.id, abort);
  const zero = performance.now();
  const heard: Heard = { wire: [], said: [] };
  const take = (): void => {
    if (heard.wire.length + heard.said.length === 0) return;
    run.value = withHeard(run.value, heard);
    heard.wire = [];
    heard.said = [];
  };
  const paints = paced(take);
  const change = (part: Partial<Run>): void => {
    take();
    run.value = { ...run.value, ...part };
  };
  try {
    const result = await requestAnswered(connection, "tools/call", params, {
      live: true,
      token: run.value.id,
      signal: abort.signal,
      meta: { "toolcell/report": true },
      onWire: (wire) => {
        push(heard.wire, { ...wire, at: wire.at - zero }, MAX_WIRE);
        paints();
      },
      onNotification: (method, params) => {
        push(heard.said, { method, params, at: performance.now() - zero }, MAX_LOGS);
        paints();
      },
    });
    const took = performance.now() - zero;
    change({ result, took, status: result["isError"] === true ? "failed" : "done" });
  } catch (error) {
    if (error instanceof McpError && NEEDS_NEWEST.test(error.message) && connection.era !== NEWEST) {
      // Such a tool is called again for each answer anyway.
      speak(NEWEST);
      await carryOut(run, params, here.value);
      return;
    }
    change({ took: performance.now() - zero, ...endOf(error, abort.signal.aborted) });
  } finally {
    cancels.delete(run.value.id);
    void keepRun(run.value);
  }
}

/** Said by FastMCP where a tool returns its questions, which older versions of the protocol cannot carry. */
const NEEDS_NEWEST = /InputRequiredResult.*only exists at MCP 2026-07-28/s;

function endOf(error: unknown, aborted: boolean): Partial<Run> {
  if (aborted) return { status: "cancelled", cause: "cancelled", problem: "You cancelled this call, and the server ended it." };
  if (error instanceof SessionEnded) {
    door.value = { state: "closed", login: info.value?.login ?? false, provider: info.value?.provider ?? false, why: error.message };
  }
  if (error instanceof McpError) {
    const more = error.data === null ? "" : `\n${toJson(error.data, 2)}`;
    return { status: "failed", problem: `${error.message} (${error.code})${more}` };
  }
  return { status: "failed", cause: "unreachable", problem: `The call got no answer: ${error instanceof Error ? error.message : String(error)}` };
}

/** Write into a copy of a run what was heard of it. */
function hear(run: Run, method: string, params: Params, at: number): void {
  if (method === "notifications/progress") {
    const said = typeof params["message"] === "string" ? params["message"].slice(0, MOST_SAID) : null;
    const before = run.progress.at(-1)?.progress ?? 0;
    const given = Number(params["progress"] ?? 0);
    const value = Number.isFinite(given) ? given : before;
    if (said !== null && params["total"] === undefined && value - before < 1e-6 && value > before) {
      // The least that progress can grow: the runner says how long the tool has been silent.
      run.logs.push({ at, level: "notice", text: said, notice: true });
      return;
    }
    run.heard = at;
    run.progress.push({ at, progress: value, total: typeof params["total"] === "number" ? params["total"] : null, message: said });
    return;
  }
  if (method !== "notifications/message") {
    run.heard = at;
    return;
  }
  const data = params["data"];
  const told = isObject(data) && typeof data["msg"] === "string" ? data["msg"] : data;
  const logger = typeof params["logger"] === "string" ? params["logger"] : null;
  const notice = logger === "runner";
  // What the runner says of silence does not end it.
  if (!notice) run.heard = at;
  const level = String(params["level"] ?? "info");
  // What a tool printed comes as lines.
  const lines = logger === "output" ? asText(told).split("\n") : [asText(told)];
  for (const text of lines) run.logs.push({ at, level, text, notice });
}

function asText(value: Json | undefined): string {
  return typeof value === "string" ? value : toJson(value ?? null);
}
