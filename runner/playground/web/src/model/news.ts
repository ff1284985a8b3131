/**
 * What the server tells its pages: that tools were reloaded, that files came or went. The stream is open while the
 * page is seen: a browser grants one server few connections, and hidden pages would use them up.
 */
import { signal } from "@preact/signals";
import { loadProblems } from "./connections";
import { filesLoaded, heard, loadFiles } from "./files";
import { refresh } from "./info";
import { isObject, tryJson, type Json } from "./json";
import type { Params } from "./connection";
import { runById, showMeanwhile } from "./runs";
import { loadTools } from "./tools";

export interface Reload {
  changed: string[];
  /** Why the changed files could not be loaded; null where they were. */
  error: string | null;
}

export const reload = signal<Reload | null>(null);

/** What a call made that another client of this user began. */
export interface Elsewhere {
  tool: string;
  files: Params[];
  notification: string | null;
}

export const elsewhere = signal<Elsewhere | null>(null);

/** Whether somebody can see the page. */
export const seen = signal(document.visibilityState !== "hidden");

document.addEventListener("visibilitychange", () => {
  seen.value = document.visibilityState !== "hidden";
});

/** Whether the stream of news is lost and asked for again. */
export const isLost = signal(false);

const AGAIN_MS = 700;
const MOST_MS = 30_000;

/** Listen, and return what stops it. Where the stream breaks, ask until the server is back, and load what is shown again. */
export function hearNews(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isOver = false;
  /** Grows where the server answers and gives no stream. */
  let wait = AGAIN_MS;
  let stop = listen(opened, lost);
  function opened(): void {
    if (isLost.value) void Promise.all([loadTools(), loadProblems()]);
    isLost.value = false;
    wait = AGAIN_MS;
  }
  function lost(): void {
    stop();
    isLost.value = true;
    timer = setTimeout(() => void again(), wait);
  }
  async function again(): Promise<void> {
    const isBack = await refresh();
    if (isOver) return;
    if (isBack) {
      wait = Math.min(MOST_MS, wait * 2);
      stop = listen(opened, lost);
    } else lost();
  }
  return () => {
    isOver = true;
    clearTimeout(timer);
    isLost.value = false;
    stop();
  };
}

function listen(opened: () => void, lost: () => void): () => void {
  const source = new EventSource("/events");
  const on = (event: string, act: (told: Params) => void): void => source.addEventListener(event, ({ data }: MessageEvent<string>) => {
    const told = tryJson(data);
    act(isObject(told) ? told : {});
  });
  on("tools_reloaded", ({ changed, error }) => {
    reload.value = { changed: Array.isArray(changed) ? changed.map(String) : [], error: typeof error === "string" ? error : null };
    void loadTools();
  });
  on("playground_servers", () => void loadProblems());
  on("artifact_stored", (told) => heard(told, false));
  on("artifact_removed", (told) => heard(told, true));
  // Nothing is repeated: what happened before the stream was there, or was dropped from it, only the list knows.
  const again = (): void => { if (filesLoaded.value) void loadFiles(); };
  source.addEventListener("open", () => { opened(); again(); });
  source.addEventListener("error", lost);
  source.addEventListener("events_missed", again);
  on("canvas_content", ({ content, progress_token: token }) => {
    if (typeof content === "string") showMeanwhile(token, { canvas: { html: content } });
    else if (isObject(content) && typeof content["uri"] === "string") showMeanwhile(token, { canvas: { uri: content["uri"], size: Number(content["size"] ?? 0) } });
  });
  on("progress_artifacts", (told) => showMeanwhile(told["progress_token"], { soFar: listOf(told["artifacts"]) }));
  on("canvas_files", (told) => {
    if (runById(String(told["progress_token"])) === undefined) elsewhere.value = { tool: String(told["tool"] ?? ""), files: listOf(told["files"]), notification: null };
  });
  on("notification", (told) => {
    if (runById(String(told["progress_token"])) !== undefined) return;
    const files = elsewhere.value?.tool === told["tool"] ? elsewhere.value?.files ?? [] : [];
    elsewhere.value = { tool: String(told["tool"] ?? ""), files, notification: String(told["message"] ?? "") };
  });
  return () => source.close();
}

function listOf(value: Json | undefined): Params[] {
  return Array.isArray(value) ? value.filter(isObject) : [];
}
