/** Text in columns, RFC 4180: quotes, doubled quotes, line breaks in quotes. Ragged rows stay as they are. */

export function parseDelimited(text: string, delimiter: string | null, most: number): string[][] {
  const by = delimiter ?? guessed(text);
  const rows: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let quoted = false;
  const begin = text.startsWith("\ufeff") ? 1 : 0;
  for (let at = begin; at < text.length; at += 1) {
    const character = text[at];
    if (quoted) {
      if (character !== '"') cell += character;
      else if (text[at + 1] === '"') { cell += '"'; at += 1; }
      else quoted = false;
    } else if (character === '"' && cell === "") quoted = true;
    else if (character === by) { row.push(cell); cell = ""; }
    else if (character === "\n" || character === "\r") {
      if (character === "\r" && text[at + 1] === "\n") at += 1;
      row.push(cell);
      rows.push(row);
      if (rows.length >= most) return rows;
      row = [];
      cell = "";
    } else cell += character;
  }
  if (cell !== "" || row.length > 0) rows.push([...row, cell]);
  return rows;
}

function guessed(text: string): string {
  const line = text.slice(0, 10_000).split(/\r?\n/, 1)[0] ?? "";
  const best = [",", ";", "\t", "|"].map((each) => ({ each, times: line.split(each).length })).sort((one, other) => other.times - one.times)[0];
  return best?.each ?? ",";
}
