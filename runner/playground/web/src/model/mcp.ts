/** Requests to the server that is looked at. How they go over the wire is `connection.ts`; which server it is, `connections.ts`. */
import { here } from "./connections";
import { isObject, type Json } from "./json";
import type { Connection, Params, Watching } from "./connection";

export { McpError, SessionEnded, type Params, type Watching, type Wire } from "./connection";

export function request(method: string, params: Params = {}, watching: Watching = {}): Promise<Params> {
  return (watching.connection ?? here.value).request(method, params, watching);
}

/** Ask for all pages of a list. */
export async function listAll(method: string, key: string, connection: Connection = here.value): Promise<Params[]> {
  const found: Params[] = [];
  let cursor: Json | undefined;
  do {
    const page = await connection.request(method, cursor === undefined ? {} : { cursor });
    const items = page[key];
    if (Array.isArray(items)) found.push(...items.filter(isObject));
    cursor = page["nextCursor"] ?? undefined;
  } while (cursor !== undefined && found.length < 5000);
  return found;
}
