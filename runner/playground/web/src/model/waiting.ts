/** What waits for a person in a view that nobody may be looking at: the question of a tool. */
import { computed, type ReadonlySignal } from "@preact/signals";
import { here } from "./connections";
import { route } from "./route";
import { runs, type Run } from "./runs";
import { tools } from "./tools";

type Place = "call" | "history";

/** Where a question of a run is answered. What another server was asked stands in the history alone. */
function placeOf(run: Run): Place {
  return (run.server ?? here.value.name) === here.value.name ? "call" : "history";
}

/** The run that asks in a place, as the address of the view has it; null where none does. */
function asking(place: Place): ReadonlySignal<string | null> {
  return computed(() => {
    const run = runs.value.find(({ value }) => value.status === "running" && value.question !== null && placeOf(value) === place)?.value;
    if (run === undefined) return null;
    return { call: run.tool, history: run.id }[place];
  });
}

const inCall = asking("call");
const inHistory = asking("history");

/** What the address of a view goes on with, to come to what waits there; null where nothing waits, or it is in sight. */
export function waitingIn(view: string): string | null {
  const rest = { call: inCall.value, history: inHistory.value }[view] ?? null;
  if (rest === null) return null;
  const looked = route.value.view === "call" && route.value.rest === "" ? (tools.value[0]?.name ?? "") : route.value.rest;
  return route.value.view === view && looked === rest ? null : rest;
}
