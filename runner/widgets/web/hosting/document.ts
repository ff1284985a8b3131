/** Make of a widget's HTML the document that runs in the innermost frame: policy first, then the widget. */

import { own } from "../bridge/read.ts";
import { keepAlone, withoutShadows } from "./guard.ts";

/** Origins a widget may reach, as its resource declares them. */
export interface Csp {
  connectDomains?: string[];
  resourceDomains?: string[];
  frameDomains?: string[];
}

const ORIGIN = /^(https?|wss?):\/\/(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*(:\d{1,5})?$/i;
const MAX_ORIGINS = 50;
// What the policy stops is known in this frame only: the host's log hears of it from here.
const TELLING =
  'addEventListener("securitypolicyviolation",e=>parent.postMessage({jsonrpc:"2.0",method:"toolcell/violation",' +
  'params:{directive:e.effectiveDirective,blocked:String(e.blockedURI).slice(0,500),line:e.lineNumber}},"*"));';
// Whether the widget hangs is known in this frame only, too: it answers as long as it can do anything at all.
const ANSWERING =
  'addEventListener("message",e=>{if(e.source!==parent||e.data?.method!=="toolcell/ping")return;e.stopImmediatePropagation();' +
  'parent.postMessage({jsonrpc:"2.0",method:"toolcell/pong",params:e.data.params},"*")},true);';
const PRELUDE = `${TELLING}${ANSWERING}(${keepAlone})();`;

/** Put the policy before anything the widget brings. A second doctype is ignored, attributes of `html` are merged. */
export function framedDocument(html: string, csp: unknown): string {
  return `<!doctype html><meta http-equiv="Content-Security-Policy" content="${policy(csp)}"><script>${PRELUDE}</script>${withoutShadows(html)}`;
}

export function policy(csp: unknown): string {
  const connect = origins(own(csp, "connectDomains"));
  const resources = origins(own(csp, "resourceDomains")).filter((origin) => !origin.startsWith("ws"));
  const list = (...sources: string[]): string => sources.join(" ");
  return [
    "default-src 'none'",
    `script-src ${list("'unsafe-inline'", ...resources)}`,
    `style-src ${list("'unsafe-inline'", ...resources)}`,
    `img-src ${list("data:", "blob:", ...resources)}`,
    `font-src ${list("data:", ...resources)}`,
    `media-src ${list("data:", "blob:", ...resources)}`,
    `connect-src ${connect.length === 0 ? "'none'" : list(...connect)}`,
    "frame-src 'none'",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; ");
}

/** Only what is an origin: anything else could end a directive and begin another. */
function origins(value: unknown): string[] {
  if (!Array.isArray(value)) return [];
  return value.filter((one): one is string => typeof one === "string" && ORIGIN.test(one)).slice(0, MAX_ORIGINS);
}
