/** Text in columns, RFC 4180: quotes, doubled quotes, line breaks in quotes. Ragged rows stay as they are. */

const MARK = "\ufeff";
const BOM = [0xef, 0xbb, 0xbf];
const [LF, CR, QUOTE] = [10, 13, 34] as const;

/** Read up to `most` rows. */
export function parseDelimited(text: string, delimiter: string, most: number): string[][] {
  const by = delimiter.charCodeAt(0);
  const rows: string[][] = [];
  let row: string[] = [];
  let at = text.startsWith(MARK) ? 1 : 0;
  while (at < text.length) {
    let cell = "";
    if (text.charCodeAt(at) === QUOTE) {
      at += 1;
      for (;;) {
        const end = text.indexOf('"', at);
        cell += end < 0 ? text.slice(at) : text.slice(at, end);
        at = end < 0 ? text.length : end + 1;
        if (text.charCodeAt(at) !== QUOTE || end < 0) break;
        cell += '"';
        at += 1;
      }
    }
    // In one piece: letter by letter a large file takes seconds.
    const from = at;
    for (; at < text.length; at += 1) {
      const code = text.charCodeAt(at);
      if (code === by || code === LF || code === CR) break;
    }
    row.push(cell + text.slice(from, at));
    if (text.charCodeAt(at) === by) {
      at += 1;
      if (at < text.length) continue;
      row.push("");
    }
    if (text.charCodeAt(at) === CR && text.charCodeAt(at + 1) === LF) at += 1;
    at += 1;
    rows.push(row);
    if (rows.length >= most) break;
    row = [];
  }
  return rows;
}

/** Counts rows as they are read above, in bytes of UTF-8 that come part by part, and keeps none of them. */
export class RowCounter {
  #ended = 0;
  #by: number;
  /** In a row that has begun. */
  #open = false;
  #quoted = false;
  #atCell = true;
  #afterCr = false;

  constructor(delimiter: string) {
    this.#by = delimiter.charCodeAt(0);
  }

  get rows(): number {
    return this.#ended + (this.#open ? 1 : 0);
  }

  take(part: Uint8Array): void {
    const isFirst = this.rows === 0;
    for (const byte of isFirst && BOM.every((each, at) => part[at] === each) ? part.subarray(BOM.length) : part) {
      const afterCr = this.#afterCr;
      this.#afterCr = false;
      if (byte === QUOTE && (this.#quoted || this.#atCell)) {
        this.#quoted = !this.#quoted;
        // Doubled quotes leave a cell and enter it again.
        this.#atCell = !this.#quoted;
        this.#open = true;
      } else if (this.#quoted) continue;
      else if (byte === LF && afterCr) continue;
      else if (byte === LF || byte === CR) {
        this.#ended += 1;
        this.#open = false;
        this.#atCell = true;
        this.#afterCr = byte === CR;
      } else {
        this.#open = true;
        this.#atCell = byte === this.#by;
      }
    }
  }
}

/** The character that parts the cells of the first line most often. */
export function guessed(text: string): string {
  const line = text.slice(0, 10_000).split(/\r?\n/, 1)[0] ?? "";
  const best = [",", ";", "\t", "|"].map((each) => ({ each, times: line.split(each).length })).sort((one, other) => other.times - one.times)[0];
  return best?.each ?? ",";
}
