/** Text in columns, RFC 4180: quotes, doubled quotes, line breaks in quotes. Ragged rows stay as they are. */

const MARK = "\ufeff";
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

/** The character that parts the cells of the first line most often. */
export function guessed(text: string): string {
  const line = text.slice(0, 10_000).split(/\r?\n/, 1)[0] ?? "";
  const best = [",", ";", "\t", "|"].map((each) => ({ each, times: line.split(each).length })).sort((one, other) => other.times - one.times)[0];
  return best?.each ?? ",";
}
