/**
 * The proxy page: an origin of its own between the host and a widget. It makes the frame the widget runs in, which
 * has no origin at all, and passes messages on. What only host and proxy say to each other never comes from a widget.
 */

import { own } from "./bridge/read.ts";
import { framedDocument } from "./hosting/document.ts";

const RESERVED = "ui/notifications/sandbox-";

let inner: HTMLIFrameElement | undefined;
let hostOrigin: string | undefined;

window.addEventListener("message", (event) => {
  if (event.source === window.parent) fromHost(event);
  else if (inner !== undefined && event.source === inner.contentWindow) fromWidget(event.data);
});

if (window.parent !== window) {
  window.parent.postMessage({ jsonrpc: "2.0", method: `${RESERVED}proxy-ready`, params: {} }, "*");
}

function fromHost({ data, origin }: MessageEvent): void {
  hostOrigin ??= origin;
  if (origin !== hostOrigin || own(data, "jsonrpc") !== "2.0") return;
  if (own(data, "method") === `${RESERVED}resource-ready`) show(own(data, "params"));
  else if (!reserved(data)) inner?.contentWindow?.postMessage(data, "*");
}

function fromWidget(data: unknown): void {
  if (own(data, "jsonrpc") !== "2.0" || reserved(data) || hostOrigin === undefined) return;
  window.parent.postMessage(data, hostOrigin);
}

function reserved(data: unknown): boolean {
  const method = own(data, "method");
  return typeof method === "string" && method.startsWith(RESERVED);
}

function show(params: unknown): void {
  const html = own(params, "html");
  if (inner !== undefined || typeof html !== "string") return;
  inner = document.createElement("iframe");
  inner.setAttribute("sandbox", "allow-scripts");
  inner.setAttribute("referrerpolicy", "no-referrer");
  inner.title = document.title;
  inner.srcdoc = framedDocument(html, own(params, "csp"));
  document.body.append(inner);
}
