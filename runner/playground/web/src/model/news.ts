/**
 * What the server tells its pages: that tools were loaded anew, that files came or went. The stream is open while the
 * page is seen: a browser grants one server few connections, and hidden pages would use them up.
 */
import { signal } from "@preact/signals";
import { loadFiles } from "./files";
import { isObject, parseJson, type Json } from "./json";
import { loadTools } from "./tools";

export interface Reload {
  changed: string[];
  /** Why the changed files could not be loaded; null where they were. */
  error: string | null;
}

export const reload = signal<Reload | null>(null);

/** Whether somebody can see the page. */
export const seen = signal(document.visibilityState !== "hidden");

document.addEventListener("visibilitychange", () => {
  seen.value = document.visibilityState !== "hidden";
});

/** Listen, and return what stops it. */
export function hearNews(): () => void {
  const source = new EventSource("/events");
  source.addEventListener("tools_reloaded", (event: MessageEvent<string>) => {
    const told = read(event.data);
    const changed = told["changed"];
    reload.value = {
      changed: Array.isArray(changed) ? changed.map(String) : [],
      error: typeof told["error"] === "string" ? told["error"] : null,
    };
    void loadTools();
  });
  source.addEventListener("files_update", () => void loadFiles());
  return () => source.close();
}

function read(text: string): { [key: string]: Json } {
  try {
    const value = parseJson(text);
    return isObject(value) ? value : {};
  } catch {
    return {};
  }
}
