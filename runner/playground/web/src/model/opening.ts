/** Opens a saved request where it was made: fills in and runs nothing. */
import { connectionNamed, look } from "./connections";
import { toJson } from "./json";
import { go } from "./route";
import type { Saved } from "./saved";

export function openRequest(request: Saved): void {
  const connection = connectionNamed(request.server);
  if (connection !== undefined) look(connection.id);
  if (request.kind === "resource") go("resources", request.target);
  else go(request.kind === "tool" ? "call" : "prompts", request.target, { args: toJson(request.args, 2) });
}
