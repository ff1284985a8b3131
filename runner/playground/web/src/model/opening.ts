/** Opens a saved request: fills in and runs nothing. */
import { toJson } from "./json";
import { go } from "./route";
import type { Saved } from "./saved";

export function openRequest(request: Saved): void {
  if (request.kind === "resource") go("resources", request.target);
  else go(request.kind === "tool" ? "call" : "prompts", request.target, { args: toJson(request.args, 2) });
}
