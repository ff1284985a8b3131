/** Whether the text of a link says where it leads. */

const NAMED = /(?:[\p{L}\p{N}_-]{1,63}\.){1,8}[\p{L}\p{N}-]{2,63}|\[[0-9a-f:.]{2,45}\]/giu;

/** The host or mailbox to which an address leads, as it is written in ASCII; empty where there is none. */
export function leadsTo(href: string): string {
  try {
    const url = new URL(href);
    return url.protocol === "mailto:" ? decodeURIComponent(url.pathname) : url.host;
  } catch {
    return "";
  }
}

/** Whether a text names a host, and not the one to which the address leads. */
export function namesAnotherHost(text: string, href: string): boolean {
  const real = hostOf(leadsTo(href).split("@").pop() ?? "");
  return [...text.slice(0, 1000).matchAll(NAMED)].some(([name]) => {
    const host = hostOf(name);
    return host !== undefined && (real === undefined || !related(host, real));
  });
}

/** The same, or a part of the real one. Not the other way round: below some hosts anybody may have a name. */
function related(named: string, real: string): boolean {
  return named === real || named.endsWith(`.${real}`);
}

function hostOf(name: string): string | undefined {
  try {
    return new URL(`http://${name}`).hostname.replace(/^www\./, "");
  } catch {
    return undefined;
  }
}
