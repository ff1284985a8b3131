/** A table: sort by a column, find rows, leaf through many. */

import { safeHref } from "../bridge/arguments.ts";
import { isDict, own } from "../bridge/read.ts";
import type { Dict } from "../bridge/types.ts";
import { BadData, asRecord, clip, kindOf, listAt, listOrNone, words } from "../lib/data.ts";
import { h, said, spoken } from "../lib/dom.ts";
import type { Child } from "../lib/dom.ts";
import { icon } from "../lib/icons.ts";
import { emptyState, mount } from "../lib/page.ts";
import type { Page, Scene } from "../lib/page.ts";
import { head, iconButton, link, modeButton } from "../lib/parts.ts";

const MAX_ROWS = 10_000;
const MAX_COLUMNS = 60;
const INLINE_ROWS = 10;
const WIDE_ROWS = 50;
const FINDABLE = 6;
// A name is a key as well: it is cut where it is shown.
const MAX_KEY = 10_000;
const WORDY = 60;

interface View {
  column: string | undefined;
  falling: boolean;
  page: number;
  find: string;
}

interface Table {
  title: string;
  columns: string[];
  rows: Dict[];
  left: number;
}

const empty: Page["empty"] = { icon: "table", title: "No rows", text: "The table has no data." };
let view: View | undefined;

mount({
  empty,
  draw(output, scene) {
    const table = read(output);
    if (table.columns.length === 0) return emptyState(table.title === "" ? empty : { ...empty, title: table.title });
    const now = (view ??= recalled(scene, table));
    const found = sorted(scene, table, matching(scene, table, now.find), now);
    const size = scene.inline ? INLINE_ROWS : WIDE_ROWS;
    const pages = Math.max(1, Math.ceil(found.length / size));
    const page = Math.min(now.page, pages - 1);
    const shown = found.slice(page * size, (page + 1) * size);
    return [
      head(table.title || "Table", extent(scene, table, found.length), modeButton(scene)),
      table.rows.length > FINDABLE ? finder(scene, now) : null,
      grid(scene, table, shown, now),
      found.length === 0 ? h("p", { class: "muted center" }, table.rows.length === 0 ? "No rows." : "No row matches.") : null,
      pages > 1 ? pager(scene, now, page, pages) : null,
      table.left > 0 ? h("p", { class: "muted small" }, `${scene.format.count(table.left, "row", "rows")} beyond the first ${scene.format.number(MAX_ROWS)} not shown.`) : null,
    ];
  },
});

function read(output: unknown): Table {
  const record = asRecord(output, "data");
  const all = listOrNone(record, ["data", "rows"]);
  const named = own(record, "columns");
  if (named !== undefined && named !== null && !Array.isArray(named)) throw new BadData(`“columns” should be a list; the tool returned ${kindOf(named)}.`);
  const names = (listAt(record, ["columns"]) ?? []).map((name) => words(name, MAX_KEY)).filter(Boolean);
  const rows = all.slice(0, MAX_ROWS).map((row) => rowOf(row, names));
  const columns = [...new Set(names.length > 0 ? names : rows.slice(0, 50).flatMap(Object.keys))].slice(0, MAX_COLUMNS);
  return { title: words(own(record, "title"), 200), columns, rows, left: Math.max(0, all.length - MAX_ROWS) };
}

/** A row as an object: a list gives its cells in the order of the columns. */
function rowOf(row: unknown, names: readonly string[]): Dict {
  if (isDict(row)) return row;
  if (!Array.isArray(row)) return names[0] === undefined ? {} : { [names[0]]: row };
  return Object.fromEntries(row.slice(0, names.length).map((cell: unknown, place) => [names[place] ?? "", cell]));
}

function extent(scene: Scene, table: Table, found: number): string {
  const all = scene.format.count(table.rows.length + table.left, "row", "rows");
  return found === table.rows.length ? all : `${scene.format.number(found)} of ${all}`;
}

// ---- what is shown

function matching(scene: Scene, table: Table, find: string): Dict[] {
  const needle = find.trim().toLocaleLowerCase();
  if (needle === "") return table.rows;
  const has = (row: Dict, column: string): boolean => {
    const cell = own(row, column);
    return plain(cell).toLocaleLowerCase().includes(needle) || (typeof cell === "number" && scene.format.number(cell).includes(needle));
  };
  return table.rows.filter((row) => table.columns.some((column) => has(row, column)));
}

function sorted(scene: Scene, table: Table, rows: readonly Dict[], { column, falling }: View): Dict[] {
  if (column === undefined || !table.columns.includes(column)) return [...rows];
  const compare = scene.format.compare();
  const order = (left: unknown, right: unknown): number =>
    typeof left === "number" && typeof right === "number" ? left - right : compare(plain(left), plain(right));
  return [...rows].sort((first, second) => {
    const [left, right] = [own(first, column), own(second, column)];
    // What is missing stays at the end, whichever way it is sorted.
    if (missing(left) || missing(right)) return Number(missing(left)) - Number(missing(right));
    return falling ? order(right, left) : order(left, right);
  });
}

function missing(cell: unknown): boolean {
  return cell === null || cell === undefined || cell === "";
}

function plain(cell: unknown): string {
  if (missing(cell)) return "";
  return typeof cell === "object" ? clip(JSON.stringify(cell) ?? "", 500) : words(cell, 1_000);
}

// ---- elements

function grid(scene: Scene, table: Table, rows: readonly Dict[], now: View): HTMLElement {
  const decimals = new Map(table.columns.map((column) => [column, decimalsOf(table.rows, column)]));
  const heads = table.columns.map((column) => columnHead(scene, column, decimals.get(column) !== undefined, now));
  const lines = rows.map((row) =>
    h("tr", null, table.columns.map((column, place) => cellOf(scene, own(row, column), place === 0, decimals.get(column)))),
  );
  const caption = h("caption", { class: "spoken" }, table.title || "Table");
  const label = `${table.title || "Table"}, scrolls sideways`;
  return h("div", { class: "sideways", tabindex: "0", role: "region", "aria-label": label, key: "grid" }, h("table", null, caption, h("thead", null, h("tr", null, heads)), h("tbody", null, lines)));
}

function columnHead(scene: Scene, column: string, numeric: boolean, now: View): HTMLElement {
  const active = now.column === column;
  const sort = (): void => change(scene, { column: active && now.falling ? undefined : column, falling: active && !now.falling, page: 0 });
  const direction = active ? (now.falling ? "descending" : "ascending") : undefined;
  const sign = icon(active ? (now.falling ? "down" : "up") : "sort", "icon small-icon");
  const control = h("button", { type: "button", class: "column", onclick: sort, key: `sort:${column}` }, said(clip(column, 120)), sign);
  return h("th", { scope: "col", class: numeric ? "number" : undefined, "aria-sort": direction }, control);
}

/** How many decimals the numbers of a column have at most; `undefined` for a column of other things. */
function decimalsOf(rows: readonly Dict[], column: string): number | undefined {
  const cells = rows.slice(0, 200).map((row) => own(row, column)).filter((cell) => !missing(cell));
  if (cells.length === 0 || !cells.every((cell) => typeof cell === "number")) return undefined;
  return Math.min(6, Math.max(...cells.map((cell) => /\.(\d+)$/.exec(String(cell))?.[1]?.length ?? 0)));
}

function cellOf(scene: Scene, cell: unknown, first: boolean, decimals: number | undefined): HTMLElement {
  const kind = decimals !== undefined ? "number" : scene.format.isMoment(cell) ? "moment" : plain(cell).length > WORDY ? "wordy" : undefined;
  const inside = content(scene, cell, decimals);
  return first ? h("th", { scope: "row", class: kind }, inside) : h("td", { class: kind }, inside);
}

function content(scene: Scene, cell: unknown, decimals = 0): Child {
  if (missing(cell)) return [h("span", { "aria-hidden": "true", class: "muted" }, "–"), spoken("empty")];
  if (typeof cell === "number") return Number.isFinite(cell) ? h("bdi", null, scene.format.number(cell, decimals)) : String(cell);
  if (typeof cell === "boolean") return cell ? "Yes" : "No";
  if (typeof cell === "object") return h("code", { dir: "ltr" }, clip(JSON.stringify(cell) ?? "", 300));
  const value = words(cell, 1_000);
  const href = /^(https?:\/\/|mailto:)/i.test(value) ? safeHref(value) : undefined;
  return href === undefined ? said(scene.format.moment(value), scene.inline && value.length > WORDY ? "clamp four" : "") : link(scene, href, clip(value.replace(/^(https?:\/\/|mailto:)/i, ""), 60));
}

function finder(scene: Scene, now: View): HTMLElement {
  const oninput = (event: Event): void => change(scene, { find: (event.target as HTMLInputElement).value.slice(0, 200), page: 0 });
  const input = h("input", { type: "search", class: "field", placeholder: "Find in table", "aria-label": "Find in table", oninput, key: "find", autocomplete: "off" });
  input.value = now.find;
  return h("div", { class: "finder" }, icon("search"), input);
}

function pager(scene: Scene, now: View, page: number, pages: number): HTMLElement {
  const go = (to: number): void => change(scene, { ...now, page: to });
  const where = `Page ${scene.format.number(page + 1)} of ${scene.format.number(pages)}`;
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages of the table" },
    iconButton("previous", "Previous page", () => go(page - 1), { disabled: page === 0, key: "previous" }),
    h("span", { class: "small", "aria-live": "polite" }, where),
    iconButton("next", "Next page", () => go(page + 1), { disabled: page === pages - 1, key: "next" }),
  );
}

// ---- what is remembered

function change(scene: Scene, patch: Partial<View> | { column: undefined }): void {
  view = { ...(view ?? { column: undefined, falling: false, page: 0, find: "" }), ...patch };
  const { column, falling, page } = view;
  const state = { modelContent: column === undefined ? null : `Table sorted by ${clip(column, 100)}`, privateContent: { column, falling, page } };
  scene.runtime.setWidgetState(state).catch(() => undefined);
  scene.redraw();
}

function recalled(scene: Scene, table: Table): View {
  const kept = own(scene.runtime.useWidgetState(), "privateContent");
  const column = words(own(kept, "column"), 200);
  const page = own(kept, "page");
  return {
    column: table.columns.includes(column) ? column : undefined,
    falling: own(kept, "falling") === true,
    page: typeof page === "number" && Number.isInteger(page) && page > 0 ? page : 0,
    find: "",
  };
}
