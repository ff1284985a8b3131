/** What this page knows of its server, and the ways in. */
import { computed, signal } from "@preact/signals";
import type { Json } from "./json";

export interface Deadlines {
  idle_s: number;
  total_s: number;
}

export interface Info {
  name: string;
  kind: "tools" | "proxy";
  /** The servers behind a proxy, by the names with which what they offer begins. */
  servers: string[];
  tier: string;
  user: string;
  login: boolean;
  /** Whether users log in at a provider. */
  provider: boolean;
  deadlines: Deadlines;
  tools: Record<string, { deadlines: Deadlines }>;
  upload_max_bytes: number;
  user_max_bytes: number;
  /** The second origin, on which what tools made is shown; null where there is none. */
  frames: string | null;
}

export type Door =
  | { state: "opening" }
  | { state: "open" }
  | { state: "closed"; login: boolean; provider: boolean; why: string };

/** Where a browser is sent to log in, where users do that at a provider. */
export const LOGIN = "/play/login";

/** Whether the page asks if it is to log out. */
export const leaves = signal(false);

export const info = signal<Info | null>(null);
/** Who is inside; null at the door. */
export const user = computed(() => info.value?.user ?? null);
export const door = signal<Door>({ state: "opening" });

export async function enter(): Promise<void> {
  try {
    const response = await fetch("/play/info", { headers: { accept: "application/json" } });
    const body = (await response.json()) as Record<string, Json>;
    if (!response.ok) {
      const why = String(body["error"] ?? `HTTP ${response.status}`);
      const provider = why.includes(LOGIN);
      // A person who just came back from there, or has left, is asked first.
      if (provider && location.search === "") location.replace(LOGIN);
      else door.value = { state: "closed", login: provider || why.includes("token"), provider, why };
      return;
    }
    info.value = body as unknown as Info;
    door.value = { state: "open" };
    // How one came in says nothing any more.
    if (location.search !== "") history.replaceState(null, "", location.pathname + location.hash);
  } catch (error) {
    door.value = { state: "closed", login: false, provider: false, why: `can't reach the server: ${String(error)}` };
  }
}

/** Ask again who the server is, after it was gone. Returns whether it answers. */
export async function refresh(): Promise<boolean> {
  try {
    const response = await fetch("/play/info", { headers: { accept: "application/json" } });
    if (response.status === 401 || response.status === 403) await enter();
    else if (!response.ok) return false;
    else {
      const body = (await response.json()) as Info;
      // The policy of this page names the second origin that there was.
      if (body.frames !== info.value?.frames) location.reload();
      else if (JSON.stringify(body) !== JSON.stringify(info.value)) info.value = body;
    }
    return true;
  } catch {
    return false;
  }
}

/** Begin a session with a token, which is kept nowhere. Returns what is wrong, or null. */
export async function login(token: string): Promise<string | null> {
  const response = await fetch("/api/session", { method: "POST", headers: { authorization: `Bearer ${token}` } });
  if (!response.ok) {
    const body = (await response.json().catch(() => ({}))) as Record<string, Json>;
    return String(body["error"] ?? body["error_description"] ?? `the server refused this token (HTTP ${response.status})`);
  }
  await enter();
  return null;
}

/** End this browser's session, for all its tabs; with `forgets`, have the browser delete what the page keeps. Returns what is wrong, or null. */
export async function logout(forgets: boolean): Promise<string | null> {
  try {
    const response = await fetch(`/api/session${forgets ? "" : "?keep"}`, { method: "DELETE" });
    // Ended elsewhere already: what is wanted is so.
    if (response.ok || response.status === 401) {
      // A page from the start: nothing of this user stays in it for the next.
      location.replace("/?left");
      return null;
    }
    const body = (await response.json().catch(() => ({}))) as Record<string, Json>;
    return String(body["error"] ?? `the server did not end this session (HTTP ${response.status})`);
  } catch (error) {
    return `can't reach the server: ${String(error)}`;
  }
}

export function deadlinesOf(tool: string): Deadlines {
  const known = info.value;
  return known?.tools[tool]?.deadlines ?? known?.deadlines ?? { idle_s: 30, total_s: 600 };
}
