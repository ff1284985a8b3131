/** My Files: what the server keeps for this user. */
import { signal } from "@preact/signals";
import { isObject, tryJson, type Json } from "./json";

export interface Stored {
  key: string;
  filename: string;
  content_type: string;
  size: number;
  origin: string;
  created: string;
  expires_at: string | null;
  uri: string;
  pending: boolean;
}

const GONE = "it is no longer kept. Files that a tool keeps for later expire, and files can be deleted. Run the tool again to create it again";

export const files = signal<Stored[]>([]);
export const filesProblem = signal<string | null>(null);
export const filesLoaded = signal(false);

/** What tells a file from all others: equal content has one key under all its names. */
export function idOf(file: { key: string; filename: string }): string {
  return `${file.key} ${file.filename}`;
}

/** Changes that came while a list was on its way, for each such list: it may be older than they are. */
const meanwhile = new Set<Change[]>();

type Change = { came: Stored } | { went: { key: string; filename: string } };

export async function loadFiles(): Promise<void> {
  const during: Change[] = [];
  meanwhile.add(during);
  try {
    const response = await fetch("/api/files");
    // The browser's own reader: ten thousand files are read in no time, and none has a number that it would round.
    const body = (await response.json().catch(() => null)) as Json;
    if (!response.ok) throw new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${response.status}`);
    files.value = changed((isObject(body) && Array.isArray(body["files"]) ? body["files"] : []) as unknown as Stored[], during);
    filesProblem.value = null;
  } catch (error) {
    filesProblem.value = (error as Error).message;
  } finally {
    meanwhile.delete(during);
    filesLoaded.value = true;
  }
}

function changed(list: readonly Stored[], changes: readonly Change[]): Stored[] {
  const by = new Map(list.map((file) => [idOf(file), file]));
  for (const change of changes) {
    if ("came" in change) by.set(idOf(change.came), change.came);
    else by.delete(idOf(change.went));
  }
  return [...by.values()];
}

let waiting: Change[] = [];

/** Put changes into the list: those of one moment at once, so that a hundred of them draw it once. */
function change(one: Change): void {
  for (const during of meanwhile) during.push(one);
  waiting.push(one);
  if (waiting.length > 1) return;
  setTimeout(() => {
    files.value = changed(files.value, waiting);
    waiting = [];
  }, 50);
}

/** A file came or was changed: its row is put in place. */
export function came(file: Stored): void {
  change({ came: file });
}

/** A file went: its row goes. */
export function went(file: { key: string; filename: string }): void {
  change({ went: file });
}

/** Read the event of a file that came or went. Of another session's files only the list knows whether they are ours. */
export function heard(told: { [key: string]: Json }, gone: boolean): void {
  const artifact = told["artifact"];
  if (!isObject(artifact) || told["of_session"] === true) {
    void loadFiles();
    return;
  }
  const key = String(artifact["id"]);
  const filename = String(artifact["filename"] ?? key);
  if (gone) {
    went({ key, filename });
    return;
  }
  const expires = told["expires_at"];
  came({
    key, filename,
    content_type: String(told["content_type"] ?? ""),
    size: Number(artifact["size_bytes"] ?? 0),
    origin: String(told["origin"] ?? ""),
    created: String(told["created"] ?? ""),
    expires_at: typeof expires === "string" ? expires : null,
    uri: String(told["uri"] ?? ""),
    pending: told["pending"] === true,
  });
}

/** Send a file; `onProgress` hears a part between 0 and 1. Throws an Error that says what is wrong. */
export function upload(file: File, onProgress: (part: number) => void = () => undefined): Promise<Stored> {
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.open("PUT", `/api/files?filename=${encodeURIComponent(file.name)}`);
    if (file.type !== "") sending.setRequestHeader("content-type", file.type);
    sending.upload.onprogress = (event) => onProgress(event.lengthComputable ? event.loaded / event.total : 0);
    sending.onerror = () => reject(new Error("the connection was lost; send the file again, nothing is kept twice"));
    sending.onload = () => {
      const body = tryJson(sending.responseText);
      if (sending.status === 201 && isObject(body)) {
        came(body as unknown as Stored);
        resolve(body as unknown as Stored);
      }
      else reject(new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${sending.status}`));
    };
    sending.send(file);
  });
}

export async function remove(file: Stored): Promise<void> {
  await asked(`/api/files/${file.key}?filename=${encodeURIComponent(file.filename)}`, { method: "DELETE" });
  went(file);
}

/** Bytes that came in a message and are stored nowhere, by addresses of this page's own. */
const held = new Map<string, Uint8Array<ArrayBuffer>>();
const HELD = "held:";

/** Give a text, or bytes in base64, an address for the viewers. Throws an Error where it is not base64. */
export function hold(content: { text: string } | { base64: string }): { uri: string; size: number } {
  const data = "text" in content ? new TextEncoder().encode(content.text) : Uint8Array.from(atob(content.base64), (char) => char.charCodeAt(0));
  const uri = `${HELD}${crypto.randomUUID()}`;
  held.set(uri, data);
  return { uri, size: data.length };
}

export function letGo(uri: string): void {
  held.delete(uri);
}

export function isHeld(uri: string): boolean {
  return uri.startsWith(HELD);
}

export function addressOf(uri: string): string {
  return `/artifacts/${encodeURIComponent(uri.replace(/^artifact:\/\//, ""))}`;
}

/** Why a file cannot be had; null where it can. */
export async function missing(uri: string): Promise<string | null> {
  if (isHeld(uri)) return held.has(uri) ? null : GONE;
  try {
    const response = await fetch(addressOf(uri), { method: "HEAD" });
    return response.ok ? null : response.status === 404 ? GONE : `the server answered HTTP ${response.status}`;
  } catch {
    return "can't reach the server; check that it is running";
  }
}

/** The bytes of a file, or of a part of it. */
export async function bytes(uri: string, range?: { from: number; to: number }, signal?: AbortSignal): Promise<Response> {
  if (isHeld(uri)) {
    const data = held.get(uri);
    if (data === undefined) throw new Error(GONE);
    return new Response(range ? data.slice(range.from, range.to) : data);
  }
  const response = await fetch(addressOf(uri), {
    headers: range ? { range: `bytes=${range.from}-${range.to - 1}` } : {},
    signal: signal ?? null,
  });
  if (response.status === 404) throw new Error(GONE);
  if (!response.ok) {
    const body = tryJson(await response.text());
    throw new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${response.status}`);
  }
  return response;
}

/** A temporary address that gives any holder the file. */
export async function linkTo(key: string): Promise<string> {
  const body = await asked(`/api/files/${encodeURIComponent(key)}/link`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  const url = isObject(body) ? body["url"] : undefined;
  if (typeof url !== "string") throw new Error("the server gave no address");
  return new URL(url, location.href).href;
}

/** Hand the browser something to save. */
export function save(href: string, name: string): void {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  link.click();
}

async function asked(path: string, init: RequestInit = {}): Promise<Json> {
  const response = await fetch(path, init);
  const body = tryJson(await response.text());
  if (!response.ok) throw new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${response.status}`);
  return body;
}
