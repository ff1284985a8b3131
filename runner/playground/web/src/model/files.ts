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

export async function loadFiles(): Promise<void> {
  try {
    const body = await asked("/api/files");
    files.value = (isObject(body) && Array.isArray(body["files"]) ? body["files"] : []) as unknown as Stored[];
    filesProblem.value = null;
  } catch (error) {
    filesProblem.value = (error as Error).message;
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

/** The bytes of a file, or of a part of it. */
export async function bytes(uri: string, range?: { from: number; to: number }, signal?: AbortSignal): Promise<Response> {
  const id = uri.replace(/^artifact:\/\//, "");
  const response = await fetch(`/artifacts/${encodeURIComponent(id)}`, {
    headers: range ? { range: `bytes=${range.from}-${range.to - 1}` } : {},
    signal: signal ?? null,
  });
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
