/** My Files: what the server keeps for this user. */
import { signal } from "@preact/signals";
import { isObject, parseJson, type Json } from "./json";

export interface Stored {
  key: string;
  filename: string;
  content_type: string;
  size: number;
  sha256: string;
  origin: string;
  created: string;
  expires_at: string | null;
  uri: string;
  pending: boolean;
}

export const files = signal<Stored[]>([]);
export const filesProblem = signal<string | null>(null);
export const filesLoaded = signal(false);

export async function loadFiles(): Promise<void> {
  try {
    const body = await asked("/api/files");
    files.value = (isObject(body) && Array.isArray(body["files"]) ? body["files"] : []) as unknown as Stored[];
    filesProblem.value = null;
  } catch (error) {
    filesProblem.value = (error as Error).message;
  } finally {
    filesLoaded.value = true;
  }
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
      const body = read(sending.responseText);
      if (sending.status === 201 && isObject(body)) resolve(body as unknown as Stored);
      else reject(new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${sending.status}`));
      void loadFiles();
    };
    sending.send(file);
  });
}

export async function remove(file: Stored): Promise<void> {
  await asked(`/api/files/${file.key}?filename=${encodeURIComponent(file.filename)}`, { method: "DELETE" });
  await loadFiles();
}

/** Said to whoever comes too late: the server tells nobody why a file is not there. */
export const GONE =
  "it is no longer kept. Files that a tool keeps for later expire, and files can be deleted. Run the tool again to have it made anew";

export function addressOf(uri: string): string {
  return `/artifacts/${encodeURIComponent(uri.replace(/^artifact:\/\//, ""))}`;
}

/** Why a file cannot be had; null where it can. */
export async function missing(uri: string): Promise<string | null> {
  try {
    const response = await fetch(addressOf(uri), { method: "HEAD" });
    return response.ok ? null : response.status === 404 ? GONE : `the server answered HTTP ${response.status}`;
  } catch {
    return "the server cannot be reached; see whether it still runs";
  }
}

/** The bytes of a file, or of a part of it. */
export async function bytes(uri: string, range?: { from: number; to: number }, signal?: AbortSignal): Promise<Response> {
  const response = await fetch(addressOf(uri), {
    headers: range ? { range: `bytes=${range.from}-${range.to - 1}` } : {},
    signal: signal ?? null,
  });
  if (response.status === 404) throw new Error(GONE);
  if (!response.ok) {
    const body = read(await response.text());
    throw new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${response.status}`);
  }
  return response;
}

async function asked(path: string, init: RequestInit = {}): Promise<Json> {
  const response = await fetch(path, init);
  const text = await response.text();
  const body = text === "" ? null : read(text);
  if (!response.ok) throw new Error(isObject(body) && typeof body["error"] === "string" ? body["error"] : `HTTP ${response.status}`);
  return body;
}

function read(text: string): Json {
  try {
    return parseJson(text);
  } catch {
    return null;
  }
}
