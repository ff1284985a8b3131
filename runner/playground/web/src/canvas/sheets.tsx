/** A workbook: a tab for each of its sheets, each a table. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { plain } from "../model/plain";
import { Tabs } from "../views/tabs";
import { opened, type Archive } from "./archive";
import { Trouble, Waiting } from "./canvas";
import { useLoaded } from "./content";
import type { Item } from "./items";
import { SheetView } from "./table";
import { readCells, readWorkbook, type SheetName, type Workbook } from "./workbook";
import { count } from "../texts/numbers";

const MOST_SHEETS = 100;

export function SheetsView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, async (signal) => {
    const archive = await opened(item, signal);
    return { archive, book: await readWorkbook(archive, signal) };
  });
  const chosen = useSignal("0");
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  const { archive, book } = loaded.value;
  return (
    <div class="stack">
      {book.macros && <p class="notice">It brings macros. They are not run.</p>}
      <Tabs label="Sheets" chosen={chosen.value} choose={(id) => { chosen.value = id; }} tabs={book.sheets.slice(0, MOST_SHEETS).map((sheet, index) => ({
        id: String(index),
        title: <>{plain(sheet.name)}{sheet.hidden && <span class="soft small"> (hidden)</span>}</>,
        body: () => <One key={index} item={item} archive={archive} book={book} sheet={sheet} />,
      }))} />
      {book.sheets.length > MOST_SHEETS && <p class="soft small">{`The first ${count(MOST_SHEETS)} of ${count(book.sheets.length)} sheets. Download it for the rest.`}</p>}
    </div>
  );
}

function One({ item, archive, book, sheet }: { item: Item; archive: Archive; book: Workbook; sheet: SheetName }): JSX.Element {
  const loaded = useLoaded(item, async (signal) => {
    const { rows, cut } = await readCells(archive, book, sheet, signal);
    const [head = [], ...rest] = rows;
    const widest = rows.reduce((most, row) => Math.max(most, row.length), 0);
    const columns = Array.from({ length: widest }, (_, at) => head[at] ?? "");
    return { columns, rows: rest, isWhole: !cut };
  });
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  return loaded.value === null ? <Waiting /> : loaded.value.columns.length === 0 ? <p class="soft">Nothing is in this sheet.</p> : <SheetView sheet={loaded.value} />;
}
