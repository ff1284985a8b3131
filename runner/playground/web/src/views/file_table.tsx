/** The rows of My Files. Of a long list only those in sight are on the page. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { filesProblem, idOf, type Stored } from "../model/files";
import type { Column, Order } from "../model/arrange";
import { plain } from "../model/plain";
import { to } from "../model/route";
import { ago, size } from "../texts/numbers";
import { Download } from "./download";
import { useRows } from "./rows";
import { UseAs } from "./use_as";

// A list that is not long is scrolled with the page.
const SHORT = 200;
const HEIGHT = 48;
const NARROW_HEIGHT = 168;
const NARROW = matchMedia("(max-width: 640px)");

const COLUMNS: [Column, string, string][] = [["filename", "Name", ""], ["size", "Size", "number"], ["origin", "From", ""], ["created", "Kept", ""], ["expires_at", "Expires", ""]];

export function FileTable({ shown, chosen, choose, order, sort, forget }: {
  shown: Stored[];
  chosen: ReadonlySet<string>;
  choose: (files: Stored[], whether: boolean) => void;
  order: Order;
  sort: (column: Column) => void;
  forget: (file: Stored) => void;
}): JSX.Element {
  const narrow = useSignal(NARROW.matches);
  useEffect(() => {
    const changed = (): void => { narrow.value = NARROW.matches; };
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  const long = shown.length > SHORT;
  const height = narrow.value ? NARROW_HEIGHT : HEIGHT;
  const rows = useRows(shown.length, height);
  const [from, to] = long ? [rows.from, rows.to] : [0, shown.length];
  const all = shown.length > 0 && shown.every((file) => chosen.has(idOf(file)));
  const style = long ? { height: `${height}px` } : {};
  const everything = (label: { "aria-label"?: string }): JSX.Element => (
    <input type="checkbox" checked={all} onChange={(event) => choose(shown, event.currentTarget.checked)} {...label} />
  );
  // Where rows are blocks, nobody sees their head: what is pressed there stands above them, and order has a field.
  return <>
    {narrow.value && shown.length > 0 && <label class="row small">{everything({})}Choose all that are listed</label>}
    <div class={long ? "card scroll long" : "card scroll"} ref={rows.box} onScroll={rows.scrolled} {...(long ? { tabIndex: 0, role: "region", "aria-label": "Files" } : {})}>
      <table class="grid stacked" role="table" aria-rowcount={shown.length + 1}>
        <caption class="unseen">Files</caption>
        <thead role="rowgroup"><tr role="row">
          <th role="columnheader" scope="col">{narrow.value ? "Choose all that are listed" : everything({ "aria-label": "Choose all that are listed" })}</th>
          {COLUMNS.map(([column, title, kind]) => (
            <th key={column} role="columnheader" scope="col" class={kind} aria-sort={order.column === column ? (order.down ? "descending" : "ascending") : "none"}>
              {narrow.value
                ? title
                : <button class="sort" onClick={() => sort(column)}>{title}<span aria-hidden="true">{order.column === column ? (order.down ? " ↓" : " ↑") : ""}</span></button>}
            </th>
          ))}
          <th role="columnheader" scope="col"><span class="unseen">Actions</span></th>
        </tr></thead>
        <tbody role="rowgroup">
          {long && <tr class="gap" aria-hidden="true" style={{ height: `${rows.above}px` }} />}
          {shown.slice(from, to).map((file, index) => (
            <Row key={idOf(file)} file={file} at={from + index + 2} style={style} chosen={chosen.has(idOf(file))} choose={choose} forget={forget} />
          ))}
          {long && <tr class="gap" aria-hidden="true" style={{ height: `${rows.below}px` }} />}
        </tbody>
      </table>
    </div>
  </>;
}

function Row({ file, at, style, chosen, choose, forget }: {
  file: Stored;
  at: number;
  style: { height?: string };
  chosen: boolean;
  choose: (files: Stored[], whether: boolean) => void;
  forget: (file: Stored) => void;
}): JSX.Element {
  const name = plain(file.filename);
  return (
    <tr role="row" aria-rowindex={at} style={style}>
      <td role="cell" class="choice"><input type="checkbox" aria-label={`Choose ${name}`} checked={chosen} onChange={(event) => choose([file], event.currentTarget.checked)} /></td>
      <td role="cell" class="first whole"><a href={to("show", file.uri, { name: file.filename })} title={name}>{name}</a>{file.pending && <span class="badge running">on its way</span>}</td>
      <td role="cell" class="number">{size(file.size)}</td>
      <td role="cell">{file.origin}</td>
      <td role="cell" class="time" title={file.created}>{ago(file.created)}</td>
      <td role="cell" class={file.expires_at === null ? "time never" : "time"} data-label="expires" title={file.expires_at ?? ""}>{file.expires_at === null ? "never" : ago(file.expires_at)}</td>
      <td role="cell" class="whole last">
        <span class="row end">
          <UseAs file={file} />
          <Download quiet uri={file.uri} name={file.filename} failed={(why) => { filesProblem.value = `${name} cannot be downloaded: ${why}.`; }} />
          <button class="button quiet" onClick={() => forget(file)} aria-label={`Delete ${file.filename}`}>Delete</button>
        </span>
      </td>
    </tr>
  );
}
