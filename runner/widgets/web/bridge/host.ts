/** What the runtime needs of a host, and a host that does nothing. */

import type { Methods } from "./types.ts";
import { Unavailable } from "./types.ts";

export type HostKind = "openai" | "mcp-app" | "none";

export interface Host extends Methods {
  readonly kind: HostKind;
  /** Settled once the host has introduced itself; rejected if it never does. */
  readonly ready: Promise<void>;
}

const NO_HOST = "no host";

/** A page that was opened by itself. */
export const noHost: Host = {
  kind: "none",
  ready: Promise.resolve(),
  callTool: () => Promise.reject(new Unavailable("callTool", NO_HOST)),
  sendFollowUpMessage: () => Promise.reject(new Unavailable("sendFollowUpMessage", NO_HOST)),
  uploadFile: () => Promise.reject(new Unavailable("uploadFile", NO_HOST)),
  getFileDownloadUrl: () => Promise.reject(new Unavailable("getFileDownloadUrl", NO_HOST)),
  requestDisplayMode: () => Promise.reject(new Unavailable("requestDisplayMode", NO_HOST)),
  requestModal: () => Promise.reject(new Unavailable("requestModal", NO_HOST)),
  notifyIntrinsicHeight: () => Promise.reject(new Unavailable("notifyIntrinsicHeight", NO_HOST)),
  openExternal: () => Promise.reject(new Unavailable("openExternal", NO_HOST)),
  requestClose: () => Promise.reject(new Unavailable("requestClose", NO_HOST)),
  setWidgetState: () => Promise.reject(new Unavailable("setWidgetState", NO_HOST)),
};
