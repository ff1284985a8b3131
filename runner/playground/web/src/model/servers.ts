/** Which server behind a proxy something belongs to. The proxy writes names as `runner/proxy/namespacing.py` says. */
import { info } from "./info";

/** The server of a tool; empty where nothing is renamed. */
export function serverOfTool(name: string): string {
  return longest(servers().filter((server) => name.startsWith(`${server}_`)));
}

/** The server of a resource: `scheme://SERVER/…`, or `SERVER+…` where a URI has no slashes. */
export function serverOfUri(uri: string): string {
  const slashes = uri.indexOf("://");
  return longest(servers().filter((server) => slashes < 0 ? uri.startsWith(`${server}+`) : uri.startsWith(`${server}/`, slashes + 3)));
}

/** What a server's own tool is called here. */
export function toolOf(server: string, name: string): string {
  return server === "" ? name : `${server}_${name}`;
}

function longest(fitting: string[]): string {
  return fitting.sort((one, other) => other.length - one.length)[0] ?? "";
}

function servers(): string[] {
  return info.value?.servers ?? [];
}
