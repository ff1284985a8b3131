/** Workbooks, xlsx: values as they were last worked out. Nothing is calculated; a formula without a value is its text. */
import { readPart, type Archive } from "./archive";
import { parsed, relations, tags, valueOf, within } from "./xml";

const MOST_PART = 2_000_000;
const MOST_SHEET = 40_000_000;
const MOST_ROWS = 100_000;
const MOST_COLUMNS = 200;
const MOST_CELLS = 1_000_000;
const MOST_STRINGS = 500_000;
// Tags read at a stretch before the page may do something else.
const AT_A_STRETCH = 20_000;

export interface SheetName {
  name: string;
  path: string;
  hidden: boolean;
}

export interface Workbook {
  sheets: SheetName[];
  /** Whether it brings programs, which are never run. */
  macros: boolean;
  strings: string[];
  /** Of each style, whether its number is a moment. */
  moments: boolean[];
  /** Whether days are counted from 1904. */
  since1904: boolean;
}

export interface Cells {
  rows: string[][];
  cut: boolean;
}

export async function readWorkbook(archive: Archive, signal: AbortSignal): Promise<Workbook> {
  const text = await readPart(archive, "xl/workbook.xml", MOST_PART, signal);
  if (text === null) throw new Error("there is no workbook in it");
  const leads = relations(await readPart(archive, "xl/_rels/workbook.xml.rels", MOST_PART, signal));
  const book = parsed(text);
  const sheets = within(book, "sheet").map((each) => {
    const target = leads.get([...each.attributes].find((one) => one.localName === "id")?.value ?? "") ?? "";
    return { name: each.getAttribute("name") ?? "", path: target.startsWith("/") ? target.slice(1) : `xl/${target}`, hidden: (each.getAttribute("state") ?? "visible") !== "visible" };
  });
  return {
    sheets,
    macros: archive.names.some((each) => each.endsWith("vbaProject.bin")),
    strings: await strings(await readPart(archive, "xl/sharedStrings.xml", MOST_SHEET, signal), signal),
    moments: moments(await readPart(archive, "xl/styles.xml", MOST_PART, signal)),
    since1904: ["1", "true"].includes(within(book, "workbookPr")[0]?.getAttribute("date1904") ?? ""),
  };
}

async function pause(signal: AbortSignal): Promise<void> {
  await new Promise((done) => setTimeout(done));
  if (signal.aborted) throw new Error("left");
}

async function strings(text: string | null, signal: AbortSignal): Promise<string[]> {
  const found: string[] = [];
  let now = "";
  let inside = false;
  let phonetic = false;
  let count = 0;
  for (const tag of text === null ? [] : tags(text)) {
    count += 1;
    if (count % AT_A_STRETCH === 0) await pause(signal);
    if (tag.name === "t") {
      if (inside && !phonetic) now += tag.before;
      inside = tag.kind === "begin";
    } else if (tag.name === "rPh") phonetic = tag.kind === "begin";
    else if (tag.name === "si" && tag.kind !== "begin") {
      found.push(now);
      now = "";
      if (found.length >= MOST_STRINGS) break;
    }
  }
  return found;
}

function moments(text: string | null): boolean[] {
  if (text === null) return [];
  const styles = parsed(text);
  const own = new Map(within(styles, "numFmt").map((each) => [each.getAttribute("numFmtId"), each.getAttribute("formatCode") ?? ""]));
  return within(styles, "cellXfs").slice(0, 1).flatMap((all) => [...all.children]).map((each) => {
    const id = each.getAttribute("numFmtId");
    const code = own.get(id);
    // What stands in quotes or brackets is text or a colour.
    if (code !== undefined) return /[dmyhs]/i.test(code.replaceAll(/"[^"]*"|\[[^\]]*\]|\\./g, ""));
    const number = Number(id);
    return (number >= 14 && number <= 22) || (number >= 45 && number <= 47);
  });
}

export async function readCells(archive: Archive, book: Workbook, sheet: SheetName, signal: AbortSignal): Promise<Cells> {
  const text = await readPart(archive, sheet.path, MOST_SHEET, signal);
  if (text === null) throw new Error("the sheet is not in the file");
  const rows: string[][] = [];
  let cell = { column: 0, type: "", style: 0, value: "", formula: "" };
  let row = -1;
  let column = -1;
  let count = 0;
  let cells = 0;
  let cut = false;
  for (const tag of tags(text)) {
    count += 1;
    if (count % AT_A_STRETCH === 0) await pause(signal);
    if (tag.name === "row" && tag.kind !== "end") {
      const said = Number(valueOf(tag.attributes, "r") ?? Number.NaN);
      row = Number.isInteger(said) && said > row ? said - 1 : row + 1;
      column = -1;
      // What a sheet declares costs nothing: only rows before the bound are there.
      if (row >= MOST_ROWS || cells >= MOST_CELLS) {
        cut = true;
        break;
      }
    } else if (tag.name === "c" && tag.kind === "begin") {
      const said = columnOf(valueOf(tag.attributes, "r"));
      column = said ?? column + 1;
      cell = { column, type: valueOf(tag.attributes, "t") ?? "n", style: Number(valueOf(tag.attributes, "s") ?? 0), value: "", formula: "" };
    } else if (tag.kind === "end" && (tag.name === "v" || tag.name === "t")) cell.value += tag.before;
    else if (tag.kind === "end" && tag.name === "f") cell.formula = tag.before;
    else if (tag.kind === "end" && tag.name === "c" && row >= 0) {
      cells += 1;
      if (cell.column >= MOST_COLUMNS) cut = true;
      else {
        while (rows.length <= row) rows.push([]);
        const line = rows[row] ?? [];
        while (line.length <= cell.column) line.push("");
        line[cell.column] = written(cell, book);
      }
    }
  }
  while (rows.length > 0 && rows[0]?.every((each) => each === "")) rows.shift();
  return { rows, cut };
}

function written(cell: { type: string; style: number; value: string; formula: string }, book: Workbook): string {
  if (cell.value === "" && cell.formula !== "") return `=${cell.formula}`;
  if (cell.type === "s") return book.strings[Number(cell.value)] ?? "";
  if (cell.type === "b") return cell.value === "1" ? "TRUE" : "FALSE";
  if (cell.type !== "n" || cell.value === "" || book.moments[cell.style] !== true) return cell.value;
  const days = Number(cell.value) + (book.since1904 ? 1462 : 0);
  const time = new Date(Math.round((days - 25_569) * 86_400) * 1000);
  if (Number.isNaN(time.valueOf())) return cell.value;
  const iso = time.toISOString().slice(0, 19);
  return days < 1 ? iso.slice(11) : Number.isInteger(days) ? iso.slice(0, 10) : iso.replace("T", " ");
}

function columnOf(place: string | null): number | null {
  const letters = /^[A-Z]{1,3}(?=\d)/.exec(place ?? "")?.[0];
  return letters === undefined ? null : [...letters].reduce((sum, each) => sum * 26 + each.charCodeAt(0) - 64, 0) - 1;
}
