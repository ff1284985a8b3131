/** Bytes of an artifact for a viewer, never more than it can show. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { bytes } from "../model/files";
import type { Item } from "./items";

export interface Loaded<T> {
  value: T | null;
  problem: string | null;
}

/** Load with `load` while the component is there; a later item replaces an earlier one. */
export function useLoaded<T>(item: Item, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const state = useSignal<Loaded<T>>({ value: null, problem: null });
  useEffect(() => {
    const abort = new AbortController();
    state.value = { value: null, problem: null };
    load(abort.signal).then(
      (value) => { if (!abort.signal.aborted) state.value = { value, problem: null }; },
      (error: Error) => { if (!abort.signal.aborted) state.value = { value: null, problem: error.message }; },
    );
    return () => abort.abort();
  }, [item.uri]);
  return state.value;
}

/** The address of a blob with the item's bytes; let go of when the viewer goes. */
export function useBlob(item: Item, type: string, most: number): Loaded<string> {
  const loaded = useLoaded(item, async (signal) => {
    if (item.size > most) throw new Error("it is too large to be shown here; download it");
    const data = await (await bytes(item.uri, undefined, signal)).arrayBuffer();
    return URL.createObjectURL(new Blob([data], { type }));
  });
  useEffect(() => () => { if (loaded.value !== null) URL.revokeObjectURL(loaded.value); }, [loaded.value]);
  return loaded;
}

export interface Slice {
  text: string;
  /** Whether there is more behind it. */
  cut: boolean;
}

/** The first `most` bytes as text; a character that was cut in two is left out. */
export async function head(item: Item, most: number, signal: AbortSignal): Promise<Slice> {
  const cut = item.size > most;
  const data = await (await bytes(item.uri, cut ? { from: 0, to: most } : undefined, signal)).arrayBuffer();
  return { text: new TextDecoder("utf-8").decode(data, { stream: cut }), cut };
}
