/** What a widget and its host say to each other, in the words of `window.openai`. Source: seed 003, runtime bridge. */

export type Theme = "light" | "dark";
export type DisplayMode = "inline" | "pip" | "fullscreen";
export type Dict = Record<string, unknown>;

export interface Insets {
  top: number;
  right: number;
  bottom: number;
  left: number;
}

/** The values a host gives a widget. Widgets read them through the hooks. */
export interface Globals {
  toolInput: Dict;
  toolOutput: unknown;
  toolResponseMetadata: Dict | null;
  widgetState: unknown;
  theme: Theme;
  locale: string;
  displayMode: DisplayMode;
  /** Pixels; undefined while the host sets no limit. */
  maxHeight: number | undefined;
  userAgent: { device: { type: string }; capabilities: { hover: boolean; touch: boolean } };
  safeArea: { insets: Insets };
  view: Dict & { mode: string };
}

/** How far the call is whose result the widget shows. */
export interface CallState {
  state: "waiting" | "done" | "failed" | "cancelled";
  message: string;
}

/** Everything that can be subscribed to. */
export interface Values extends Globals {
  call: CallState;
}

export interface ToolResult {
  content?: { type: string; text?: string; [key: string]: unknown }[];
  structuredContent?: unknown;
  isError?: boolean;
  _meta?: Dict;
  [key: string]: unknown;
}

/** What a widget may ask of its host. A promise is rejected with `unavailable` where the host has no such thing. */
export interface Methods {
  callTool(name: string, args?: Dict): Promise<ToolResult>;
  sendFollowUpMessage(message: { prompt: string }): Promise<void>;
  uploadFile(file: File): Promise<{ fileId: string }>;
  getFileDownloadUrl(file: { fileId: string }): Promise<{ downloadUrl: string }>;
  requestDisplayMode(wish: { mode: DisplayMode }): Promise<{ mode: DisplayMode }>;
  requestModal(args: unknown): Promise<unknown>;
  notifyIntrinsicHeight(height: number | { height: number }): Promise<void>;
  openExternal(link: { href: string }): Promise<void>;
  requestClose(): Promise<void>;
  setWidgetState(state: unknown): Promise<void>;
}

export const METHOD_NAMES = [
  "callTool",
  "sendFollowUpMessage",
  "uploadFile",
  "getFileDownloadUrl",
  "requestDisplayMode",
  "requestModal",
  "notifyIntrinsicHeight",
  "openExternal",
  "requestClose",
  "setWidgetState",
] as const satisfies readonly (keyof Methods)[];

export const GLOBAL_NAMES = [
  "toolInput",
  "toolOutput",
  "toolResponseMetadata",
  "widgetState",
  "theme",
  "locale",
  "displayMode",
  "maxHeight",
  "userAgent",
  "safeArea",
  "view",
] as const satisfies readonly (keyof Globals)[];

/** A host that has no such method, or no host at all. */
export class Unavailable extends Error {
  constructor(method: string, why: string) {
    super(`${method} is unavailable: ${why}`);
    this.name = "Unavailable";
  }
}
