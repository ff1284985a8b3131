/** What a result gives to look at, and which viewer shows it. */
import { isObject, tryJson, type Json } from "../model/json";
import type { Params } from "../model/connection";
import type { Run } from "../model/runs";
import { size as words } from "../texts/numbers";
import { contractOf } from "../views/result";

export type Viewer = "image" | "pdf" | "html" | "markdown" | "table" | "json" | "code" | "audio" | "video" | "sheets" | "none";

export interface Item {
  name: string;
  mime: string;
  size: number;
  uri: string;
  description: string | null;
  /** The moment at which it is gone, as an ISO time; null where none is said. */
  expires: string | null;
  viewer: Viewer;
  /** Whether its tool said how to show it. */
  hinted?: boolean;
  /** What kind of file it is, in the tool's word; null where nobody says. */
  category?: string | null;
  /** Why it is kept for later, and what its tool proposes to do with it. */
  reason?: string | null;
  next?: string[];
}

/** A resource that a result names and does not carry. */
export interface Link {
  uri: string;
  name: string;
  about: string;
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
  /** What was taken out of the result, or is named in it by reference only. */
  references: Item[];
  links: Link[];
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
  const hints = isObject(contract?.["display"]) ? contract["display"] : {};
  const category = textOf(hints["category_hint"]);
  const listed = [...list(contract?.["artifacts"]), ...list(contract?.["deferred_artifacts"])].map(itemOf).filter((item): item is Item => item !== null);
  for (const item of listed) item.category ??= category;
  const rank = (item: Item): number => {
    const at = order.indexOf(item.name);
    return at < 0 ? order.length : at;
  };
  listed.sort((one, other) => rank(one) - rank(other));
  const [first] = listed;
  // The hint of the display is about the first file, and its own goes before.
  if (first !== undefined && first.name === order[0] && !first.hinted) first.viewer = viewerOf(first.name, first.mime, textOf(hints["viewer_hint"]));
  const named = new Set(listed.map((item) => item.uri));
  return {
    open: display["open"] === true,
    items: listed,
    references: run.result === null ? [] : referencesIn([contract?.["results"] ?? null, run.result["content"] ?? null]).filter((item) => !named.has(item.uri)),
    links: linksIn(list(run.result?.["content"]), list(contract?.["links"])),
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

const MOST_DEPTH = 20;
const MOST_REFERENCES = 200;

/** The references that the runner left in place of what is too long or binary: `{artifact: {id, …}, summary}`. */
function referencesIn(given: Json): Item[] {
  const found = new Map<string, Item>();
  const look = (value: Json, depth: number): void => {
    if (depth > MOST_DEPTH || found.size >= MOST_REFERENCES) return;
    if (Array.isArray(value)) for (const each of value) look(each, depth + 1);
    if (!isObject(value)) return;
    const add = (uri: string, ref: Params, size: Json | undefined, description: Json | undefined): void => {
      const name = textOf(ref["filename"] ?? ref["name"]) ?? uri;
      const mime = textOf(ref["mime_type"] ?? ref["mimeType"]) ?? "application/octet-stream";
      found.set(uri, { name, mime, size: Number(size ?? 0), uri, description: textOf(description), expires: null, viewer: viewerOf(name, mime, null) });
    };
    const { artifact: ref, uri } = value;
    if (isObject(ref) && typeof ref["id"] === "string" && /^\w+$/.test(ref["id"])) add(`artifact://${ref["id"]}`, ref, ref["size_bytes"], value["summary"]);
    // What another server sent as bytes is a link to where it is kept.
    if (value["type"] === "resource_link" && typeof uri === "string" && /^artifact:\/\/\w+$/.test(uri) && !found.has(uri)) add(uri, value, value["size"], value["description"]);
    // The text that a model reads is the same as JSON.
    if (value["type"] === "text" && typeof value["text"] === "string" && value["text"].includes('"artifact"')) look(tryJson(value["text"]), depth + 1);
    for (const each of Object.values(value)) look(each, depth + 1);
  };
  look(given, 0);
  return [...found.values()];
}

/** Resources that are named and can be read; files of the user's own are shown as such. */
function linksIn(content: Params[], links: Params[]): Link[] {
  const found = new Map<string, Link>();
  for (const each of [...links, ...content.filter((block) => block["type"] === "resource_link")]) {
    const uri = each["uri"];
    if (typeof uri !== "string" || uri.startsWith("artifact://")) continue;
    const size = typeof each["size"] === "number" ? words(each["size"]) : null;
    found.set(uri, { uri, name: textOf(each["title"]) ?? textOf(each["name"]) ?? uri, about: [textOf(each["mimeType"]), size, textOf(each["description"])].filter((part) => part !== null).join(", ") });
  }
  return [...found.values()];
}

/** A file that a tool shows while it runs. */
export function itemOf(entry: Params): Item | null {
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
    hinted: hint !== null && hint !== "auto",
    category: textOf(entry["category"]),
    reason: textOf(entry["reason"]),
    next: Array.isArray(entry["next_actions"]) ? entry["next_actions"].map(String) : [],
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
  [/^text\/(csv|tab-separated-values)$/, "table"],
  [/spreadsheetml\.sheet$|ms-excel\.sheet\.macroenabled/, "sheets"],
  [/^application\/(x-)?zip(-compressed)?$|(wordprocessing|presentation)ml\.|ms-(word|powerpoint)\.|parquet/, "none"],
  [/json$/, "json"],
  [/^audio\//, "audio"],
  [/^video\//, "video"],
  [/^text\/|(javascript|xml|yaml|toml|sql|x-sh|x-python)$/, "code"],
];

const BY_NAME: Record<string, Viewer> = {
  md: "markdown", markdown: "markdown", csv: "table", tsv: "table", json: "json", jsonl: "json", ndjson: "json", geojson: "json", ipynb: "json",
  py: "code", ts: "code", js: "code", rs: "code", go: "code", c: "code", h: "code", cpp: "code", java: "code", sh: "code", sql: "code", toml: "code",
  yaml: "code", yml: "code", ini: "code", txt: "code", log: "code", css: "code", diff: "code", xml: "code",
  xlsx: "sheets", xlsm: "sheets",
};

const TEXTS: Viewer[] = ["html", "markdown", "table", "json", "code"];

export function viewerOf(name: string, mime: string, hint: string | null): Viewer {
  const ending = /\.([A-Za-z0-9]{1,10})$/.exec(name)?.[1]?.toLowerCase() ?? "";
  // Content of one kind is never shown by the viewer of another on the word of its name.
  const known = BY_MIME.find(([pattern]) => pattern.test(mime.toLowerCase()))?.[1];
  const named = BY_NAME[ending];
  // A workbook is a ZIP archive, and may be called one.
  const found = known === undefined || (named === "sheets" && known === "none") || known === "code" || mime === "application/octet-stream" ? (named ?? known ?? "none") : known;
  // Any text can be read as code, and as data where it has rows or keys.
  if (hint === "code" && TEXTS.includes(found)) return "code";
  if (hint === "data" && TEXTS.includes(found)) return ["json", "table"].includes(found) ? found : "table";
  return found;
}
