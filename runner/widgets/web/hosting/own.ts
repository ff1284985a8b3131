/** Which addresses are the page's own server: nothing shown in the page may lead there, or load from there. */

import type { Csp } from "./document.ts";

const LISTS = ["connectDomains", "resourceDomains", "frameDomains"] as const;

/** Whether an address is of the server that a page came from, by whatever name it is called. */
export function isOwn(address: URL, page: Pick<URL, "protocol" | "hostname" | "port">): boolean {
  if (port(address) !== port(page)) return false;
  return address.hostname === page.hostname || (isThisMachine(address.hostname) && isThisMachine(page.hostname));
}

/** The lists of a policy without what names the page's own server, also by a pattern or for sockets. */
export function withoutOwn(csp: Csp, page: Pick<URL, "protocol" | "hostname" | "port">): Csp {
  const kept = { ...csp };
  for (const list of LISTS) {
    const named = csp[list];
    if (Array.isArray(named)) kept[list] = named.filter((source) => !covers(String(source), page));
  }
  return kept;
}

function covers(source: string, page: Pick<URL, "protocol" | "hostname" | "port">): boolean {
  try {
    const address = new URL(source.replace("://*.", "://"));
    if (isOwn(address, page)) return true;
    return source.includes("://*.") && port(address) === port(page) && page.hostname.endsWith(`.${address.hostname}`);
  } catch {
    return false; // no origin, which no policy takes
  }
}

/** Every name of the loopback and of "any address", which leads there too. */
function isThisMachine(name: string): boolean {
  return /^(?:(?:.*\.)?localhost\.?|127(?:\.\d+){3}|0\.0\.0\.0|\[::1?\]|\[::ffff:(?:7f[0-9a-f]{2}:[0-9a-f]+|0:0)\])$/i.test(name);
}

function port({ protocol, port: given }: Pick<URL, "protocol" | "port">): string {
  return given === "" ? (/^(?:https|wss):$/.test(protocol) ? "443" : "80") : given;
}
