/** A host that put `window.openai` into the page. Its own values and methods are used as they are. */

import { wantedCall, wantedHeight, wantedHref, wantedMode, wantedPrompt } from "./arguments.ts";
import type { Host } from "./host.ts";
import { asDisplayMode, asInsets, asTheme, finite, isDict, isWholeResult, metadataOf, own, text, valuesOf } from "./read.ts";
import { checkState } from "./state.ts";
import type { Dict, DisplayMode, ToolResult, Values } from "./types.ts";
import { Unavailable } from "./types.ts";

export class NativeHost implements Host {
  readonly kind = "openai";
  readonly ready = Promise.resolve();
  readonly #api: Dict;
  readonly #publish: (patch: Partial<Values>) => void;

  constructor(api: Dict, publish: (patch: Partial<Values>) => void) {
    this.#api = api;
    this.#publish = publish;
    publish(valuesFrom(api));
  }

  async callTool(name: string, args?: Dict): Promise<ToolResult> {
    const call = wantedCall(name, args);
    return (await this.#call("callTool", call.name, call.arguments)) as ToolResult;
  }

  async sendFollowUpMessage(message: { prompt: string }): Promise<void> {
    await this.#call("sendFollowUpMessage", { prompt: wantedPrompt(message) });
  }

  async uploadFile(file: File): Promise<{ fileId: string }> {
    return (await this.#call("uploadFile", file)) as { fileId: string };
  }

  async getFileDownloadUrl(file: { fileId: string }): Promise<{ downloadUrl: string }> {
    return (await this.#call("getFileDownloadUrl", file)) as { downloadUrl: string };
  }

  async requestDisplayMode(wish: { mode: DisplayMode }): Promise<{ mode: DisplayMode }> {
    const mode = wantedMode(wish);
    const granted = await this.#call("requestDisplayMode", { mode });
    return { mode: asDisplayMode(own(granted, "mode")) ?? mode };
  }

  requestModal(args: unknown): Promise<unknown> {
    return this.#call("requestModal", args);
  }

  async notifyIntrinsicHeight(height: number | { height: number }): Promise<void> {
    await this.#call("notifyIntrinsicHeight", { height: wantedHeight(height) });
  }

  async openExternal(link: { href: string }): Promise<void> {
    await this.#call("openExternal", { href: wantedHref(link) });
  }

  async requestClose(): Promise<void> {
    await this.#call("requestClose");
  }

  async setWidgetState(state: unknown): Promise<void> {
    checkState(state);
    this.#publish({ widgetState: state });
    await this.#call("setWidgetState", state);
  }

  async #call(name: string, ...args: unknown[]): Promise<unknown> {
    const method = this.#api[name];
    if (typeof method !== "function") throw new Unavailable(name, "this host does not offer it");
    return (await method.apply(this.#api, args)) as unknown;
  }
}

function valuesFrom(api: Dict): Partial<Values> {
  const output = api["toolOutput"];
  const patch: Partial<Values> = isWholeResult(output)
    ? valuesOf(output)
    : {
        toolOutput: output ?? null,
        toolResponseMetadata: metadataOf(api["toolResponseMetadata"]),
        call: { state: output === undefined || output === null ? "waiting" : "done", message: "" },
      };
  return { ...patch, widgetState: api["widgetState"] ?? null, ...surroundings(api) };
}

function surroundings(api: Dict): Partial<Values> {
  const patch: Partial<Values> = {};
  const theme = asTheme(api["theme"]);
  const mode = asDisplayMode(api["displayMode"]);
  const insets = asInsets(own(api["safeArea"], "insets"));
  const device = text(own(own(api["userAgent"], "device"), "type"));
  const can = own(api["userAgent"], "capabilities");
  if (isDict(api["toolInput"])) patch.toolInput = api["toolInput"];
  if (theme !== undefined) patch.theme = theme;
  if (mode !== undefined) patch.displayMode = mode;
  if (text(api["locale"]) !== "") patch.locale = text(api["locale"]);
  if (insets !== undefined) patch.safeArea = { insets };
  if (isDict(api["view"])) patch.view = { ...api["view"], mode: text(api["view"]["mode"]) || (mode ?? "inline") };
  if (device !== "") {
    const capabilities = { hover: own(can, "hover") === true, touch: own(can, "touch") === true };
    patch.userAgent = { device: { type: device }, capabilities };
  }
  patch.maxHeight = finite(api["maxHeight"]);
  return patch;
}
