/** Where the page is: `#/call/NAME`, `#/files`, `#/resources`, `#/history/ID`. Every view has an address. */
import { signal } from "@preact/signals";

export const route = signal(read());

function read(): { view: string; rest: string; query: URLSearchParams } {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", ...rest] = path.split("/");
  return { view: view || "call", rest: decode(rest.join("/")), query: new URLSearchParams(query) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function to(view: string, rest = "", query: Record<string, string> = {}): string {
  const asked = new URLSearchParams(query).toString();
  return `#/${view}${rest ? "/" + encodeURIComponent(rest) : ""}${asked ? "?" + asked : ""}`;
}

export function go(view: string, rest = "", query: Record<string, string> = {}): void {
  location.hash = to(view, rest, query);
}

/** Write another address for the place where one is. */
export function settle(href: string): void {
  history.replaceState(null, "", href);
  route.value = read();
}

addEventListener("hashchange", () => {
  route.value = read();
});
