/** A host that speaks MCP Apps: `ui/*` messages with the parent window. Source: MCP Apps 2026-01-26. */

import { wantedCall, wantedFile, wantedFileId, wantedHeight, wantedHref, wantedMode, wantedPrompt } from "./arguments.ts";
import { applyStyles, valuesOfContext } from "./context.ts";
import type { Host } from "./host.ts";
import { asDisplayMode, asksToClose, isDict, own, text, valuesOf } from "./read.ts";
import { Kept, checkState, modelContext } from "./state.ts";
import type { Dict, DisplayMode, ToolResult, Values } from "./types.ts";
import { Unavailable } from "./types.ts";
import type { Incoming } from "./wire.ts";
import { METHOD_NOT_FOUND, Refused, Unanswered, Wire } from "./wire.ts";

export const PROTOCOL = "2026-01-26";
/** Hosts of our own keep the state of a widget for it, where it cannot itself. */
export const STATE_EXTENSION = "toolcell/widgetState";
/** They take files of a widget and say where it can be had again, and show it a second time, above their page. */
export const FILES_EXTENSION = "toolcell/files";
export const MODAL_EXTENSION = "toolcell/modal";

const HANDSHAKE_MS = 5_000;
const ANSWER_MS = 30_000;
const TOOL_MS = 300_000;
// A host that never said it could is asked all the same, since some forget to say; but not for long.
const UNDECLARED_MS = 3_000;

interface Question {
  asked: string;
  method: string;
  params: Dict;
  capability?: string;
  ms?: number;
}

export class McpHost implements Host {
  readonly kind = "mcp-app";
  readonly ready: Promise<void>;
  readonly #wire: Wire;
  readonly #publish: (patch: Partial<Values>) => void;
  readonly #kept: Kept;
  #capabilities: Dict = {};
  #modes: unknown[] | undefined;
  #callId: unknown;
  #hostKeeps = false;

  constructor(parent: Window, name: string, publish: (patch: Partial<Values>) => void) {
    this.#publish = publish;
    this.#kept = new Kept(name);
    this.#kept.belongsTo(null);
    // The parent's origin cannot be known and may be opaque: nothing secret is ever posted.
    this.#wire = new Wire((message) => parent.postMessage(message, "*"));
    window.addEventListener("message", (event) => {
      if (event.source !== parent) return;
      const incoming = this.#wire.receive(event.data);
      if (incoming !== undefined) this.#take(incoming);
    });
    this.ready = this.#shakeHands(name);
    this.ready.catch(() => undefined);
  }

  async callTool(name: string, args?: Dict): Promise<ToolResult> {
    const params = wantedCall(name, args);
    const question = { asked: "callTool", method: "tools/call", params, capability: "serverTools", ms: TOOL_MS };
    const result = (await this.#ask(question)) as ToolResult;
    if (asksToClose(result)) await this.requestClose();
    return result;
  }

  async sendFollowUpMessage(message: { prompt: string }): Promise<void> {
    const params = { role: "user", content: [{ type: "text", text: wantedPrompt(message) }] };
    await this.#ask({ asked: "sendFollowUpMessage", method: "ui/message", params, capability: "message" });
  }

  async uploadFile(file: File): Promise<{ fileId: string }> {
    const given = wantedFile(file);
    await this.#has("uploadFile", FILES_EXTENSION, "MCP Apps hosts take no files");
    // A person may be asked first.
    const result = await this.#ask({ asked: "uploadFile", method: "toolcell/upload-file", params: { file: given }, ms: TOOL_MS });
    return { fileId: text(own(result, "fileId")) };
  }

  async getFileDownloadUrl(file: { fileId: string }): Promise<{ downloadUrl: string }> {
    const fileId = wantedFileId(file);
    await this.#has("getFileDownloadUrl", FILES_EXTENSION, "MCP Apps hosts keep no files");
    const result = await this.#ask({ asked: "getFileDownloadUrl", method: "toolcell/file-download-url", params: { fileId } });
    return { downloadUrl: text(own(result, "downloadUrl")) };
  }

  async requestModal(args: unknown): Promise<unknown> {
    await this.#has("requestModal", MODAL_EXTENSION, "MCP Apps hosts have no modals");
    return this.#ask({ asked: "requestModal", method: "toolcell/request-modal", params: { args: args ?? {} } });
  }

  async requestDisplayMode(wish: { mode: DisplayMode }): Promise<{ mode: DisplayMode }> {
    const asked = "requestDisplayMode";
    const mode = wantedMode(wish);
    await this.#met(asked);
    if (this.#modes !== undefined && !this.#modes.includes(mode)) {
      throw new Unavailable(asked, `the host offers ${this.#modes.join(", ") || "nothing"}, not ${mode}`);
    }
    const result = await this.#ask({ asked, method: "ui/request-display-mode", params: { mode } });
    const granted = asDisplayMode(own(result, "mode")) ?? mode;
    this.#publish({ displayMode: granted, view: { mode: granted } });
    return { mode: granted };
  }

  async notifyIntrinsicHeight(height: number | { height: number }): Promise<void> {
    const pixels = wantedHeight(height);
    await this.#met("notifyIntrinsicHeight");
    this.#wire.notify("ui/notifications/size-changed", { height: pixels });
  }

  async openExternal(link: { href: string }): Promise<void> {
    const params = { url: wantedHref(link) };
    await this.#ask({ asked: "openExternal", method: "ui/open-link", params, capability: "openLinks" });
  }

  async requestClose(): Promise<void> {
    await this.#met("requestClose");
    this.#wire.notify("ui/notifications/request-teardown", {});
  }

  async setWidgetState(state: unknown): Promise<void> {
    this.#kept.write(checkState(state));
    this.#publish({ widgetState: state });
    await this.#met("setWidgetState");
    if (this.#hostKeeps) await this.#ask({ asked: "setWidgetState", method: "toolcell/widget-state", params: { state } });
    const declared = own(this.#capabilities, "updateModelContext");
    const textOnly = own(declared, "text") !== undefined && own(declared, "structuredContent") === undefined;
    const params = modelContext(state, !textOnly);
    const told = this.#ask({
      asked: "setWidgetState",
      method: "ui/update-model-context",
      params,
      capability: "updateModelContext",
    });
    // The state is kept either way; only a host that promised to tell the model can fail to.
    await (declared === undefined ? told.catch(() => undefined) : told);
  }

  async #shakeHands(name: string): Promise<void> {
    const params = {
      protocolVersion: PROTOCOL,
      appInfo: { name, version: "1.0.0" },
      appCapabilities: { availableDisplayModes: ["inline", "fullscreen", "pip"] },
    };
    const hello = await this.#wire.request("ui/initialize", params, HANDSHAKE_MS);
    const capabilities = own(hello, "hostCapabilities");
    if (isDict(capabilities)) this.#capabilities = capabilities;
    this.#hostKeeps = own(own(capabilities, "experimental"), STATE_EXTENSION) !== undefined;
    this.#enter(own(hello, "hostContext"));
    this.#recall();
    this.#wire.notify("ui/notifications/initialized", {});
  }

  async #has(asked: string, extension: string, otherwise: string): Promise<void> {
    await this.#met(asked);
    const declared = own(own(this.#capabilities, "experimental"), extension) !== undefined;
    if (!declared) throw new Unavailable(asked, otherwise);
  }

  async #met(asked: string): Promise<void> {
    try {
      await this.ready;
    } catch {
      throw new Unavailable(asked, "no host answered");
    }
  }

  async #ask({ asked, method, params, capability, ms }: Question): Promise<unknown> {
    await this.#met(asked);
    const declared = capability === undefined || own(this.#capabilities, capability) !== undefined;
    try {
      const result = await this.#wire.request(method, params, declared ? (ms ?? ANSWER_MS) : UNDECLARED_MS);
      if (method !== "tools/call" && own(result, "isError") === true) throw new Error(`the host refused ${asked}`);
      return result;
    } catch (error) {
      throw translated(asked, error);
    }
  }

  #take({ method, params, id }: Incoming): void {
    if (id !== undefined) this.#answer(method, id);
    else if (method === "ui/notifications/tool-result") this.#takeResult(params);
    else if (method === "ui/notifications/host-context-changed") this.#enter(params);
    else if (method === "ui/notifications/tool-cancelled") this.#takeCancel(params);
    else if (method === "ui/notifications/tool-input" || method === "ui/notifications/tool-input-partial") {
      const input = own(params, "arguments");
      this.#publish({ toolInput: isDict(input) ? input : {} });
    }
  }

  #answer(method: string, id: string | number): void {
    if (method === "ping") this.#wire.answer(id, {});
    else if (method === "ui/resource-teardown") {
      this.#wire.answer(id, {});
      this.#wire.end("the host has closed the widget");
    } else this.#wire.refuse(id, METHOD_NOT_FOUND, `a widget has no ${method}`);
  }

  #takeResult(result: Dict): void {
    const values = valuesOf(result);
    if (this.#callId === undefined) this.#kept.belongsTo(values.toolOutput);
    this.#publish(values);
    this.#recall();
    if (asksToClose(result)) void this.requestClose();
  }

  #takeCancel(params: Dict): void {
    this.#publish({ call: { state: "cancelled", message: text(own(params, "reason")) } });
    window.dispatchEvent(new CustomEvent("mcp:tool_cancelled", { detail: params }));
  }

  #enter(context: unknown): void {
    if (!isDict(context)) return;
    const modes = own(context, "availableDisplayModes");
    if (Array.isArray(modes)) this.#modes = modes;
    const id = own(own(context, "toolInfo"), "id");
    if (typeof id === "string" || typeof id === "number") {
      this.#callId = id;
      this.#kept.belongsTo(["id", id]);
    }
    const state = own(context, STATE_EXTENSION);
    if (state !== undefined && state !== null) this.#kept.write(JSON.stringify(state));
    applyStyles(context, document.documentElement);
    this.#publish(valuesOfContext(context));
  }

  #recall(): void {
    const state = this.#kept.read();
    if (state !== null) this.#publish({ widgetState: state });
  }
}

function translated(asked: string, error: unknown): unknown {
  if (error instanceof Unanswered) return new Unavailable(asked, error.message);
  if (!(error instanceof Refused)) return error;
  if (error.code === METHOD_NOT_FOUND) return new Unavailable(asked, "this host does not offer it");
  return new Error(`${asked} failed: ${error.message}`, { cause: error });
}
