/** What a result gives to look at, and which viewer shows it. */
import { isObject, type Json } from "../model/json";
import type { Params } from "../model/mcp";
import type { Run } from "../model/runs";
import { contractOf } from "../views/result";

export type Viewer = "image" | "pdf" | "html" | "markdown" | "table" | "json" | "code" | "audio" | "video" | "none";

export interface Item {
  name: string;
  mime: string;
  size: number;
  uri: string;
  description: string | null;
  /** The moment at which it is gone, as an ISO time; null where none is said. */
  expires: string | null;
  viewer: Viewer;
}

export interface Panel {
  id: string | null;
  url: string;
  title: string;
  sandbox: string[];
  persistence: "session" | "ephemeral" | "pinned";
}

export interface Shown {
  open: boolean;
  items: Item[];
  panel: Panel | null;
  /** Why a page that the tool wanted is not shown. */
  refused: string | null;
  /** What the tool wants people told. */
  notification: string | null;
}

/** Read what a run made; in the order in which the runner says it is shown. */
export function shownOf(run: Run): Shown {
  const contract = run.result === null ? null : contractOf(run.result);
  const meta = isObject(run.result?.["_meta"]) ? run.result["_meta"] : {};
  const display = isObject(meta["toolcell/display"]) ? meta["toolcell/display"] : {};
  const order = Array.isArray(display["order"]) ? display["order"] : [];
  const listed = [...list(contract?.["artifacts"]), ...list(contract?.["deferred_artifacts"])].map(itemOf).filter((item): item is Item => item !== null);
  const rank = (item: Item): number => {
    const at = order.indexOf(item.name);
    return at < 0 ? order.length : at;
  };
  listed.sort((one, other) => rank(one) - rank(other));
  return {
    open: display["open"] === true,
    items: listed,
    panel: panelOf(display["iframe"]),
    refused: textOf(display["reason"]),
    notification: textOf(display["notification"]),
  };
}

function textOf(value: Json | undefined): string | null {
  return typeof value === "string" ? value : null;
}

function list(value: Json | undefined): Params[] {
  return Array.isArray(value) ? value.filter(isObject) : [];
}

function itemOf(entry: Params): Item | null {
  const uri = entry["uri"];
  if (typeof uri !== "string" || !uri.startsWith("artifact://")) return null;
  const name = String(entry["name"] ?? uri);
  const mime = String(entry["mime"] ?? "application/octet-stream");
  const hint = typeof entry["viewer"] === "string" ? entry["viewer"] : null;
  return {
    name,
    mime,
    size: Number(entry["size"] ?? 0),
    uri,
    description: typeof entry["description"] === "string" ? entry["description"] : null,
    expires: textOf(entry["expires_at"]),
    viewer: viewerOf(name, mime, hint),
  };
}

/** Read a dashboard that a result or the browser's store names. */
export function panelOf(value: Json | undefined): Panel | null {
  if (!isObject(value)) return null;
  const url = value["src"] ?? value["url"];
  if (typeof url !== "string") return null;
  const persistence = value["persistence"];
  return {
    id: typeof value["id"] === "string" ? value["id"] : null,
    url,
    title: String(value["title"] ?? url),
    sandbox: Array.isArray(value["sandbox"]) ? value["sandbox"].map(String) : ["allow-scripts", "allow-forms"],
    persistence: persistence === "ephemeral" || persistence === "pinned" ? persistence : "session",
  };
}

const BY_MIME: [RegExp, Viewer][] = [
  [/^image\//, "image"],
  [/^application\/pdf$/, "pdf"],
  [/^text\/html$|^application\/xhtml\+xml$/, "html"],
  [/^text\/markdown$/, "markdown"],
  [/^text\/(csv|tab-separated-values)$|parquet/, "table"],
  [/json$/, "json"],
  [/^audio\//, "audio"],
  [/^video\//, "video"],
  [/^text\/|(javascript|xml|yaml|toml|sql|x-sh|x-python)$/, "code"],
];

const BY_NAME: Record<string, Viewer> = {
  md: "markdown", markdown: "markdown", csv: "table", tsv: "table", parquet: "table", json: "json", jsonl: "json", ndjson: "json", geojson: "json",
  py: "code", ts: "code", js: "code", rs: "code", go: "code", c: "code", h: "code", cpp: "code", java: "code", sh: "code", sql: "code", toml: "code",
  yaml: "code", yml: "code", ini: "code", txt: "code", log: "code", css: "code", diff: "code", xml: "code",
};

export function viewerOf(name: string, mime: string, hint: string | null): Viewer {
  const ending = /\.([A-Za-z0-9]{1,10})$/.exec(name)?.[1]?.toLowerCase() ?? "";
  // Content of one kind is never shown by the viewer of another on the word of its name.
  const known = BY_MIME.find(([pattern]) => pattern.test(mime.toLowerCase()))?.[1];
  const named = BY_NAME[ending];
  const found = known === undefined || known === "code" || mime === "application/octet-stream" ? (named ?? known ?? "none") : known;
  if (hint === "code" && found !== "none" && !["audio", "video", "image", "pdf"].includes(found)) return "code";
  return found;
}
