/** Which server behind a proxy something belongs to. The proxy writes names as `runner/proxy/namespacing.py` says. */
import { here } from "./connections";
import { info } from "./info";

/** The server of a tool; empty where nothing is renamed. */
export function serverOfTool(name: string): string {
  const fitting = servers().filter((server) => name.startsWith(`${server}_`));
  return fitting.sort((one, other) => other.length - one.length)[0] ?? "";
}

/** The server of a resource: `scheme://SERVER/…`, or `SERVER+…` where a URI has no slashes. */
export function serverOfUri(uri: string): string {
  return servers().find((server) => uri.includes(`://${server}/`) || uri.startsWith(`${server}+`)) ?? "";
}

/** What a server's own tool is called here. */
export function toolOf(server: string, name: string): string {
  return server === "" ? name : `${server}_${name}`;
}

/** What a server's own address is here. */
export function uriOf(server: string, uri: string): string {
  if (server === "") return uri;
  const [scheme = "", rest] = uri.split(/:\/\/(.*)/s, 2);
  return rest === undefined ? `${server}+${uri}` : `${scheme}://${server}/${rest}`;
}

function servers(): string[] {
  return here.value.isOwn ? (info.value?.servers ?? []) : [];
}
