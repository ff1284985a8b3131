/** Tables: CSV, TSV and Parquet. Formulas stay text. Only the rows in sight are on the page. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { bytes } from "../model/files";
import { toJson } from "../model/json";
import { plain } from "../model/plain";
import { useRows } from "../views/rows";
import { Trouble, Waiting } from "./canvas";
import { head, useLoaded } from "./content";
import type { Item } from "./items";
import { parseDelimited } from "./delimited";
import { T } from "../texts/language";

const MOST_BYTES = 8_000_000;
const MOST_ROWS = 100_000;
const MOST_COLUMNS = 200;
const ROW_HEIGHT = 30;

interface Sheet {
  columns: string[];
  rows: string[][];
  /** How many rows there are in all; null where nobody counted. */
  total: number | null;
}

export function TableView({ item }: { item: Item }): JSX.Element {
  const parquet = item.name.endsWith(".parquet") || item.mime.includes("parquet");
  const loaded = useLoaded(item, (signal) => (parquet ? readParquet(item, signal) : readText(item, signal)));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  return loaded.value === null ? <Waiting /> : <SheetView sheet={loaded.value} />;
}

async function readText(item: Item, signal: AbortSignal): Promise<Sheet> {
  const { text, cut } = await head(item, MOST_BYTES, signal);
  const rows = parseDelimited(text, item.name.endsWith(".tsv") || item.mime.includes("tab") ? "\t" : null, MOST_ROWS);
  // The last row of a part may be half of one.
  if (cut) rows.pop();
  const [columns = [], ...rest] = rows;
  return { columns: columns.slice(0, MOST_COLUMNS), rows: rest, total: cut || rows.length >= MOST_ROWS ? null : rest.length };
}

async function readParquet(item: Item, signal: AbortSignal): Promise<Sheet> {
  const { parquetMetadataAsync, parquetReadObjects } = await import("hyparquet");
  const file = {
    byteLength: item.size,
    slice: async (from: number, to?: number) => (await bytes(item.uri, { from, to: to ?? item.size }, signal)).arrayBuffer(),
  };
  const metadata = await parquetMetadataAsync(file);
  const total = Number(metadata.num_rows);
  const objects = await parquetReadObjects({ file, metadata, rowEnd: Math.min(total, 1000) });
  const columns = Object.keys(objects[0] ?? {}).slice(0, MOST_COLUMNS);
  return { columns, rows: objects.map((row) => columns.map((column) => cell(row[column]))), total };
}

function cell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (value instanceof Date) return value.toISOString();
  return typeof value === "object" ? toJson(value) : String(value);
}

export function SheetView({ sheet }: { sheet: Sheet }): JSX.Element {
  const asked = useSignal("");
  const order = useSignal<{ column: number; down: boolean } | null>(null);
  const rows = useMemo(() => arranged(sheet.rows, asked.value.toLowerCase(), order.value), [sheet, asked.value, order.value]);
  const numeric = useMemo(() => sheet.columns.map((_, column) => sheet.rows.slice(0, 50).every((row) => (row[column] ?? "") === "" || isNumber(row[column] ?? ""))), [sheet]);
  const { box, from, to, above, below, scrolled, top } = useRows(rows.length, ROW_HEIGHT);
  const sort = (column: number): void => {
    order.value = order.value?.column !== column ? { column, down: false } : order.value.down ? null : { column, down: true };
  };
  return (
    <div class="stack">
      <div class="row">
        <input class="input compact" type="search" placeholder={T.viewers.filterRows} aria-label={T.viewers.filterRows} value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; top(); }} />
        <span class="soft small" role="status">{rowsText(sheet, rows.length)}, {T.viewers.columns(sheet.columns.length)}</span>
      </div>
      <div class="sheet" ref={box} tabIndex={0} role="region" aria-label={T.viewers.table} onScroll={scrolled}>
        <table class="grid" aria-rowcount={rows.length + 1}>
          <thead><tr>{sheet.columns.map((column, index) => (
            <th key={index} scope="col" class={numeric[index] ? "number" : ""} aria-sort={order.value?.column === index ? (order.value.down ? "descending" : "ascending") : "none"}>
              <button class="sort" onClick={() => sort(index)}>{plain(column) || T.viewers.noColumnName}<span aria-hidden="true">{order.value?.column === index ? (order.value.down ? " ↓" : " ↑") : ""}</span></button>
            </th>
          ))}</tr></thead>
          <tbody>
            <tr aria-hidden="true" class="gap" style={{ height: `${above}px` }} />
            {rows.slice(from, to).map((row, index) => (
              <tr key={from + index} aria-rowindex={from + index + 2} style={{ height: `${ROW_HEIGHT}px` }}>
                {sheet.columns.map((_, column) => <td key={column} class={numeric[column] ? "number clip" : "clip"} title={(row[column] ?? "").slice(0, 500)}>{plain((row[column] ?? "").slice(0, 500))}</td>)}
              </tr>
            ))}
            <tr aria-hidden="true" class="gap" style={{ height: `${below}px` }} />
          </tbody>
        </table>
      </div>
    </div>
  );
}

function rowsText(sheet: Sheet, shown: number): string {
  if (sheet.total === null) return T.viewers.rowsOfPart(shown);
  return sheet.total > sheet.rows.length ? T.viewers.rowsOfFirst(shown, sheet.rows.length, sheet.total) : T.viewers.rows(shown);
}

function arranged(rows: string[][], words: string, order: { column: number; down: boolean } | null): string[][] {
  const found = words === "" ? rows : rows.filter((row) => row.some((each) => each.toLowerCase().includes(words)));
  if (order === null) return found;
  const { column, down } = order;
  const sign = down ? -1 : 1;
  return [...found].sort((one, other) => sign * compared(one[column] ?? "", other[column] ?? ""));
}

// One for all comparisons: a new one for each would hold a large table up.
const COLLATOR = new Intl.Collator();

function compared(one: string, other: string): number {
  return isNumber(one) && isNumber(other) ? Number(one) - Number(other) : COLLATOR.compare(one, other);
}

function isNumber(text: string): boolean {
  return text !== "" && Number.isFinite(Number(text));
}
