/**
 * The host side: shows a widget in a page, and speaks MCP Apps with it.
 *
 * The widget runs in a frame without an origin, inside a proxy page that another origin serves. Nothing it says
 * is believed: messages are checked by window, origin and shape, methods are an allow-list, tools are called
 * only where they say that a widget may, sizes, rates and the time that messages take have limits. A widget that
 * hangs, floods or leaves its page is told of.
 *
 * Source: MCP Apps 2026-01-26; design notes on shown content.
 */

import { safeHref } from "./bridge/arguments.ts";
import { FILES_EXTENSION, MODAL_EXTENSION, PROTOCOL, STATE_EXTENSION } from "./bridge/mcp.ts";
import { asDisplayMode, asksToClose, isDict, own, text, textsOf } from "./bridge/read.ts";
import type { Dict, DisplayMode, ToolResult } from "./bridge/types.ts";
import { METHOD_NOT_FOUND, Wire } from "./bridge/wire.ts";
import type { Incoming } from "./bridge/wire.ts";
import type { Csp } from "./hosting/document.ts";
import { Budget, LIMITS, clampHeight } from "./hosting/limits.ts";
import type { Limits } from "./hosting/limits.ts";
import { isOwn, withoutOwn } from "./hosting/own.ts";

export type { Csp, Limits, ToolResult };

const READY = "ui/notifications/sandbox-proxy-ready";
const RESOURCE = "ui/notifications/sandbox-resource-ready";
const LEFT = "ui/notifications/sandbox-left";
const FLOODED = "ui/notifications/sandbox-flooded";
const PING = "toolcell/ping";
const PONG = "toolcell/pong";
const STATE = "toolcell/widget-state";
const UPLOAD = "toolcell/upload-file";
const DOWNLOAD_URL = "toolcell/file-download-url";
const MODAL = "toolcell/request-modal";
const REFUSED = -32000;
const BAD_PARAMS = -32602;

export interface LogEntry {
  direction: "from-widget" | "to-widget";
  message: Dict;
  /** Why the message went no further; absent where it did. */
  dropped?: string;
}

/** It answers nothing any more; it sent its own frame elsewhere; it sent more than anyone could take. */
export type Trouble = "hangs" | "left" | "flooded";

/** What the page around does for a widget. What is left out, the widget is told it cannot have. */
export interface HostActions {
  callTool?(name: string, args: Dict): Promise<ToolResult>;
  sendMessage?(prompt: string): Promise<void> | void;
  openLink?(url: string): Promise<void> | void;
  /** Returns the mode that now holds. */
  setDisplayMode?(mode: DisplayMode): Promise<DisplayMode> | DisplayMode;
  updateModelContext?(context: Dict): Promise<void> | void;
  /**
   * The state of a widget, private part included: keep it with the call, and give it back in the options. What this
   * throws the widget is told.
   */
  keepState?(state: unknown): void;
  /** Keep a file that the widget gives, if a person allows it; returns the id by which the widget asks for it. */
  uploadFile?(file: Blob): Promise<string>;
  /** The address at which a file can be had for a while: one that the widget gave, or one of the call's own. */
  fileDownloadUrl?(fileId: string): Promise<string>;
  /** Show the widget a second time, above the page. */
  openModal?(args: Dict): void;
  closed?(): void;
  /** The widget is in trouble, or out of it again. After `left` and `flooded` it is stopped. */
  troubled?(trouble: Trouble | undefined): void;
  log?(entry: LogEntry): void;
}

export interface HostOptions {
  container: HTMLElement;
  /** Address of the proxy page. It must have another origin than the page that uses this. */
  proxyUrl: string;
  html: string;
  title: string;
  csp?: Csp;
  /** Theme, locale, display modes and the rest of MCP Apps' host context. */
  context?: Dict;
  widgetState?: unknown;
  /** Who may call a tool, as its `_meta.ui.visibility` says, nobody where it says nothing; `undefined` for a tool that does not exist. */
  visibility?(tool: string): readonly string[] | undefined;
  actions?: HostActions;
  limits?: Partial<Limits>;
}

type Answer = (params: Dict) => Promise<Dict> | Dict;

/** One widget in a page. */
export class WidgetHost {
  readonly element: HTMLIFrameElement;
  /** Resolved once the widget has introduced itself. */
  readonly ready: Promise<void>;
  readonly #options: HostOptions;
  readonly #actions: HostActions;
  readonly #limits: Limits;
  readonly #origin: string;
  readonly #rate: Budget;
  readonly #time: Budget;
  readonly #calls: Budget;
  readonly #wire: Wire;
  readonly #listen = (event: MessageEvent): void => this.#receive(event);
  #context: Dict;
  #waiting: (() => void)[] | undefined = [];
  #initialised: () => void = () => undefined;
  #loaded = false;
  #refused: string | undefined;
  #open = 0;
  #heard = 0;
  #looked = 0;
  #pings = 0;
  #pinging: ReturnType<typeof setInterval> | undefined;
  #trouble: Trouble | undefined;
  #height: number | undefined;
  #resizing = false;
  #closing: Promise<void> | undefined;
  /** Addresses of this server that the page gave the widget itself. */
  readonly #given = new Set<string>();

  constructor(options: HostOptions) {
    const url = new URL(options.proxyUrl, location.href);
    if (url.origin === location.origin) {
      throw new Error(`the proxy page must have another origin than ${location.origin}; serve it from a second port or host`);
    }
    this.#options = options;
    this.#actions = options.actions ?? {};
    this.#limits = { ...LIMITS, ...options.limits };
    this.#rate = new Budget(this.#limits.messagesPerSecond, this.#limits.burst);
    this.#time = new Budget(this.#limits.busyMsPerSecond, this.#limits.busyBurstMs);
    this.#calls = new Budget(this.#limits.callsPerSecond, this.#limits.callsBurst);
    this.#origin = url.origin;
    this.#context = { theme: "light", displayMode: "inline", availableDisplayModes: ["inline"], ...options.context };
    this.ready = new Promise((resolve) => (this.#initialised = resolve));
    this.element = frame(url, options.title);
    this.#wire = new Wire((message) => this.#post(message));
    window.addEventListener("message", this.#listen);
    options.container.append(this.element);
  }

  get closed(): boolean {
    return this.#closing !== undefined;
  }

  toolInput(args: Dict, { partial = false } = {}): void {
    this.#say(partial ? "ui/notifications/tool-input-partial" : "ui/notifications/tool-input", { arguments: args });
  }

  /** Hand over what the tool returned; closes the widget where the result says so. */
  async toolResult(result: ToolResult): Promise<void> {
    this.#say("ui/notifications/tool-result", result as Dict);
    if (asksToClose(result)) await this.close();
  }

  toolCancelled(reason: string): void {
    this.#say("ui/notifications/tool-cancelled", { reason });
  }

  /** Tell what changed around the widget. */
  setContext(patch: Dict): void {
    this.#context = { ...this.#context, ...patch };
    this.#say("ui/notifications/host-context-changed", patch);
  }

  /** Let the widget clean up, but not for long; then its frame goes. */
  close(): Promise<void> {
    this.#closing ??= this.#end();
    return this.#closing;
  }

  /** Take the widget's frame away at once, without asking it. */
  stop(): void {
    this.#closing ??= Promise.resolve();
    this.#remove("the widget was stopped");
  }

  async #end(): Promise<void> {
    if (this.#waiting === undefined && this.#trouble === undefined) {
      await this.#wire.request("ui/resource-teardown", {}, this.#limits.teardownMs).catch(() => undefined);
    }
    this.#remove("the widget is closed");
    this.#actions.closed?.();
  }

  #remove(why: string): void {
    clearInterval(this.#pinging);
    window.removeEventListener("message", this.#listen);
    this.#wire.end(why);
    this.element.remove();
  }

  // ---- whether it is alive

  #watch(): void {
    this.#heard = performance.now();
    this.#pinging = setInterval(() => this.#look(), this.#limits.pingMs);
  }

  #look(): void {
    const now = performance.now();
    // What nobody sees the browser lets wait, and a page that was held up itself has heard nothing either.
    const heldUp = now - this.#looked > 2 * this.#limits.pingMs;
    if (heldUp || document.visibilityState === "hidden") this.#heard = now;
    this.#looked = now;
    if (now - this.#heard > this.#limits.hangMs) this.#tell("hangs");
    this.#pings += 1;
    this.element.contentWindow?.postMessage({ jsonrpc: "2.0", method: PING, params: { n: this.#pings } }, this.#origin);
  }

  #tell(trouble: Trouble | undefined): void {
    if (this.#trouble === trouble) return;
    this.#trouble = trouble;
    this.#actions.troubled?.(trouble);
  }

  // ---- what comes

  #receive(event: MessageEvent): void {
    if (event.source !== this.element.contentWindow || event.origin !== this.#origin) return;
    const now = performance.now();
    this.#heard = now;
    if (this.#trouble === "hangs") this.#tell(undefined);
    // Before the message is looked at: the browser reads it only then, and that is most of the work.
    if (!this.#time.left(now) || !this.#rate.admits(now)) {
      this.#drop({}, "too many messages");
      return;
    }
    this.#take(event.data);
    this.#time.charge(performance.now() - now);
  }

  #take(message: unknown): void {
    if (!isDict(message) || own(message, "method") === PONG) return;
    const reason = this.#refusal(message);
    if (reason !== undefined) {
      this.#drop(named(message), reason);
      return;
    }
    this.#refused = undefined;
    this.#actions.log?.({ direction: "from-widget", message });
    const incoming = this.#wire.receive(message);
    if (incoming === undefined) return;
    if (incoming.id === undefined) this.#hear(incoming);
    else void this.#answer(incoming, incoming.id);
  }

  /** Said once, and without what came: to show all of it would hold up the page that drops it. */
  #drop(message: Dict, reason: string): void {
    if (reason !== this.#refused) this.#actions.log?.({ direction: "from-widget", message, dropped: reason });
    this.#refused = reason;
  }

  #refusal(message: Dict): string | undefined {
    const length = jsonLength(message);
    if (length === undefined) return "not JSON";
    return length > this.#limits.messageChars ? `longer than ${this.#limits.messageChars} characters` : undefined;
  }

  #hear({ method, params }: Incoming): void {
    switch (method) {
      case READY:
        this.#load();
        break;
      case LEFT:
      case FLOODED:
        this.stop();
        this.#tell(method === LEFT ? "left" : "flooded");
        break;
      case "ui/notifications/initialized":
        this.#release();
        break;
      case "ui/notifications/size-changed":
        this.#resize(params);
        break;
      case "ui/notifications/request-teardown":
        void this.close();
        break;
      case STATE:
        // Bridges of before ask for no answer; what went wrong, they cannot be told.
        try {
          this.#keep(params);
        } catch (error) {
          this.#actions.log?.({ direction: "from-widget", message: { method }, dropped: messageOf(error) });
        }
    }
  }

  #keep(params: Dict): Dict {
    this.#act("keepState", "widget state")(own(params, "state"));
    return {};
  }

  #load(): void {
    // Once: a second document in the same frame would inherit what this one was allowed.
    if (this.#loaded) return;
    this.#loaded = true;
    this.#wire.notify(RESOURCE, { html: this.#options.html, csp: withoutOwn(this.#options.csp ?? {}, location) });
    this.#watch();
  }

  #release(): void {
    const waiting = this.#waiting ?? [];
    this.#waiting = undefined;
    for (const say of waiting) say();
    this.#initialised();
  }

  #resize(params: Dict): void {
    const height = clampHeight(own(params, "height"), this.#limits);
    if (height === undefined) return;
    this.#height = height;
    if (this.#resizing) return;
    // Each change triggers a new layout, so the last of several in a short time is enough.
    this.#resizing = true;
    this.#stretch();
    setTimeout(() => {
      this.#resizing = false;
      this.#stretch();
    }, this.#limits.resizeMs);
  }

  #stretch(): void {
    if (this.#height === undefined || own(this.#context, "displayMode") !== "inline") return;
    this.element.style.height = `${this.#height}px`;
  }

  async #answer({ method, params }: Incoming, id: string | number): Promise<void> {
    if (this.#open >= this.#limits.open) {
      this.#wire.refuse(id, REFUSED, `${this.#open} requests wait already`);
      return;
    }
    this.#open += 1;
    try {
      const answer = own(this.#answers, method) as Answer | undefined;
      if (answer === undefined) throw new Refusal(`this host has no ${method}`, METHOD_NOT_FOUND);
      this.#wire.answer(id, await answer(params));
    } catch (error) {
      const code = error instanceof Refusal ? error.code : REFUSED;
      this.#wire.refuse(id, code, messageOf(error));
    } finally {
      this.#open -= 1;
    }
  }

  /** Answers to requests, by method. */
  readonly #answers: Record<string, Answer> = {
    ping: () => ({}),
    "ui/initialize": () => this.#introduce(),
    "tools/call": (params) => this.#callTool(params),
    "ui/message": (params) => this.#message(params),
    "ui/open-link": (params) => this.#openLink(params),
    "ui/request-display-mode": (params) => this.#displayMode(params),
    "ui/update-model-context": async (params) => {
      await this.#act("updateModelContext", "model context")(params);
      return {};
    },
    [STATE]: (params) => this.#keep(params),
    [UPLOAD]: async (params) => {
      const keep = this.#act("uploadFile", "files");
      const file = own(params, "file");
      if (!(file instanceof Blob)) throw new Refusal("uploadFile needs a file", BAD_PARAMS);
      return { fileId: await keep(file) };
    },
    [DOWNLOAD_URL]: (params) => this.#downloadUrl(params),
    [MODAL]: (params) => {
      const args = own(params, "args");
      this.#act("openModal", "modals")(isDict(args) ? args : {});
      return {};
    },
  };

  /** An action of the page around. Throws a `Refusal` where it is left out. */
  #act<K extends Exclude<keyof HostActions, "closed">>(name: K, what: string): NonNullable<HostActions[K]> {
    const act = this.#actions[name];
    if (act === undefined) throw new Refusal(`this host takes no ${what}`, METHOD_NOT_FOUND);
    return act.bind(this.#actions) as NonNullable<HostActions[K]>;
  }

  #introduce(): Dict {
    const { callTool, openLink, sendMessage, updateModelContext, keepState, uploadFile, fileDownloadUrl, openModal } = this.#actions;
    const experimental = {
      ...(keepState && { [STATE_EXTENSION]: {} }),
      ...(uploadFile && fileDownloadUrl && { [FILES_EXTENSION]: {} }),
      ...(openModal && { [MODAL_EXTENSION]: {} }),
    };
    const state = this.#options.widgetState;
    return {
      protocolVersion: PROTOCOL,
      hostInfo: { name: "toolcell", version: "1.0.0" },
      hostCapabilities: {
        ...(callTool && { serverTools: {} }),
        ...(openLink && { openLinks: {} }),
        ...(sendMessage && { message: { text: {} } }),
        ...(updateModelContext && { updateModelContext: { text: {}, structuredContent: {} } }),
        ...(Object.keys(experimental).length > 0 && { experimental }),
      },
      hostContext: { ...this.#context, ...(state === undefined || state === null ? {} : { [STATE_EXTENSION]: state }) },
    };
  }

  async #callTool(params: Dict): Promise<Dict> {
    const act = this.#act("callTool", "tool calls");
    const name = text(own(params, "name"));
    const args = own(params, "arguments") ?? {};
    if (name === "" || !isDict(args)) throw new Refusal("tools/call needs a name and an object of arguments", BAD_PARAMS);
    const who = this.#options.visibility?.(name);
    if (who === undefined) throw new Refusal(`there is no tool ${name}`, BAD_PARAMS);
    if (!who.includes("app")) throw new Refusal(`the tool ${name} may not be called by a widget: its _meta.ui.visibility does not name "app"`, REFUSED);
    if (!this.#calls.admits(performance.now())) throw new Refusal(`a widget may call tools ${this.#limits.callsPerSecond} times a second`, REFUSED);
    return (await act(name, args)) as Dict;
  }

  async #message(params: Dict): Promise<Dict> {
    const act = this.#act("sendMessage", "messages");
    const prompt = textsOf(params).join("\n").trim();
    if (own(params, "role") !== "user" || prompt === "") throw new Refusal("ui/message needs a text of the role user", BAD_PARAMS);
    await act(prompt);
    return {};
  }

  async #openLink(params: Dict): Promise<Dict> {
    const act = this.#act("openLink", "links");
    const url = safeHref(own(params, "url"));
    if (url === undefined) throw new Refusal("ui/open-link needs an http, https or mailto address without a user name or password", BAD_PARAMS);
    if (isOwn(new URL(url), location) && !this.#given.has(url)) throw new Refusal("a widget may not lead to the server of the page it is shown in", REFUSED);
    await act(url);
    return {};
  }

  async #downloadUrl(params: Dict): Promise<Dict> {
    const act = this.#act("fileDownloadUrl", "files");
    const fileId = text(own(params, "fileId"));
    if (fileId === "") throw new Refusal("getFileDownloadUrl needs a fileId", BAD_PARAMS);
    const downloadUrl = new URL(await act(fileId), location.href).href;
    this.#given.add(downloadUrl);
    return { downloadUrl };
  }

  async #displayMode(params: Dict): Promise<Dict> {
    const wish = asDisplayMode(own(params, "mode"));
    if (wish === undefined) throw new Refusal("ui/request-display-mode needs inline, pip or fullscreen", BAD_PARAMS);
    const modes = own(this.#context, "availableDisplayModes");
    const act = this.#actions.setDisplayMode;
    const possible = act !== undefined && Array.isArray(modes) && modes.includes(wish);
    const mode = possible ? await act.call(this.#actions, wish) : own(this.#context, "displayMode");
    if (mode !== own(this.#context, "displayMode")) this.setContext({ displayMode: mode });
    return { mode };
  }

  // ---- what goes

  #say(method: string, params: Dict): void {
    const say = (): void => this.#wire.notify(method, params);
    if (this.#waiting === undefined) say();
    else this.#waiting.push(say);
  }

  #post(message: Dict): void {
    const began = performance.now();
    this.#actions.log?.({ direction: "to-widget", message });
    this.element.contentWindow?.postMessage(message, this.#origin);
    this.#time.charge(performance.now() - began);
  }
}

class Refusal extends Error {
  constructor(message: string, readonly code: number) {
    super(message);
  }
}

function frame(url: URL, title: string): HTMLIFrameElement {
  const element = document.createElement("iframe");
  element.setAttribute("sandbox", "allow-scripts allow-same-origin");
  element.setAttribute("referrerpolicy", "no-referrer");
  element.title = title;
  element.style.cssText = "display:block;width:100%;border:0";
  element.src = url.href;
  return element;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function named(message: Dict): Dict {
  return { method: text(own(message, "method")).slice(0, 100) };
}

function jsonLength(message: Dict): number | undefined {
  try {
    return JSON.stringify(message).length;
  } catch {
    return undefined; // what can be posted need not be JSON: cycles, big integers
  }
}
