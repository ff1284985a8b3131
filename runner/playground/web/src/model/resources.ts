/** Resources of the server, templates, and which of them the page listens to. */
import { signal } from "@preact/signals";
import { here, listAll } from "./connections";
import { Connection, type Params } from "./connection";
import { hasSessions } from "./eras";
import { isObject } from "./json";
import { isUnknown, loadPrompts } from "./prompts";
import { requestAnswered } from "./questions";
import { serverOfUri } from "./servers";
import { loadTools } from "./tools";

export interface Resource {
  uri: string;
  title: string;
  description: string;
  mimeType: string | null;
  size: number | null;
  annotations: Params;
  /** The server behind a proxy that offers it; empty for the server's own. */
  server: string;
}

export const resources = signal<Resource[]>([]);
export interface ResourceTemplate {
  uriTemplate: string;
  name: string;
  description: string;
  server: string;
}

export const templates = signal<ResourceTemplate[]>([]);
export const resourcesProblem = signal<string | null>(null);
export const resourcesLoading = signal(true);
export const followed = signal<string[]>([]);
export const updated = signal<ReadonlySet<string>>(new Set());

export async function loadResources(): Promise<void> {
  const connection = here.value;
  try {
    const [listed, shaped] = await Promise.all([
      listAll("resources/list", "resources", connection),
      listAll("resources/templates/list", "resourceTemplates", connection),
    ]);
    if (connection !== here.value) return;
    resources.value = listed.map(asResource);
    templates.value = shaped.map((each) => ({
      uriTemplate: String(each["uriTemplate"]),
      name: String(each["name"] ?? each["uriTemplate"]),
      description: String(each["description"] ?? ""),
      server: serverOfUri(String(each["uriTemplate"])),
    }));
    resourcesProblem.value = null;
  } catch (error) {
    if (connection !== here.value) return;
    resources.value = [];
    templates.value = [];
    resourcesProblem.value = isUnknown(error) ? null : (error as Error).message;
  } finally {
    resourcesLoading.value = false;
  }
}

/** Read a resource; `marked` says that it stays marked as changed. */
export async function readResource(uri: string, marked = false): Promise<Params[]> {
  const result = await requestAnswered(here.value, "resources/read", { uri });
  if (!marked) updated.value = new Set([...updated.value].filter((each) => each !== uri));
  return Array.isArray(result["contents"]) ? result["contents"].filter(isObject) : [];
}

/** Subscribe to a resource, or no longer. Not every resource announces changes: until the server agrees it is not followed. An unfollowed one goes before the answer: a new session would renew it. */
export async function follow(uri: string, on: boolean): Promise<void> {
  let follows = on;
  if (!on) followed.value = followed.value.filter((each) => each !== uri);
  try {
    if (hasSessions(here.value.era)) await here.value.request(on ? "resources/subscribe" : "resources/unsubscribe", { uri });
    resourcesProblem.value = null;
  } catch (error) {
    follows = false;
    resourcesProblem.value = (error as Error).message;
  }
  if (follows !== followed.value.includes(uri)) followed.value = follows ? [...followed.value, uri] : followed.value.filter((each) => each !== uri);
}

/** Keep a stream of news open, for the resources that are followed and for changed lists. */
export async function stay(connection: Connection, uris: string[], signal: AbortSignal): Promise<void> {
  const notifications = { toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true, resourceSubscriptions: uris };
  let pause = 1000;
  while (!signal.aborted) {
    const begun = Date.now();
    try {
      if (hasSessions(connection.era)) await connection.listen(signal);
      else await connection.request("subscriptions/listen", { notifications }, { signal });
    } catch {
      // Without the stream the page works; it only hears of nothing.
    }
    pause = Date.now() - begun > 30_000 ? 1000 : Math.min(pause * 2, 60_000);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** Take what a server says of no request. */
export function hear(connection: Connection, method: string, params: Params): void {
  if (connection !== here.value) return;
  if (method === "notifications/resources/updated") updated.value = new Set([...updated.value, String(params["uri"])]);
  if (method === "notifications/tools/list_changed") void loadTools();
  if (method === "notifications/prompts/list_changed") void loadPrompts();
  if (method === "notifications/resources/list_changed") void loadResources();
}

function asResource(given: Params): Resource {
  const uri = String(given["uri"]);
  return {
    uri,
    title: String(given["title"] ?? given["name"] ?? uri),
    description: String(given["description"] ?? ""),
    mimeType: typeof given["mimeType"] === "string" ? given["mimeType"] : null,
    size: typeof given["size"] === "number" ? given["size"] : null,
    annotations: isObject(given["annotations"]) ? given["annotations"] : {},
    server: serverOfUri(uri),
  };
}
