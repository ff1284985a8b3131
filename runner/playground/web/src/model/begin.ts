/** What a page does once it is inside: load what it shows, and listen while it is seen. */
import { computed, effect, untracked } from "@preact/signals";
import { Connection } from "./connection";
import { here, loadProblems } from "./connections";
import { hasSessions } from "./eras";
import { door } from "./info";
import { hearNews, seen } from "./news";
import { loadPrompts, prompts } from "./prompts";
import { ask } from "./questions";
import { follow, followed, hear, loadResources, resources, stay, templates, updated } from "./resources";
import { route } from "./route";
import { loadRuns } from "./runs";
import { loadTools, tools, toolsLoading, toolsProblem } from "./tools";

/** While somebody is inside and looks. After a session has ended there is nothing to be heard until the next. */
const listens = computed(() => door.value.state === "open" && seen.value);

Connection.asked = ask;
Connection.heard = hear;

let begun = false;

export async function begin(): Promise<void> {
  if (door.value.state !== "open") return;
  await Promise.all([loadProblems(), loadRuns()]);
  if (begun) {
    await Promise.all([loadTools(), loadPrompts(), loadResources()]);
    return;
  }
  begun = true;
  // In another era all that it offers is another.
  effect(() => {
    void here.value;
    untracked(() => void met());
  });
  effect(() => (listens.value ? hearNews() : undefined));
  effect(() => {
    if (!listens.value) return undefined;
    const connection = here.value;
    if (connection.state.value !== "up") return undefined;
    // With sessions each is subscribed to by a request of its own, and again in a new session; the stream is one for all.
    if (hasSessions(connection.era)) untracked(() => followed.value.forEach((uri) => void follow(uri, true)));
    const uris = hasSessions(connection.era) ? [] : followed.value;
    const abort = new AbortController();
    void stay(connection, uris, abort.signal);
    return () => abort.abort();
  });
  let hidden = false;
  effect(() => {
    if (!seen.value) hidden = true;
    // While it was hidden the page heard of nothing.
    else if (hidden) untracked(() => void Promise.all([loadTools(), loadResources(), loadProblems()]));
  });
}

async function met(): Promise<void> {
  const connection = here.value;
  tools.value = [];
  prompts.value = [];
  resources.value = [];
  templates.value = [];
  updated.value = new Set();
  toolsLoading.value = true;
  toolsProblem.value = null;
  // Without an answer to this the lists are asked for all the same, and say what is wrong.
  await Promise.all([
    connection.state.value === "up" ? undefined : connection.meet().catch(() => undefined),
    loadTools(),
    // Who looks at these already has asked before the server was there, or for what is forgotten above.
    route.value.view === "prompts" ? loadPrompts() : undefined,
    route.value.view === "resources" ? loadResources() : undefined,
  ]);
}
