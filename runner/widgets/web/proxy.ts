/**
 * The proxy page: an origin of its own between the host and a widget. It makes the frame the widget runs in, which
 * has no origin at all, and passes messages on. What only host and proxy say to each other never comes from a widget.
 *
 * A widget that floods is stopped here, before the host hears of it. Whether it is alive only its own frame can
 * say; the answer passes once for each question.
 */

import { own } from "./bridge/read.ts";
import { framedDocument } from "./hosting/document.ts";
import { Budget } from "./hosting/limits.ts";

const RESERVED = "ui/notifications/sandbox-";
const PING = "toolcell/ping";
const PONG = "toolcell/pong";
// A little more than the host takes, which says what it drops.
const passing = new Budget(60, 120);
// Dropping costs time too. A sender without an answer for so long has no right to more of it.
const dropping = new Budget(1_000, 10_000);

let inner: HTMLIFrameElement | undefined;
let hostOrigin: string | undefined;
let awaited: unknown;
let stopped: "flooded" | "left" | undefined;

window.addEventListener("message", (event) => {
  if (event.source === window.parent) fromHost(event);
  else if (inner !== undefined && event.source === inner.contentWindow) fromWidget(event);
});

if (window.parent !== window) {
  window.parent.postMessage({ jsonrpc: "2.0", method: `${RESERVED}proxy-ready`, params: {} }, "*");
}

function fromHost({ data, origin }: MessageEvent): void {
  hostOrigin ??= origin;
  if (origin !== hostOrigin || own(data, "jsonrpc") !== "2.0") return;
  if (own(data, "method") === PING) {
    awaited = own(own(data, "params"), "n");
    // Said again: in a flood the host may have dropped it.
    if (stopped !== undefined) tellStopped();
  }
  if (own(data, "method") === `${RESERVED}resource-ready`) show(own(data, "params"));
  else if (!reserved(data)) inner?.contentWindow?.postMessage(data, "*");
}

function fromWidget(event: MessageEvent): void {
  const now = performance.now();
  // Before the message is looked at: the browser reads it only then, and it may be large.
  if (!passing.admits(now)) {
    if (!dropping.admits(now)) stop("flooded");
    return;
  }
  const data: unknown = event.data;
  if (own(data, "jsonrpc") !== "2.0" || reserved(data)) return;
  if (own(data, "method") === PONG) {
    if (awaited === undefined || own(own(data, "params"), "n") !== awaited) return;
    awaited = undefined;
  }
  tell(data);
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
  // Once for the widget. Again: it went elsewhere, or tried to.
  inner.addEventListener("load", () => inner?.addEventListener("load", () => stop("left")), { once: true });
  document.body.append(inner);
}

/** Take the frame away, and with it whatever goes on in it. */
function stop(why: "flooded" | "left"): void {
  stopped ??= why;
  inner?.remove();
  tellStopped();
}

function tellStopped(): void {
  tell({ jsonrpc: "2.0", method: `${RESERVED}${stopped}`, params: {} });
}

function tell(data: unknown): void {
  if (hostOrigin !== undefined) window.parent.postMessage(data, hostOrigin);
}
