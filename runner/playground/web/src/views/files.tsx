/** My Files: what the server keeps for this user. Upload, use, download, delete with a way back. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { files, filesProblem, loadFiles, remove, upload, type Stored } from "../model/files";
import { info } from "../model/info";
import { to } from "../model/route";
import { tools } from "../model/tools";
import { toJson, isObject } from "../model/json";
import { blank } from "../model/schema";
import { ago, size, until } from "../model/words";
import { Download } from "./download";
import { plain } from "../model/plain";

const UNDO_MS = 8000;

interface Sending {
  name: string;
  part: number;
  problem: string | null;
}

/** Files on their way out, each with the moment of no return. They stay so when another view is shown. */
const leaving = signal<{ file: Stored; timer: ReturnType<typeof setTimeout> }[]>([]);

export function FilesView(): JSX.Element {
  const sending = useSignal<Sending[]>([]);
  const over = useSignal(false);
  useEffect(() => {
    void loadFiles();
  }, []);
  const take = async (given: FileList | null): Promise<void> => {
    for (const file of given ?? []) {
      const at = sending.value.length;
      const change = (part: Partial<Sending>): void => {
        sending.value = sending.value.map((each, index) => (index === at ? { ...each, ...part } : each));
      };
      sending.value = [...sending.value, { name: file.name, part: 0, problem: null }];
      try {
        await upload(file, (part) => change({ part }));
        change({ part: 1 });
      } catch (error) {
        change({ problem: (error as Error).message });
      }
    }
    sending.value = sending.value.filter((each) => each.problem !== null || each.part < 1);
  };
  const forget = (file: Stored): void => {
    const timer = setTimeout(() => {
      leaving.value = leaving.value.filter((each) => each.file !== file);
      void remove(file).catch((error: Error) => { filesProblem.value = error.message; });
    }, UNDO_MS);
    leaving.value = [...leaving.value, { file, timer }];
  };
  const back = (file: Stored): void => {
    const found = leaving.value.find((each) => each.file === file);
    if (found !== undefined) clearTimeout(found.timer);
    leaving.value = leaving.value.filter((each) => each.file !== file);
  };
  const shown = files.value.filter((file) => !leaving.value.some((each) => same(each.file, file)));
  const used = files.value.reduce((sum, file) => sum + file.size, 0);
  const quota = info.value?.user_max_bytes ?? 0;
  return (
    <div class="stack">
      <header class="row"><h1 class="grow">My Files</h1>
        <span class="soft small">{size(used)} of {size(quota)} used</span></header>
      <label class={`drop-zone ${over.value ? "over" : ""}`} onDragOver={(event) => { event.preventDefault(); over.value = true; }}
        onDragLeave={() => { over.value = false; }}
        onDrop={(event) => { event.preventDefault(); over.value = false; void take(event.dataTransfer?.files ?? null); }}>
        <span>Drop files here, or <u>choose some</u></span>
        <span class="soft small">up to {size(info.value?.upload_max_bytes ?? 0)} each</span>
        <input type="file" multiple class="unseen" onChange={(event) => { void take(event.currentTarget.files); event.currentTarget.value = ""; }} />
      </label>
      {sending.value.map((each, index) => (
        <div key={index} class={each.problem === null ? "field" : "problem"}>
          <span class="row small"><span class="mono grow">{plain(each.name)}</span>
            {each.problem !== null && <button class="button quiet" onClick={() => { sending.value = sending.value.filter((other) => other !== each); }}>Dismiss</button>}</span>
          {each.problem === null
            ? <div class="bar" role="progressbar" aria-label={`Upload of ${each.name}`} aria-valuenow={Math.round(each.part * 100)} aria-valuemin={0} aria-valuemax={100}><i style={{ width: `${each.part * 100}%` }} /></div>
            : <span role="alert">{each.problem}</span>}
        </div>
      ))}
      {leaving.value.map(({ file }) => (
        <div key={file.key + file.filename} class="notice row" role="status">
          <span class="grow">{plain(file.filename)} will be deleted.</span>
          <button class="button" onClick={() => back(file)}>Undo</button>
        </div>
      ))}
      {filesProblem.value !== null && <p class="problem" role="alert">{filesProblem.value}</p>}
      {shown.length === 0 ? <div class="card empty"><p>No files yet.</p><p class="small">What you upload and what tools make is kept here.</p></div>
        : <Table shown={shown} forget={forget} />}
    </div>
  );
}

function Table({ shown, forget }: { shown: Stored[]; forget: (file: Stored) => void }): JSX.Element {
  return (
    <div class="card scroll">
      <table class="grid stacked" role="table">
        <caption class="unseen">My Files</caption>
        <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Name</th><th role="columnheader" scope="col" class="number">Size</th><th role="columnheader" scope="col">From</th><th role="columnheader" scope="col">Kept</th><th role="columnheader" scope="col">Expires</th><th role="columnheader" scope="col"><span class="unseen">Actions</span></th></tr></thead>
        <tbody role="rowgroup">
          {shown.map((file) => (
            <tr role="row" key={file.key + file.filename}>
              <td role="cell" class="first whole"><a href={to("show", file.uri, { name: file.filename })}>{plain(file.filename)}</a>{file.pending && <span class="badge running">on its way</span>}</td>
              <td role="cell" class="number">{size(file.size)}</td>
              <td role="cell">{file.origin}</td>
              <td role="cell" class="time" title={file.created}>{ago(file.created)}</td>
              <td role="cell" class="time" data-label="expires" title={file.expires_at ?? ""}>{file.expires_at === null ? "never" : until(file.expires_at)}</td>
              <td role="cell" class="whole last">
                <span class="row end">
                  <UseAs file={file} />
                  <Download quiet uri={file.uri} name={file.filename} failed={(why) => { filesProblem.value = `${plain(file.filename)} cannot be downloaded: ${why}.`; }} />
                  <button class="button quiet" onClick={() => forget(file)} aria-label={`Delete ${file.filename}`}>Delete</button>
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Tools that take files, each with a link that fills this one in. */
function UseAs({ file }: { file: Stored }): JSX.Element | null {
  const taking = tools.value.filter((tool) => tool.badges.includes("files"));
  if (taking.length === 0) return null;
  return (
    <select class="input compact" aria-label={`Use ${file.filename} with a tool`} value=""
      onChange={(event) => {
        const tool = taking.find((each) => each.name === event.currentTarget.value);
        if (tool !== undefined) location.hash = to("call", tool.name, { args: withFile(tool.inputSchema, file.filename) }).slice(1);
      }}>
      <option value="">Use with…</option>
      {taking.map((tool) => <option key={tool.name} value={tool.name}>{tool.name}</option>)}
    </select>
  );
}

function withFile(schema: Parameters<typeof blank>[1], filename: string): string {
  const begun = blank(schema, schema);
  const properties = isObject(schema["properties"]) ? schema["properties"] : {};
  const key = ["filename", "filenames", "file_names"].find((each) => Object.hasOwn(properties, each)) ?? "filename";
  return toJson({ ...(isObject(begun) ? begun : {}), [key]: key === "filename" ? filename : [filename] }, 2);
}

function same(one: Stored, other: Stored): boolean {
  return one.key === other.key && one.filename === other.filename;
}
