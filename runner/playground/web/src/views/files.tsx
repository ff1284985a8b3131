/**
 * My Files: what the server keeps for this user. Upload, find, sort, look at, use, download and delete with a
 * way back, one by one or many at once.
 */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { files, filesProblem, idOf, loadFiles, type Stored } from "../model/files";
import { arranged, type Column, type Order } from "../model/arrange";
import { info } from "../model/info";
import { back, forget, leaving, staying } from "../model/leaving";
import { plain } from "../model/plain";
import { dismiss, send, sending, sent } from "../model/uploads";
import { DownloadAll } from "./download";
import { FileTable } from "./file_table";
import { count, plural, size } from "../texts/numbers";

const SORTS = { filename: "name", size: "size", origin: "origin", created: "time", expires_at: "expiry" };

/** How the list is looked at; it stays so when another view is shown. */
const asked = signal("");
const order = signal<Order>({ column: "filename", down: false });

export function FilesView(): JSX.Element {
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  useEffect(() => {
    void loadFiles();
  }, []);
  const there = staying.value;
  const shown = useMemo(() => arranged(there, asked.value, order.value), [there, asked.value, order.value]);
  // What is not listed is not acted on, chosen before or not.
  const picked = useMemo(() => (chosen.value.size === 0 ? [] : shown.filter((file) => chosen.value.has(idOf(file)))), [shown, chosen.value]);
  const choose = (given: Stored[], whether: boolean): void => {
    const next = new Set(chosen.value);
    for (const file of given) {
      if (whether) next.add(idOf(file));
      else next.delete(idOf(file));
    }
    chosen.value = next;
  };
  const sort = (column: Column): void => {
    order.value = { column, down: order.value.column === column ? !order.value.down : column === "created" || column === "size" };
  };
  const used = useMemo(() => files.value.reduce((sum, file) => sum + file.size, 0), [files.value]);
  return (
    <div class="stack">
      <header class="row"><h1 class="grow">Files</h1>
        <span class="soft small">{`${size(used)} of ${size(info.value?.user_max_bytes ?? 0)} used`}</span></header>
      <Drop />
      <Sent />
      <Left />
      {filesProblem.value !== null && <p class="problem" role="alert">{filesProblem.value}</p>}
      {there.length === 0 ? <div class="card empty"><p>No files yet.</p><p class="small">What you upload and what tools make is kept here.</p></div> : (
        <>
          <div class="row filters">
            <input id="search" class="input compact" type="search" placeholder={`Search files   /`} aria-label="Search files" value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; }} />
            <label class="row small narrow-only">Sort by
              <select class="input compact" value={order.value.column} onChange={(event) => sort(event.currentTarget.value as Column)}>
                {Object.entries(SORTS).map(([each, title]) => <option key={each} value={each}>{title}</option>)}
              </select></label>
            <span class="soft small grow" role="status">{shown.length < there.length ? `${count(shown.length)} ${plural(shown.length, { one: "file", other: "files" })} of ${count(there.length)}` : `${count(shown.length)} ${plural(shown.length, { one: "file", other: "files" })}`}</span>
          </div>
          {picked.length > 0 && (
            <div class="notice row" role="region" aria-label="Chosen files">
              <span class="grow">{`${count(picked.length)} chosen, ${size(picked.reduce((sum, file) => sum + file.size, 0))}`}</span>
              <DownloadAll files={picked.map((file) => ({ uri: file.uri, name: file.filename }))} name="files.zip" label="Download as ZIP" failed={(why) => { filesProblem.value = `The files cannot be packed: ${plain(why)}.`; }} />
              <button class="button danger" onClick={() => { forget(picked); chosen.value = new Set(); }}>{`Delete ${count(picked.length)}`}</button>
              <button class="button quiet" onClick={() => { chosen.value = new Set(); }}>Choose none</button>
            </div>
          )}
          {shown.length === 0 ? <p class="soft">No matching files</p>
            : <FileTable shown={shown} chosen={chosen.value} choose={choose} order={order.value} sort={sort} forget={(file) => forget([file])} />}
        </>
      )}
    </div>
  );
}

function Drop(): JSX.Element {
  const over = useSignal(false);
  return (
    <label class={`drop-zone ${over.value ? "over" : ""}`} onDragOver={(event) => { event.preventDefault(); over.value = true; }}
      onDragLeave={() => { over.value = false; }}
      onDrop={(event) => { event.preventDefault(); over.value = false; send(event.dataTransfer?.files ?? []); }}>
      <span>Drop files here, or <u>choose some</u></span>
      <span class="soft small">{`up to ${size(info.value?.upload_max_bytes ?? 0)} each`}</span>
      <input type="file" multiple class="unseen" onChange={(event) => { send(event.currentTarget.files ?? []); event.currentTarget.value = ""; }} />
    </label>
  );
}

/** What is on its way: the one that is sent, how far all are, and what could not be sent. */
function Sent(): JSX.Element {
  const now = sending.value.find((each) => each.problem === null);
  const { done, all } = sent.value;
  const failed = sending.value.filter((each) => each.problem !== null);
  return (
    <>
      {now !== undefined && (
        <div class="field">
          <span class="row small"><span class="mono grow">{plain(now.name)}</span>{all > 1 && <span class="soft">{`${count(done + 1)} of ${count(all)}`}</span>}</span>
          <Bar label={`Upload of ${now.name}`} part={now.part} />
          {all > 1 && <Bar label="Upload of all" part={(done + now.part) / all} />}
        </div>
      )}
      {failed.slice(0, 50).map((each) => (
        <div key={each.id} class="problem">
          <span class="row small"><span class="mono grow">{plain(each.name)}</span><button class="button quiet" onClick={() => dismiss(each.id)}>Dismiss</button></span>
          <span role="alert">{each.problem}</span>
        </div>
      ))}
    </>
  );
}

function Bar({ label, part }: { label: string; part: number }): JSX.Element {
  return <div class="bar" role="progressbar" aria-label={label} aria-valuenow={Math.round(part * 100)} aria-valuemin={0} aria-valuemax={100}><i style={{ width: `${part * 100}%` }} /></div>;
}

/** What will be deleted, as long as it can be had back, and what is being deleted. */
function Left(): JSX.Element {
  return (
    <>
      {leaving.value.map(({ files: going, gone }) => (
        <div key={idOf(going[0] ?? { key: "", filename: "" })} class="notice row" role="status">
          <span class="grow">{leavingText(going, gone)}</span>
          {gone === null && <button class="button" ref={withFocus} onClick={() => back(going)}>Undo</button>}
        </div>
      ))}
    </>
  );
}

/** The button that deleted is gone with its row, and there is little time for this one. */
function withFocus(button: HTMLElement | null): void {
  button?.focus({ preventScroll: true });
}

function leavingText(going: Stored[], gone: number | null): string {
  const [first] = going;
  if (going.length === 1 && first !== undefined) return gone === null ? `Deleted ${plain(first.filename)}` : `${plain(first.filename)} is being deleted.`;
  return gone === null ? `Deleted ${count(going.length)} ${plural(going.length, { one: "file", other: "files" })}` : `${count(going.length)} files are being deleted: ${count(gone)} ${plural(gone, { one: "is", other: "are" })} gone.`;
}
