/**
 * A client of MCP 2026-07-28 over HTTP, as far as a page needs one: a request is a POST, and its answer is JSON or a
 * stream of messages that ends with it. Leaving the request cancels the call.
 */
import { isObject, parseJson, toJson, type Json } from "./json";

const PROTOCOL = "2026-07-28";
const PREFIX = "io.modelcontextprotocol/";
const ENDPOINT = "/play/mcp";

export type Params = { [key: string]: Json };

/** One message as it went over the wire, for whoever wants to see it. */
export interface Wire {
  at: number;
  direction: "sent" | "received";
  message: Json;
}

export interface Watching {
  /** Hears notifications that come before the answer. */
  onNotification?: (method: string, params: Params) => void;
  /** Hears every message, both ways. */
  onWire?: (wire: Wire) => void;
  signal?: AbortSignal;
  /** Asks for progress and for log messages. */
  live?: boolean;
  /** By which the server's news of this request are known; without it, its id. */
  token?: string;
  /** Further keys of `_meta`. */
  meta?: Params;
}

/** The server answered with an error, or not at all. */
export class McpError extends Error {
  constructor(
    message: string,
    readonly code: number,
    readonly data: Json = null,
  ) {
    super(message);
  }
}

/** The session of this page has ended. */
export class SessionEnded extends Error {}

let lastId = 0;

export async function request(method: string, params: Params = {}, watching: Watching = {}): Promise<Params> {
  const id = ++lastId;
  const message = { jsonrpc: "2.0", id, method, params: withMeta(params, id, watching) } as const;
  watching.onWire?.({ at: performance.now(), direction: "sent", message: message as unknown as Json });
  const response = await fetch(ENDPOINT, {
    method: "POST",
    headers: headers(method, params),
    body: toJson(message),
    signal: watching.signal ?? null,
  });
  if (response.status === 401) throw new SessionEnded(await said(response));
  for await (const received of messages(response)) {
    watching.onWire?.({ at: performance.now(), direction: "received", message: received });
    if (!isObject(received)) continue;
    if (received["method"] !== undefined) {
      watching.onNotification?.(String(received["method"]), isObject(received["params"]) ? received["params"] : {});
    } else if (received["error"] !== undefined) {
      throw asError(received["error"]);
    } else if (isObject(received["result"])) {
      return received["result"];
    }
  }
  throw new McpError(`the server ended its answer to ${method} (HTTP ${response.status}) without a result`, -32000);
}

/** Ask for all pages of a list. */
export async function listAll(method: string, key: string): Promise<Params[]> {
  const found: Params[] = [];
  let cursor: Json | undefined;
  do {
    const page = await request(method, cursor === undefined ? {} : { cursor });
    const items = page[key];
    if (Array.isArray(items)) found.push(...items.filter(isObject));
    cursor = page["nextCursor"] ?? undefined;
  } while (cursor !== undefined && found.length < 5000);
  return found;
}

function withMeta(params: Params, id: number, watching: Watching): Params {
  const meta: Params = {
    ...(isObject(params["_meta"]) ? params["_meta"] : {}),
    ...watching.meta,
    [PREFIX + "protocolVersion"]: PROTOCOL,
    [PREFIX + "clientInfo"]: { name: "toolcell-playground", version: "1" },
    [PREFIX + "clientCapabilities"]: {
      elicitation: {},
      extensions: { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } },
    },
  };
  if (watching.live) {
    meta["progressToken"] = watching.token ?? id;
    meta[PREFIX + "logLevel"] = "debug";
  }
  return { ...params, _meta: meta };
}

function headers(method: string, params: Params): Record<string, string> {
  const name = params["name"] ?? params["uri"];
  return {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": PROTOCOL,
    "mcp-method": method,
    // Header values are Latin-1 at best; what does not fit is encoded as the specification says.
    ...(typeof name === "string" ? { "mcp-name": headerValue(name) } : {}),
  };
}

function headerValue(text: string): string {
  if (/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith("=?base64?")) return text;
  const bytes = new TextEncoder().encode(text);
  return `=?base64?${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}?=`;
}

async function* messages(response: Response): AsyncGenerator<Json> {
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("text/event-stream")) {
    for await (const data of events(response)) yield parseJson(data);
  } else if (type.startsWith("application/json")) {
    const body = parseJson(await response.text());
    if (!response.ok && isObject(body) && typeof body["error"] === "string") throw new McpError(body["error"], response.status);
    yield body;
  } else {
    throw new McpError(`the server answered HTTP ${response.status}: ${await said(response)}`, response.status);
  }
}

async function* events(response: Response): AsyncGenerator<string> {
  if (response.body === null) return;
  let held = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      let end: RegExpExecArray | null;
      while ((end = /\r?\n\r?\n/.exec(held)) !== null) {
        const data = held
          .slice(0, end.index)
          .split(/\r?\n/)
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(line.startsWith("data: ") ? 6 : 5));
        held = held.slice(end.index + end[0].length);
        if (data.length > 0 && data.join("") !== "") yield data.join("\n");
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

async function said(response: Response): Promise<string> {
  const text = (await response.text()).slice(0, 500);
  try {
    const body = parseJson(text);
    return isObject(body) && typeof body["error"] === "string" ? body["error"] : text;
  } catch {
    return text;
  }
}

function asError(error: Json): McpError {
  if (!isObject(error)) return new McpError("the server answered with an error that says nothing", -32000);
  return new McpError(String(error["message"] ?? "no message"), Number(error["code"] ?? -32000), error["data"] ?? null);
}
