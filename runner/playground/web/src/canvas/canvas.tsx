/**
 * What a call made, to look at: a tab for each file, one for the dashboard, one for the widget.
 * Source: requirements S0-27, S0-31 and S4-99.
 */
import type { JSX, RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { ago, size } from "../texts/numbers";
import { Download, DownloadAll } from "../views/download";
import { Tabs, type Tab } from "../views/tabs";
import { useEscape } from "../views/escape";
import { Guarded } from "../views/guarded";
import { later } from "../views/later";
import { plain } from "../model/plain";
import { MediaView, ImageView } from "./media";
import { PageView } from "./page";
import type { Item, Shown } from "./items";

const CodeView = later(() => import("./code").then((module) => module.CodeView));
const MarkdownView = later(() => import("./markdown").then((module) => module.MarkdownView));
const TableView = later(() => import("./table").then((module) => module.TableView));
const JsonView = later(() => import("./json_view").then((module) => module.JsonView));
const PdfView = later(() => import("./pdf").then((module) => module.PdfView));
const SheetsView = later(() => import("./sheets").then((module) => module.SheetsView));

export function Canvas({ shown }: { shown: Shown }): JSX.Element {
  const chosen = useSignal(shown.items[0] === undefined ? "" : key(shown.items[0]));
  const tabs: Tab[] = shown.items.map((item) => ({ id: key(item), title: plain(item.name), body: () => <ItemView key={key(item)} item={item} /> }));
  const problem = useSignal<string | null>(null);
  return (
    <div class="stack">
      {shown.items.length > 1 && <div class="row"><span class="grow" /><DownloadAll files={shown.items} name="files.zip" failed={(why) => { problem.value = why; }} /></div>}
      {problem.value !== null && <p class="problem" role="alert">The files cannot be packed: {plain(problem.value)}.</p>}
      <Tabs label="Files" chosen={chosen.value} choose={(id) => { chosen.value = id; }} tabs={tabs} />
    </div>
  );
}

function key(item: Item): string {
  return `${item.uri} ${item.name}`;
}

export function ItemView({ item }: { item: Item }): JSX.Element {
  const problem = useSignal<string | null>(null);
  const figure = useRef<HTMLElement>(null);
  const { full, turn } = useFullScreen(figure);
  return (
    <figure class="stack shown" ref={figure}>
      <figcaption class="row">
        <span class="grow"><b class="mono">{plain(item.name)}</b> <span class="soft small">{item.mime}, {size(item.size)}</span>
          {item.expires !== null && <span class="soft small" title={item.expires}>{Date.parse(item.expires) > Date.now() ? `, expires ${ago(item.expires)}` : `, expired ${ago(item.expires)}`}</span>}
          {item.description !== null && <span class="soft small"> — {plain(item.description)}</span>}</span>
        {item.category != null && <span class="badge" title="Category">{plain(item.category)}</span>}
        {item.viewer !== "none" && document.fullscreenEnabled && <button class="button" aria-pressed={full} onClick={() => void turn()}>{full ? "Leave full screen" : "Full screen"}</button>}
        <Download uri={item.uri} name={item.name} failed={(why) => { problem.value = why; }} />
      </figcaption>
      {(item.reason != null || (item.next?.length ?? 0) > 0) && <Later item={item} />}
      {problem.value !== null && <p class="problem" role="alert">{`This file cannot be downloaded: ${problem.value}.`}</p>}
      <Viewed item={item} />
    </figure>
  );
}

/** Full screen of an element, and whether it has it: people may leave it by a key. */
function useFullScreen(element: RefObject<HTMLElement | null>): { full: boolean; turn: () => Promise<void> } {
  const full = useSignal(false);
  useEffect(() => {
    const changed = (): void => { full.value = document.fullscreenElement !== null && document.fullscreenElement === element.current; };
    document.addEventListener("fullscreenchange", changed);
    return () => document.removeEventListener("fullscreenchange", changed);
  }, [element]);
  // Most browsers do so themselves, before the page hears of the key.
  useEscape(() => void document.exitFullscreen().catch(() => undefined), full.value);
  const turn = async (): Promise<void> => {
    // A browser that refuses says so itself, and the file stays where it is.
    await (full.value ? document.exitFullscreen() : element.current?.requestFullscreen())?.catch(() => undefined);
  };
  return { full: full.value, turn };
}

/** A file in its viewer, and nothing around it. */
export function Viewed({ item }: { item: Item }): JSX.Element {
  return (
    <div class="viewer"><Guarded><View item={item} /></Guarded></div>
  );
}

/** What a tool says of a file that it keeps for later. */
function Later({ item }: { item: Item }): JSX.Element {
  return (
    <div class="notice stack">
      {item.reason != null && <p>{`Kept for later: ${plain(item.reason.replaceAll("_", " "))}.`}</p>}
      {item.next !== undefined && item.next.length > 0 && (
        <div><p>What can be done next</p><ul class="plain">{item.next.map((each, index) => <li key={index}>{plain(each)}</li>)}</ul></div>
      )}
    </div>
  );
}

function View({ item }: { item: Item }): JSX.Element {
  switch (item.viewer) {
    case "image": return <ImageView item={item} />;
    case "audio":
    case "video": return <MediaView item={item} />;
    case "html": return <PageView item={item} />;
    case "pdf": return <PdfView item={item} />;
    case "markdown": return <MarkdownView item={item} />;
    case "table": return <TableView item={item} />;
    case "json": return <JsonView item={item} />;
    case "sheets": return <SheetsView item={item} />;
    case "code": return <CodeView item={item} />;
    default: return <p class="soft">There is no viewer for this kind of file. Download it to look at it.</p>;
  }
}

export function Trouble({ problem }: { problem: string }): JSX.Element {
  return <p class="problem" role="alert">{`This file cannot be shown: ${problem}.`}</p>;
}

export function Waiting(): JSX.Element {
  return <p class="soft" role="status">Loading…</p>;
}
