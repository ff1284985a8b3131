/** Files that are being deleted: for a moment with a way back, then for good. They stay so when another view is shown. */
import { computed, signal } from "@preact/signals";
import { files, filesProblem, idOf, remove, type Stored } from "./files";
import { count } from "../texts/numbers";

const UNDO_MS = 8000;
// A browser grants a server few connections; the rest of the page wants some of them.
const AT_ONCE = 3;

export interface Leaving {
  files: Stored[];
  /** How many are gone for good; null while they can be had back. */
  gone: number | null;
}

export const leaving = signal<Leaving[]>([]);
const timers = new Map<Stored[], ReturnType<typeof setTimeout>>();

const leavingIds = computed(() => new Set(leaving.value.flatMap((each) => each.files.map(idOf))));

/** What is kept and is not about to go. */
export const staying = computed(() => (leavingIds.value.size === 0 ? files.value : files.value.filter((file) => !leavingIds.value.has(idOf(file)))));

export function forget(chosen: Stored[]): void {
  leaving.value = [...leaving.value, { files: chosen, gone: null }];
  timers.set(chosen, setTimeout(() => void removed(chosen), UNDO_MS));
}

export function back(chosen: Stored[]): void {
  clearTimeout(timers.get(chosen));
  settled(chosen);
}

async function removed(chosen: Stored[]): Promise<void> {
  const change = (gone: number): void => {
    leaving.value = leaving.value.map((each) => (each.files === chosen ? { ...each, gone } : each));
  };
  let at = 0;
  let gone = 0;
  const problems: string[] = [];
  const work = async (): Promise<void> => {
    for (let file = chosen[at++]; file !== undefined; file = chosen[at++]) {
      try {
        await remove(file);
      } catch (error) {
        problems.push(`${file.filename}: ${(error as Error).message}`);
      }
      gone += 1;
      if (chosen.length === gone || gone % 20 === 0) change(gone);
    }
  };
  change(0);
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (problems.length > 0) filesProblem.value = `${problems.length === 1 ? "A file" : `${count(problems.length)} files`} could not be deleted. ${problems[0] ?? ""}`;
  // The rows go a moment after the last answer; nobody shall see them again in between.
  setTimeout(() => settled(chosen), 200);
}

function settled(chosen: Stored[]): void {
  timers.delete(chosen);
  leaving.value = leaving.value.filter((each) => each.files !== chosen);
}
