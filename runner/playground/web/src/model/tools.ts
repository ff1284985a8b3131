/** The tools of the server, as its list gives them. */
import { computed, signal } from "@preact/signals";
import { isObject, type Json } from "./json";
import { here, listAll } from "./connections";
import type { Params } from "./connection";

export type Schema = { [key: string]: Json };

export type Badge = "read-only" | "destructive" | "network" | "widget" | "files";

export interface Tool {
  name: string;
  title: string;
  description: string;
  inputSchema: Schema;
  outputSchema: Schema | null;
  annotations: Params;
  meta: Params;
  /** What else the server says of it: icons, execution. */
  more: Params;
  badges: Badge[];
}

export const tools = signal<Tool[]>([]);
export const toolsProblem = signal<string | null>(null);
export const toolsLoading = signal(true);
export const byName = computed(() => new Map(tools.value.map((tool) => [tool.name, tool])));

export async function loadTools(): Promise<void> {
  const connection = here.value;
  toolsLoading.value = true;
  try {
    const listed = (await listAll("tools/list", "tools", connection)).map(asTool);
    if (connection !== here.value) return;
    tools.value = listed;
    toolsProblem.value = null;
  } catch (error) {
    if (connection !== here.value) return;
    toolsProblem.value = error instanceof Error ? error.message : String(error);
  } finally {
    if (connection === here.value) toolsLoading.value = false;
  }
}

function asTool(given: Params): Tool {
  const annotations = isObject(given["annotations"]) ? given["annotations"] : {};
  const meta = isObject(given["_meta"]) ? given["_meta"] : {};
  const name = String(given["name"]);
  return {
    name,
    title: String(given["title"] ?? annotations["title"] ?? name),
    description: String(given["description"] ?? ""),
    inputSchema: isObject(given["inputSchema"]) ? given["inputSchema"] : {},
    outputSchema: isObject(given["outputSchema"]) ? given["outputSchema"] : null,
    annotations,
    meta,
    more: Object.fromEntries(Object.entries(given).filter(([key]) => !KNOWN.includes(key))),
    badges: badges(annotations, meta, given),
  };
}

const KNOWN = ["name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta"];

function badges(annotations: Params, meta: Params, given: Params): Badge[] {
  const found: Badge[] = [];
  const properties = isObject(given["inputSchema"]) ? given["inputSchema"]["properties"] : null;
  const takes = isObject(properties) ? Object.keys(properties) : [];
  if (annotations["readOnlyHint"] === true) found.push("read-only");
  else if (annotations["destructiveHint"] === true) found.push("destructive");
  if (annotations["openWorldHint"] === true) found.push("network");
  if (widgetOf(meta) !== null) found.push("widget");
  if (takes.some((key) => ["filename", "filenames", "file_names"].includes(key))) found.push("files");
  return found;
}

/** The widget that shows results of a tool, as its `_meta` names it. */
export function widgetOf(meta: Params): string | null {
  const ui = meta["ui"];
  const uri = (isObject(ui) ? ui["resourceUri"] : undefined) ?? meta["ui/resourceUri"] ?? meta["openai/outputTemplate"];
  return typeof uri === "string" ? uri : null;
}
