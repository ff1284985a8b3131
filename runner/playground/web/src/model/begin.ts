/** What a page does once it is inside: load what it shows, and listen while it is seen. */
import { computed, effect } from "@preact/signals";
import { door } from "./info";
import { hearNews, seen } from "./news";
import { followed, loadResources, stay } from "./resources";
import { loadRuns } from "./runs";
import { loadTools } from "./tools";

/** While somebody is inside and looks. After a session has ended there is nothing to be heard until the next. */
const listens = computed(() => door.value.state === "open" && seen.value);

let begun = false;

export async function begin(): Promise<void> {
  if (door.value.state !== "open") return;
  await Promise.all([loadTools(), loadRuns()]);
  if (begun) return;
  begun = true;
  effect(() => (listens.value ? hearNews() : undefined));
  effect(() => {
    if (!listens.value) return undefined;
    const uris = followed.value;
    const abort = new AbortController();
    void stay(uris, abort.signal);
    return () => abort.abort();
  });
  let hidden = false;
  effect(() => {
    if (!seen.value) hidden = true;
    // While it was hidden the page heard of nothing.
    else if (hidden) void Promise.all([loadTools(), loadResources()]);
  });
}
