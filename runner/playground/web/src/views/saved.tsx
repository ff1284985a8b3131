/** Saved requests: opened, exported, given to others as a file. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { pytestOf } from "../model/exports";
import { plain } from "../model/plain";
import { to } from "../model/route";
import { asFile, forget, open, read, save, saved, type Saved } from "../model/saved";
import { saveBlob } from "./download";
import { Exported } from "./exported";

const asked = signal("");

export function SavedView(): JSX.Element {
  const opened = useSignal<string | null>(null);
  const problem = useSignal<string | null>(null);
  const take = (text: string): void => {
    try {
      save(...read(text));
      problem.value = null;
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = saved.value.filter((each) => words.every((word) => `${each.name} ${each.target} ${each.server}`.toLowerCase().includes(word)))
    .sort((one, other) => one.name.localeCompare(other.name));
  return (
    <div class="stack">
      <header class="row"><h1>Saved</h1><a class="button quiet grow" href={to("history")}>History</a>
        <label class="button quiet">Import<input type="file" class="unseen" accept=".json,application/json" onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          event.currentTarget.value = "";
          if (file !== undefined) void file.text().then(take);
        }} /></label>
        <button class="button quiet" disabled={shown.length === 0} onClick={() => void saveBlob(new Blob([asFile(shown)], { type: "application/json" }), "requests.json")}>Save as file</button>
        <button class="button quiet" disabled={shown.length === 0} onClick={() => void saveBlob(new Blob([pytestOf(shown)], { type: "text/x-python" }), "test_requests.py")}>Save as pytest</button></header>
      <p class="soft small">Requests of this browser, for all servers. Save them as a file to share them.</p>
      {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
      {saved.value.length === 0 ? <div class="card empty"><p>Nothing is saved yet. “Save” beside a tool, a prompt or a resource keeps the request here.</p></div> : (
        <>
          <label class="filters"><span class="unseen">Search</span><input id="search" class="input" type="search" placeholder={`Search   /`} value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; }} /></label>
          <section class="card" aria-label="Saved">
            <ul class="saved">{shown.map((each) => <Row key={each.id} request={each} open={opened.value === each.id} toggle={() => { opened.value = opened.value === each.id ? null : each.id; }} />)}</ul>
          </section>
        </>
      )}
    </div>
  );
}

function Row({ request, open: isOpen, toggle }: { request: Saved; open: boolean; toggle: () => void }): JSX.Element {
  return (
    <li>
      <div class="row">
        <button class="name" aria-expanded={isOpen} onClick={toggle}><b>{plain(request.name)}</b></button>
        <span class="mono small soft clip grow">{plain(`${request.server}: ${request.target}`)}</span>
        <button class="button quiet" onClick={() => open(request)}>Open</button>
        <button class="button quiet danger" onClick={() => forget(request.id)}>Delete</button>
      </div>
      {isOpen && <div class="stack body"><Exported taken={request} /></div>}
    </li>
  );
}
