/** What waits for a person in a view that nobody may be looking at: the question of a tool. */
import { computed } from "@preact/signals";
import { route } from "./route";
import { runs } from "./runs";
import { tools } from "./tools";

/** The tool whose run asks; null where none does. */
const asking = computed(() => runs.value.find(({ value }) => value.status === "running" && value.question !== null)?.value.tool ?? null);

/** What the address of a view goes on with, to come to what waits there; null where nothing waits, or it is in sight. */
export function waitingIn(view: string): string | null {
  const rest = view === "call" ? asking.value : null;
  if (rest === null) return null;
  const looked = route.value.view === "call" && route.value.rest === "" ? (tools.value[0]?.name ?? "") : route.value.rest;
  return route.value.view === view && looked === rest ? null : rest;
}
