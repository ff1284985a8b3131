/** Check what a widget asks for before any host hears of it. */

import { asDisplayMode, finite, isDict, own } from "./read.ts";
import type { Dict, DisplayMode } from "./types.ts";

const LINKS = new Set(["http:", "https:", "mailto:"]);

/** An absolute http, https or mailto address without credentials, which say one host and mean another; `undefined` for anything else. */
export function safeHref(value: unknown): string | undefined {
  if (typeof value !== "string") return undefined;
  try {
    const url = new URL(value.trim());
    return LINKS.has(url.protocol) && url.username === "" && url.password === "" ? url.href : undefined;
  } catch {
    return undefined;
  }
}

export function wantedHref(link: unknown): string {
  const given = typeof link === "string" ? link : own(link, "href");
  const href = safeHref(given);
  if (href === undefined) throw new TypeError(`openExternal needs an http, https or mailto address without a user name, got ${show(given)}`);
  return href;
}

export function wantedMode(wish: unknown): DisplayMode {
  const given = typeof wish === "string" ? wish : own(wish, "mode");
  const mode = asDisplayMode(given);
  if (mode === undefined) throw new TypeError(`requestDisplayMode needs inline, pip or fullscreen, got ${show(given)}`);
  return mode;
}

export function wantedHeight(height: unknown): number {
  const given = isDict(height) ? own(height, "height") : height;
  const pixels = finite(given);
  if (pixels === undefined || pixels < 0) {
    throw new TypeError(`notifyIntrinsicHeight needs a height in pixels, got ${show(given)}`);
  }
  return Math.ceil(pixels);
}

export function wantedPrompt(message: unknown): string {
  const given = typeof message === "string" ? message : own(message, "prompt");
  if (typeof given !== "string" || given.trim() === "") {
    throw new TypeError(`sendFollowUpMessage needs a prompt, got ${show(given)}`);
  }
  return given;
}

export function wantedCall(name: unknown, args: unknown): { name: string; arguments: Dict } {
  if (typeof name !== "string" || name === "") throw new TypeError(`callTool needs the name of a tool, got ${show(name)}`);
  if (args !== undefined && args !== null && !isDict(args)) {
    throw new TypeError(`callTool needs an object of arguments, got ${show(args)}`);
  }
  return { name, arguments: args ?? {} };
}

export function wantedFile(file: unknown): Blob {
  if (!(file instanceof Blob)) throw new TypeError(`uploadFile needs a File, got ${show(file)}`);
  return file;
}

export function wantedFileId(file: unknown): string {
  const given = typeof file === "string" ? file : own(file, "fileId");
  if (typeof given !== "string" || given === "") throw new TypeError(`getFileDownloadUrl needs a fileId, got ${show(given)}`);
  return given;
}

function show(value: unknown): string {
  return (JSON.stringify(value) ?? String(value)).slice(0, 80);
}
