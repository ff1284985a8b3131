/** Read what came from elsewhere without trusting its shape. */

import type { CallState, Dict, DisplayMode, Insets, Theme, ToolResult, Values } from "./types.ts";

export function isDict(value: unknown): value is Dict {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An own property, never one of the prototype: data may carry names such as `constructor`. */
export function own(value: unknown, key: string): unknown {
  return isDict(value) && Object.prototype.hasOwnProperty.call(value, key) ? value[key] : undefined;
}

export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function finite(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

export function asTheme(value: unknown): Theme | undefined {
  return value === "light" || value === "dark" ? value : undefined;
}

export function asDisplayMode(value: unknown): DisplayMode | undefined {
  return value === "inline" || value === "pip" || value === "fullscreen" ? value : undefined;
}

export function asInsets(value: unknown): Insets | undefined {
  if (!isDict(value)) return undefined;
  const side = (name: string): number => Math.max(0, finite(own(value, name)) ?? 0);
  return { top: side("top"), right: side("right"), bottom: side("bottom"), left: side("left") };
}

/** Whether a result tells the host to close the widget. Hosts differ in where they put it. */
export function asksToClose(result: unknown): boolean {
  return ["_meta", "metadata"].some((place) => own(own(result, place), "openai/closeWidget") === true);
}

/** The metadata of a result, where a host handed over the whole result as well. */
export function metadataOf(value: unknown): Dict | null {
  const inner = own(value, "_meta");
  if (isDict(inner)) return inner;
  return isDict(value) ? value : null;
}

/** The structured content of a result; else a text of it that is JSON; else the text. */
export function outputOf(result: ToolResult): unknown {
  const structured = own(result, "structuredContent");
  if (structured !== undefined && structured !== null) return structured;
  const texts = textsOf(result);
  for (const one of texts) {
    const parsed = parsedJson(one);
    if (parsed !== undefined) return parsed;
  }
  return texts[0] === undefined ? null : { text: texts[0] };
}

/** The words of a result, for people. */
export function textsOf(result: unknown): string[] {
  const content = own(result, "content");
  if (!Array.isArray(content)) return [];
  return content.map((block: unknown) => (own(block, "type") === "text" ? text(own(block, "text")) : "")).filter(Boolean);
}

/** What a whole result means to a widget. */
export function valuesOf(result: unknown): Partial<Values> & { call: CallState } {
  if (!isDict(result)) return { toolOutput: null, call: { state: "failed", message: "" } };
  const failed = own(result, "isError") === true;
  return {
    toolOutput: failed ? null : outputOf(result),
    toolResponseMetadata: metadataOf(own(result, "_meta") ?? own(result, "metadata")),
    call: failed ? { state: "failed", message: textsOf(result).join("\n") } : { state: "done", message: "" },
  };
}

/** A whole result where only its output was due: some hosts give that to `toolOutput`. */
export function isWholeResult(value: unknown): value is ToolResult {
  return isDict(value) && Array.isArray(own(value, "content")) && ("structuredContent" in value || "isError" in value);
}

function parsedJson(source: string): unknown {
  if (!/^\s*[{[]/.test(source)) return undefined;
  try {
    return JSON.parse(source) as unknown;
  } catch {
    return undefined;
  }
}
