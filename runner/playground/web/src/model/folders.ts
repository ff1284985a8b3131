/** My Files in order: found by words, sorted, and in folders made of what the server knows of each file. */
import { viewerOf, type Viewer } from "../canvas/items";
import type { Stored } from "./files";
import { T } from "../texts/texts";

export type Grouping = "none" | "origin" | "kind" | "day" | "name";
export type Column = "filename" | "size" | "origin" | "created" | "expires_at";

export interface Order {
  column: Column;
  down: boolean;
}

export interface Folder {
  name: string;
  files: number;
  size: number;
}

const KINDS: Record<Viewer, keyof typeof T.files.kinds> = {
  image: "pictures", pdf: "pdf", html: "pages", markdown: "texts", table: "tables", json: "data", code: "texts", audio: "sound", video: "film",
  sheets: "tables", none: "others",
};

/** The folder of a file. */
export function folderOf(file: Stored, by: Grouping): string {
  switch (by) {
    case "origin": return T.files.folderOrigins[file.origin] ?? file.origin;
    case "kind": return T.files.kinds[KINDS[viewerOf(file.filename, file.content_type, null)]];
    case "day": return dayOf(file.created);
    // What people put before the first separator: report_1.csv and report-2.csv belong together.
    case "name": return /^[\p{L}\p{N}]+(?=[ _.-])/u.exec(file.filename)?.[0] ?? T.files.kinds.others;
    default: return "";
  }
}

function dayOf(iso: string): string {
  const time = new Date(iso);
  if (Number.isNaN(time.valueOf())) return T.files.unknownDay;
  return `${time.getFullYear()}-${String(time.getMonth() + 1).padStart(2, "0")}-${String(time.getDate()).padStart(2, "0")}`;
}

/** All folders; of days the last one first. */
export function foldersOf(files: readonly Stored[], by: Grouping): Folder[] {
  const found = new Map<string, Folder>();
  for (const file of files) {
    const name = folderOf(file, by);
    const folder = found.get(name) ?? { name, files: 0, size: 0 };
    found.set(name, { name, files: folder.files + 1, size: folder.size + file.size });
  }
  const sorted = [...found.values()].sort((one, other) => COLLATOR.compare(one.name, other.name));
  return by === "day" ? sorted.reverse() : sorted;
}

// One for all: a new one for each comparison would make ten thousand names slow. file2 comes before file10.
const COLLATOR = new Intl.Collator(undefined, { numeric: true });

export function arranged(files: readonly Stored[], words: string, order: Order): Stored[] {
  const wanted = words.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const found = files.filter((file) => {
    const said = `${file.filename} ${file.content_type} ${file.origin}`.toLowerCase();
    return wanted.every((word) => said.includes(word));
  });
  const sign = order.down ? -1 : 1;
  return found.sort((one, other) => sign * compared(one, other, order.column) || COLLATOR.compare(one.filename, other.filename));
}

function compared(one: Stored, other: Stored, column: Column): number {
  switch (column) {
    case "size": return one.size - other.size;
    case "created": return Date.parse(one.created) - Date.parse(other.created);
    // What never ends comes last.
    case "expires_at": return momentOf(one.expires_at) - momentOf(other.expires_at);
    default: return COLLATOR.compare(one[column], other[column]);
  }
}

function momentOf(iso: string | null): number {
  return iso === null ? Number.MAX_SAFE_INTEGER : Date.parse(iso);
}
