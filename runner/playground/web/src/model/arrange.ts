/** Files found by words and sorted. */
import type { Stored } from "./files";

export type Column = "filename" | "size" | "origin" | "created" | "expires_at";

export interface Order {
  column: Column;
  down: boolean;
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
