/**
 * A connection of this page to one MCP server over HTTP, in the era of the protocol that a person chose. Without
 * sessions (2026-07-28) each request says who asks; leaving it cancels it. With sessions a handshake comes first, the
 * server may ask on its own, and a request that is left is cancelled by a message.
 */
import { signal } from "@preact/signals";
import { hasSessions, type Era } from "./eras";
import { isObject, toJson, type Json } from "./json";
import { answers, NoAnswer, said } from "./streams";
import { noted } from "./wire";

export const PREFIX = "io.modelcontextprotocol/";
export const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"] as const;
export type Level = (typeof LEVELS)[number];

export type Params = { [key: string]: Json };

/** One message as it went over the wire, for the view of messages. */
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

/** What a server says of itself, and how it was met. */
export interface About {
  protocol: string;
  name: string;
  version: string;
  title: string;
  instructions: string;
  capabilities: Params;
}

export type State = "new" | "connecting" | "up" | "down";

export type Asked = (connection: Connection, method: string, params: Params) => Promise<Params>;

const CLIENT = { name: "toolcell-playground", version: "1" };

const EXTENSIONS: Params = { [PREFIX + "ui"]: { mimeTypes: ["text/html;profile=mcp-app"] } };

const LEVEL = signal<Level>("debug");

let lastId = 0;

export class Connection {
  /** Of every connection, so that it outlives a change of the version. */
  readonly level = LEVEL;
  readonly state = signal<State>("new");
  /** Why it is down. */
  readonly why = signal("");
  readonly about = signal<About | null>(null);
  /** Answers requests of the server; set by a view that can ask a person. */
  static asked: Asked = () => Promise.reject(new McpError("nobody answers questions here", -32601));
  /** Hears what the server says of no request. */
  static heard: (connection: Connection, method: string, params: Params) => void = () => undefined;
  #session: string | null = null;
  #greeting: Promise<void> | null = null;

  constructor(
    readonly name: string,
    readonly endpoint: string,
    readonly era: Era,
  ) {}

  /** What this page says that it can do. */
  capabilities(): Params {
    return { elicitation: { form: {}, url: {} }, sampling: { tools: {} }, roots: {}, extensions: EXTENSIONS };
  }

  /** Meet the server, or learn why that is not possible. */
  async meet(): Promise<void> {
    // A request may have begun a session already; a second one would replace it halfway.
    if (this.state.value !== "connecting") this.#greeting = null;
    this.state.value = "connecting";
    try {
      if (hasSessions(this.era)) {
        await this.#greeted();
      } else {
        const met = await this.request("server/discover");
        this.about.value = aboutOf({ ...met, protocolVersion: this.era });
      }
      this.#works();
    } catch (error) {
      this.#fails(error);
      throw error;
    }
  }

  /** Ask the server. Throws `McpError`, `SessionEnded`, or what the browser throws where nobody answers. */
  async request(method: string, params: Params = {}, watching: Watching = {}): Promise<Params> {
    if (hasSessions(this.era)) await this.#greeted();
    const id = ++lastId;
    const session = this.#session;
    const message = { jsonrpc: "2.0", id, method, params: this.#said(params, id, watching) } as unknown as Json;
    try {
      return await this.#asked(message, id, method, watching);
    } catch (error) {
      if (!(error instanceof NoAnswer && error.status === 404 && session !== null)) throw asMcpError(error);
      // The session has ended at the server, which did nothing with this request.
      if (this.#session === session) {
        this.#session = null;
        this.#greeting = null;
      }
      await this.#greeted();
      return this.#asked(message, id, method, watching);
    }
  }

  /** Send a message exactly as it is given, but for the id of a request. Returns its answer, or null. */
  async raw(given: Params, watching: Watching = {}): Promise<Json> {
    if (hasSessions(this.era) && given["method"] !== "initialize") await this.#greeted();
    const isRequest = given["method"] !== undefined && given["id"] !== undefined;
    const id = isRequest ? ++lastId : null;
    const message: Params = isRequest ? { ...given, id } : given;
    const params = isObject(given["params"]) ? given["params"] : {};
    let answer: Json = null;
    for await (const received of this.#exchanged(message, String(given["method"] ?? ""), params, watching)) {
      if (isObject(received) && received["method"] === undefined && received["id"] === id) answer = received;
    }
    return answer;
  }

  /** Tell the server something. */
  async notify(method: string, params: Params = {}): Promise<void> {
    const message: Params = { jsonrpc: "2.0", method, params };
    for await (const _ of this.#exchanged(message, method, params, {})) void _;
  }

  /** Hear what a server with sessions says of no request, until `signal` ends that. */
  async listen(signal: AbortSignal): Promise<void> {
    await this.#greeted();
    const response = await fetch(this.endpoint, { headers: this.#headers(null, {}, "text/event-stream"), signal });
    if (!response.ok || !(response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
      await response.body?.cancel();
      throw new McpError(`the server opens no stream (HTTP ${response.status})`, response.status);
    }
    for await (const received of answers(response)) {
      noted(this.name, "received", received);
      this.#take(received, {});
    }
  }

  /** End the session, if there is one. */
  async leave(): Promise<void> {
    const session = this.#session;
    this.#session = null;
    this.#greeting = null;
    if (session === null) return;
    await fetch(this.endpoint, { method: "DELETE", headers: { "mcp-session-id": session } }).catch(() => undefined);
  }

  #greeted(): Promise<void> {
    this.#greeting ??= this.#greet().catch((error: unknown) => {
      this.#greeting = null;
      this.#fails(error);
      throw error;
    });
    return this.#greeting;
  }

  async #greet(): Promise<void> {
    this.#session = null;
    this.state.value = "connecting";
    const id = ++lastId;
    const params: Params = { protocolVersion: this.era, capabilities: this.capabilities(), clientInfo: CLIENT };
    const met = await this.#asked({ jsonrpc: "2.0", id, method: "initialize", params }, id, "initialize", {}, true);
    this.about.value = aboutOf(met);
    await this.notify("notifications/initialized");
    if (this.about.value.capabilities["logging"] !== undefined) {
      const ask = ++lastId;
      const level: Params = { jsonrpc: "2.0", id: ask, method: "logging/setLevel", params: { level: this.level.value } };
      await this.#asked(level, ask, "logging/setLevel", {}).catch(() => undefined);
    }
    this.#works();
  }

  async #asked(message: Json, id: number, method: string, watching: Watching, greets = false): Promise<Params> {
    const params = isObject(message) && isObject(message["params"]) ? message["params"] : {};
    // In another session the server knows of no such request.
    const session = this.#session;
    const left = (): void => {
      if (hasSessions(this.era) && session === this.#session) void this.notify("notifications/cancelled", { requestId: id, reason: "left by the person at the page" }).catch(() => undefined);
    };
    watching.signal?.addEventListener("abort", left, { once: true });
    try {
      for await (const received of this.#exchanged(message, method, params, watching, greets)) {
        if (!isObject(received) || received["method"] !== undefined || received["id"] !== id) {
          // An error without an id is of this request too: the server could not read it.
          if (!isObject(received) || received["error"] === undefined || received["method"] !== undefined) continue;
        }
        if (received["error"] !== undefined) throw asError(received["error"]);
        if (isObject(received["result"])) return received["result"];
      }
    } finally {
      watching.signal?.removeEventListener("abort", left);
    }
    throw new McpError(`the server ended its answer to ${method} without a result`, -32000);
  }

  /** Send a message, and yield all that comes in answer; what is for others is handed to them on the way. */
  async *#exchanged(message: Json, method: string, params: Params, watching: Watching, greets = false): AsyncGenerator<Json> {
    noted(this.name, "sent", message);
    watching.onWire?.({ at: performance.now(), direction: "sent", message });
    let response: Response;
    try {
      response = await fetch(this.endpoint, { method: "POST", headers: this.#headers(method, params, "application/json, text/event-stream"), body: toJson(message), signal: watching.signal ?? null });
    } catch (error) {
      if (watching.signal?.aborted !== true) this.#fails(error);
      throw error;
    }
    if (response.status === 401) throw new SessionEnded(await said(response));
    // Whatever it says of it, and in whichever form.
    if (response.status === 404 && this.#session !== null) throw new NoAnswer(await said(response), 404);
    if (greets) this.#session = response.headers.get("mcp-session-id");
    if (response.status === 202 || response.status === 204) {
      await response.body?.cancel();
      return;
    }
    try {
      for await (const received of answers(response)) {
        noted(this.name, "received", received);
        watching.onWire?.({ at: performance.now(), direction: "received", message: received });
        this.#take(received, watching);
        yield received;
      }
    } catch (error) {
      // What no MCP server says, such as a dead one's host: the state is told with it.
      if (error instanceof NoAnswer && error.status >= 500) this.#fails(error);
      throw error;
    }
    if (this.state.value === "down") this.#works();
  }

  /** Dispatch all but answers: notifications to subscribers, requests to the view that can answer. */
  #take(received: Json, watching: Watching): void {
    if (!isObject(received) || typeof received["method"] !== "string") return;
    const params = isObject(received["params"]) ? received["params"] : {};
    const id = received["id"];
    if (id === undefined) {
      watching.onNotification?.(received["method"], params);
      Connection.heard(this, received["method"], params);
      return;
    }
    void this.#reply(id ?? null, received["method"], params);
  }

  async #reply(id: Json, method: string, params: Params): Promise<void> {
    let message: Params;
    try {
      message = { jsonrpc: "2.0", id, result: method === "ping" ? {} : await Connection.asked(this, method, params) };
    } catch (error) {
      const code = error instanceof McpError ? error.code : -32603;
      message = { jsonrpc: "2.0", id, error: { code, message: (error as Error).message } };
    }
    try {
      for await (const _ of this.#exchanged(message, "", {}, {})) void _;
    } catch {
      // Who asked is gone.
    }
  }

  #said(params: Params, id: number, watching: Watching): Params {
    const given = isObject(params["_meta"]) ? params["_meta"] : {};
    const meta: Params = { ...given, ...watching.meta };
    if (watching.live) meta["progressToken"] = watching.token ?? id;
    if (!hasSessions(this.era)) {
      meta[PREFIX + "protocolVersion"] = this.era;
      meta[PREFIX + "clientInfo"] = CLIENT;
      meta[PREFIX + "clientCapabilities"] = this.capabilities();
      if (watching.live) meta[PREFIX + "logLevel"] = this.level.value;
    }
    return Object.keys(meta).length === 0 ? params : { ...params, _meta: meta };
  }

  #headers(method: string | null, params: Params, accept: string): Record<string, string> {
    const common = { "content-type": "application/json", accept };
    if (hasSessions(this.era)) {
      const agreed = this.about.value?.protocol;
      return {
        ...common,
        ...(method !== "initialize" && agreed !== undefined ? { "mcp-protocol-version": agreed } : {}),
        ...(this.#session === null || method === "initialize" ? {} : { "mcp-session-id": this.#session }),
      };
    }
    const meta = isObject(params["_meta"]) ? params["_meta"] : {};
    const version = meta[PREFIX + "protocolVersion"];
    const name = params["name"] ?? params["uri"];
    return {
      ...common,
      "mcp-protocol-version": typeof version === "string" ? headerValue(version) : this.era,
      ...(method === null || method === "" ? {} : { "mcp-method": headerValue(method) }),
      // Header values are Latin-1 at best; what does not fit is encoded as the specification says.
      ...(typeof name === "string" ? { "mcp-name": headerValue(name) } : {}),
    };
  }

  #works(): void {
    this.state.value = "up";
    this.why.value = "";
  }

  #fails(error: unknown): void {
    this.state.value = "down";
    this.why.value = error instanceof McpError || error instanceof NoAnswer || error instanceof SessionEnded ? error.message : `no connection: ${error instanceof Error ? error.message : String(error)}`;
  }
}

function aboutOf(met: Params): About {
  const meta = isObject(met["_meta"]) ? met["_meta"] : {};
  const info = [met["serverInfo"], meta[PREFIX + "serverInfo"]].find(isObject) ?? {};
  return {
    protocol: String(met["protocolVersion"] ?? ""),
    name: String(info["name"] ?? ""),
    version: String(info["version"] ?? ""),
    title: String(info["title"] ?? ""),
    instructions: String(met["instructions"] ?? ""),
    capabilities: isObject(met["capabilities"]) ? met["capabilities"] : {},
  };
}

function headerValue(text: string): string {
  if (/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith("=?base64?")) return text;
  const bytes = new TextEncoder().encode(text);
  return `=?base64?${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}?=`;
}

function asError(error: Json): McpError {
  if (!isObject(error)) return new McpError("the server answered with an error that says nothing", -32000);
  return new McpError(String(error["message"] ?? "no message"), Number(error["code"] ?? -32000), error["data"] ?? null);
}

function asMcpError(error: unknown): unknown {
  return error instanceof NoAnswer ? new McpError(error.message, error.status) : error;
}
