/** What outlives a reload: runs in IndexedDB, drafts and tastes in localStorage. A browser may refuse both. */
import type { Run } from "./runs";
import { info } from "./info";

const DATABASE = "toolcell-playground";
const STORE = "runs";
const MAX_KEPT_CHARS = 4_000_000;

let opened: Promise<IDBDatabase | null> | undefined;

function database(): Promise<IDBDatabase | null> {
  opened ??= new Promise((resolve) => {
    let asked: IDBOpenDBRequest;
    try {
      asked = indexedDB.open(DATABASE, 1);
    } catch {
      resolve(null);
      return;
    }
    asked.onupgradeneeded = () => {
      const store = asked.result.createObjectStore(STORE, { keyPath: "id" });
      store.createIndex("owner", ["owner", "began"]);
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => resolve(null);
    asked.onblocked = () => resolve(null);
  });
  return opened;
}

// One browser may know several servers and users; each sees its own.
function owner(): string {
  return `${info.value?.name ?? ""} ${info.value?.user ?? ""}`;
}

export async function keepRun(run: Run): Promise<void> {
  const db = await database();
  if (db === null) return;
  const kept = size(run) > MAX_KEPT_CHARS ? { ...run, wire: [] } : run;
  await done(db.transaction(STORE, "readwrite").objectStore(STORE).put({ ...kept, owner: owner() }));
}

export async function forgetRuns(): Promise<void> {
  const db = await database();
  if (db === null) return;
  const store = db.transaction(STORE, "readwrite").objectStore(STORE);
  const keys = (await done(store.index("owner").getAllKeys(ofOwner()))) as IDBValidKey[] | undefined;
  for (const key of keys ?? []) store.delete(key);
}

export async function keptRuns(most: number): Promise<Run[]> {
  const db = await database();
  if (db === null) return [];
  const index = db.transaction(STORE).objectStore(STORE).index("owner");
  const all = ((await done(index.getAll(ofOwner()))) as Run[] | undefined) ?? [];
  return all.reverse().slice(0, most);
}

function ofOwner(): IDBKeyRange {
  return IDBKeyRange.bound([owner(), 0], [owner(), Number.MAX_SAFE_INTEGER]);
}

function done(asked: IDBRequest): Promise<unknown> {
  return new Promise((resolve) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => resolve(undefined);
  });
}

function size(run: Run): number {
  return run.wire.reduce((sum, wire) => sum + roughly(wire.message), 0);
}

function roughly(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 8;
  return Object.values(value).reduce((sum: number, each) => sum + roughly(each), 0);
}

/** A value that outlives a reload, where the browser allows it. */
export function recall(key: string): string | null {
  try {
    return localStorage.getItem(`toolcell ${key}`);
  } catch {
    return null;
  }
}

/** The name of a value that each user of this browser has on their own. */
export function byUser(key: string): string {
  return `${key} ${info.value?.user ?? ""}`;
}

export function remember(key: string, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(`toolcell ${key}`);
    else localStorage.setItem(`toolcell ${key}`, value);
  } catch {
    // A browser that keeps nothing shows the page all the same.
  }
}
