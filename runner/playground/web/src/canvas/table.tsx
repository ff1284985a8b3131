/** Tables: CSV and TSV. Formulas stay text. Only the rows in sight are on the page. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { bytes } from "../model/files";
import { plain } from "../model/plain";
import { useRows } from "../views/rows";
import { Trouble, Waiting } from "./canvas";
import { useLoaded } from "./content";
import type { Item } from "./items";
import { guessed, parseDelimited } from "./delimited";
import { count, plural } from "../texts/numbers";

const MOST_BYTES = 32_000_000;
/** As high as Firefox lets an element be with so many rows. */
const MOST_ROWS = 500_000;
const MOST_COLUMNS = 200;
const ROW_HEIGHT = 30;

interface Sheet {
  columns: string[];
  rows: string[][];
  /** Whether these are all rows of the file. */
  isWhole: boolean;
}

export function TableView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => readText(item, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  return loaded.value === null ? <Waiting /> : <SheetView sheet={loaded.value} />;
}

async function readText(item: Item, signal: AbortSignal): Promise<Sheet> {
  const cut = item.size > MOST_BYTES;
  const data = await (await bytes(item.uri, cut ? { from: 0, to: MOST_BYTES } : undefined, signal)).arrayBuffer();
  // A character that was cut in two is left out.
  const text = new TextDecoder("utf-8").decode(data, { stream: cut });
  const delimiter = item.name.endsWith(".tsv") || item.mime.includes("tab") ? "\t" : guessed(text);
  const rows = parseDelimited(text, delimiter, MOST_ROWS + 1);
  // The last row of a part may be half of one.
  if (cut && rows.length <= MOST_ROWS) rows.pop();
  const [columns = []] = rows.splice(0, 1);
  return { columns: columns.slice(0, MOST_COLUMNS), rows, isWhole: !cut && rows.length < MOST_ROWS };
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
        <input class="input compact" type="search" placeholder="Filter rows" aria-label="Filter rows" value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; top(); }} />
        <span class="soft small" role="status">{sheet.isWhole ? `${count(rows.length)} ${plural(rows.length, { one: "row", other: "rows" })}` : `${count(rows.length)} ${plural(rows.length, { one: "row", other: "rows" })} of the part that was loaded`}, {`${count(sheet.columns.length)} ${plural(sheet.columns.length, { one: "column", other: "columns" })}`}</span>
      </div>
      <div class="sheet" ref={box} tabIndex={0} role="region" aria-label="Table" onScroll={scrolled}>
        <table class="grid" aria-rowcount={rows.length + 1}>
          <thead><tr>{sheet.columns.map((column, index) => (
            <th key={index} scope="col" class={numeric[index] ? "number" : ""} aria-sort={order.value?.column === index ? (order.value.down ? "descending" : "ascending") : "none"}>
              <button class="sort" onClick={() => sort(index)}>{plain(column) || "(no name)"}<span aria-hidden="true">{order.value?.column === index ? (order.value.down ? " ↓" : " ↑") : ""}</span></button>
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

function arranged(rows: string[][], words: string, order: { column: number; down: boolean } | null): string[][] {
  const found = words === "" ? rows : rows.filter((row) => row.some((each) => each.toLowerCase().includes(words)));
  if (order === null) return found;
  const { column, down } = order;
  const sign = down ? -1 : 1;
  // A cell is read as a number once, not each time that it is compared.
  const keyed = found.map((row) => ({ row, text: row[column] ?? "", number: isNumber(row[column] ?? "") ? Number(row[column]) : NaN }));
  return keyed.sort((one, other) => sign * compared(one, other)).map(({ row }) => row);
}

// One for all comparisons: a new one for each would hold a large table up.
const COLLATOR = new Intl.Collator();

interface Key {
  text: string;
  /** NaN where the text is not a number. */
  number: number;
}

function compared(one: Key, other: Key): number {
  const apart = one.number - other.number;
  return Number.isNaN(apart) ? COLLATOR.compare(one.text, other.text) : apart;
}

function isNumber(text: string): boolean {
  return text !== "" && Number.isFinite(Number(text));
}
