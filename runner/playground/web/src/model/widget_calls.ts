/**
 * Tools that a widget calls: of its own server only, each written down with the run whose result the widget shows, and
 * after asking where the tool may destroy something or a person wants to be asked.
 *
 * Source: MCP Apps 2026-01-26, "Tool Visibility" and "Mitigations"; MCP 2025-11-25, `ToolAnnotations`.
 */
import { signal, type Signal } from "@preact/signals";
import { isObject, toJson } from "./json";
import { keepRun, recall, remember } from "./keep";
import type { Params } from "./connection";
import { here } from "./connections";
import { runById, type Run } from "./runs";
import { byName, type Tool } from "./tools";

export interface WidgetCall {
  id: string;
  tool: string;
  /** As JSON, or how it begins: a widget may send much, and often. */
  args: string;
  /** Milliseconds from the start to the end; null before. */
  took: number | null;
  /** Whether it is asked for because the tool may destroy something, not because a person wants to be asked. */
  destructive?: boolean;
  status: "asked" | "running" | "done" | "failed" | "refused" | "left";
}

/** Whether a widget's calls wait until a person says yes. */
export const asksFirst = signal(recall("widgets ask first") === "yes");

const MOST = 100;
const MOST_CHARS = 2000;
const SAVE_MS = 500;
const answers = new Map<string, (allowed: boolean) => void>();
/** Runs that were kept a moment ago, and whether there is news of them since. */
const saving = new Map<string, boolean>();

export function askFirst(on: boolean): void {
  asksFirst.value = on;
  remember("widgets ask first", on ? "yes" : null);
}

/** The key of `_meta` under which a call says that a widget made it; the server has its own look at it. */
const WIDGET_META = "toolcell/widget";

/** Who may call a tool, as it says itself: nobody where it says nothing. `undefined` for a tool that does not exist. */
export function visibilityOf(name: string): readonly string[] | undefined {
  const tool = byName.value.get(name);
  if (tool === undefined) return undefined;
  const ui = tool.meta["ui"];
  const said = isObject(ui) ? ui["visibility"] : undefined;
  if (Array.isArray(said)) return said.map(String);
  // The other dialect says the same in its own words.
  return tool.meta["openai/widgetAccessible"] === true ? ["model", "app"] : [];
}

/** Whether a tool may destroy something. As MCP has it, one that says nothing may. */
export function mayDestroy({ annotations }: Pick<Tool, "annotations">): boolean {
  return annotations["readOnlyHint"] !== true && annotations["destructiveHint"] !== false;
}

/** Call a tool for the widget of a run. Throws an Error where a person said no, or the call cannot be made. */
export async function callForWidget(runId: string, tool: string, args: Params): Promise<Params> {
  const run = runById(runId);
  const text = toJson(args);
  const short = text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}…` : text;
  const known = byName.value.get(tool);
  const destructive = known === undefined || mayDestroy(known);
  const call: WidgetCall = { id: crypto.randomUUID(), tool, args: short, took: null, destructive, status: destructive || asksFirst.value ? "asked" : "running" };
  note(run, call);
  if (call.status === "asked" && !(await new Promise<boolean>((answer) => answers.set(call.id, answer)))) {
    note(run, { ...call, status: "refused" });
    throw new Error(`the person at the page did not allow this call of ${tool}`);
  }
  note(run, { ...call, status: "running" });
  const began = performance.now();
  const end = (status: "done" | "failed"): void => note(run, { ...call, took: performance.now() - began, status });
  try {
    const result = await here.value.request("tools/call", { name: tool, arguments: args }, { meta: { [WIDGET_META]: call.status === "asked" ? "asked" : "unasked" } });
    end(result["isError"] === true ? "failed" : "done");
    return result;
  } catch (error) {
    end("failed");
    throw error;
  }
}

/** Say whether a call that waits may be made. */
export function decide(id: string, allowed: boolean): void {
  answers.get(id)?.(allowed);
  answers.delete(id);
}

/** Calls that wait when their widget goes will never be made. */
export function abandon(runId: string): void {
  for (const { id, status } of runById(runId)?.value.widgetCalls ?? []) if (status === "asked") decide(id, false);
}

function note(run: Signal<Run> | undefined, call: WidgetCall): void {
  if (run === undefined) return;
  const before = run.value.widgetCalls ?? [];
  const known = before.some((each) => each.id === call.id);
  run.value = { ...run.value, widgetCalls: known ? before.map((each) => (each.id === call.id ? call : each)) : [...before, call].slice(-MOST) };
  save(run);
}

/** At once, since the page may be left; but not for each call of a widget that makes very many. */
function save(run: Signal<Run>): void {
  const { id } = run.value;
  const waiting = saving.has(id);
  saving.set(id, waiting);
  if (waiting) return;
  void keepRun(run.value);
  setTimeout(() => {
    const more = saving.get(id) === true;
    saving.delete(id);
    if (more) save(run);
  }, SAVE_MS);
}
