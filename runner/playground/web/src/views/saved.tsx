/** Saved requests: opened, run alone or as a set with expectations, shared, taken along. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { pytestOf } from "../model/exports";
import { openRequest } from "../model/opening";
import { toJson } from "../model/json";
import { plain } from "../model/plain";
import { route, settle, to } from "../model/route";
import { asFile, change, forget, read, saved, takeOver, type Expect, type Saved } from "../model/saved";
import { runAll, running, stop, verdicts } from "../model/expectations";
import { duration } from "../texts/numbers";
import { readObject } from "./asks";
import { CopyButton } from "./copy";
import { saveBlob } from "./download";
import { Exported } from "./exported";
import { inserted } from "../texts/inserted";
import { T } from "../texts/texts";

const MOST_LINK = 30_000;
const asked = signal("");

export function SavedView(): JSX.Element {
  const opened = useSignal<string | null>(null);
  const problem = useSignal<string | null>(null);
  const offered = useSignal<Omit<Saved, "id">[] | null>(null);
  const linked = route.value.query.get("take");
  const offer = (text: string): void => {
    try {
      offered.value = read(text);
      problem.value = null;
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  useEffect(() => {
    if (linked === null) return;
    offer(linked);
    settle(to("saved"));
  }, [linked]);
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = saved.value.filter((each) => words.every((word) => `${each.name} ${each.target} ${each.server}`.toLowerCase().includes(word)))
    .sort((one, other) => one.name.localeCompare(other.name));
  const ended = shown.map((each) => verdicts.value.get(each.id)).filter((each) => each?.state === "passed" || each?.state === "failed");
  return (
    <div class="stack">
      <header class="row"><h1>{T.saved.title}</h1><a class="button quiet grow" href={to("history")}>{T.history.title}</a>
        <label class="button quiet">{T.saved.take}<input type="file" class="unseen" accept=".json,application/json" onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          event.currentTarget.value = "";
          if (file !== undefined) void file.text().then(offer);
        }} /></label>
        <button class="button quiet" disabled={shown.length === 0} data-press="saved-file" onClick={() => void saveBlob(new Blob([asFile(shown)], { type: "application/json" }), "requests.json")}>{T.saved.file}</button>
        <button class="button quiet" disabled={shown.length === 0} data-press="saved-pytest" onClick={() => void saveBlob(new Blob([pytestOf(shown)], { type: "text/x-python" }), "test_requests.py")}>{T.saved.pytest}</button></header>
      <p class="soft small">{T.saved.about}</p>
      {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
      {offered.value !== null && <Offered list={offered.value} done={() => { offered.value = null; }} failed={(why) => { problem.value = why; }} />}
      {saved.value.length === 0 ? <div class="card empty"><p>{T.saved.none}</p></div> : (
        <>
          <div class="row filters">
            <label class="grow"><span class="unseen">{T.saved.search}</span><input id="search" class="input" type="search" placeholder={`${T.saved.search}   /`} value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; }} /></label>
            {running.value ? <button class="button danger" onClick={stop}>{T.saved.stop}</button> : <button class="button main" disabled={shown.length === 0} data-press="saved-run" onClick={() => void runAll(shown)}>{T.saved.runAll(shown.length)}</button>}
          </div>
          {ended.length > 0 && <p role="status">{inserted(T.saved.passedOf(ended.length), { passed: <b>{ended.filter((each) => each?.state === "passed").length}</b> })}</p>}
          <section class="card" aria-label={T.saved.title}>
            <ul class="saved">{shown.map((each) => <Row key={each.id} request={each} open={opened.value === each.id} toggle={() => { opened.value = opened.value === each.id ? null : each.id; }} />)}</ul>
          </section>
        </>
      )}
    </div>
  );
}

/** What somebody shares, before it is taken over: everything that it would ask for. */
function Offered({ list, done, failed }: { list: Omit<Saved, "id">[]; done: () => void; failed: (why: string) => void }): JSX.Element {
  return (
    <section class="question stack" aria-label={T.saved.offered}>
      <h2>{T.saved.offered}</h2><p class="small">{T.saved.offeredAbout}</p>
      <ul class="stack">{list.slice(0, 50).map((each, index) => <li key={index}><b>{plain(each.name)}</b> <span class="mono small">{plain(`${each.server}: ${each.target} ${toJson(each.args).slice(0, 300)}`)}</span></li>)}{list.length > 50 && <li class="soft">{T.common.more(list.length - 50)}</li>}</ul>
      <div class="row"><button class="button main" onClick={() => {
        try {
          takeOver(list);
          done();
        } catch (error) {
          failed((error as Error).message);
        }
      }}>{T.saved.takeOver(list.length)}</button><button class="button" onClick={done}>{T.common.dismiss}</button></div>
    </section>
  );
}

function Row({ request, open, toggle }: { request: Saved; open: boolean; toggle: () => void }): JSX.Element {
  const verdict = verdicts.value.get(request.id);
  const link = (): string => `${location.origin}${location.pathname}${to("saved", "", { take: asFile([request]) })}`;
  return (
    <li>
      <div class="row">
        <button class="name" aria-expanded={open} onClick={toggle}><b>{plain(request.name)}</b></button>
        <span class="mono small soft clip grow">{plain(`${request.server}: ${request.target}`)}</span>
        {verdict !== undefined && verdict.state !== "waits" && <span class={`badge ${verdict.state === "passed" ? "done" : verdict.state === "runs" ? "running" : "failed"}`} role="status">{T.saved.verdicts[verdict.state]}{verdict.took === null ? "" : ` ${duration(verdict.took)}`}</span>}
        <button class="button quiet" disabled={running.value} onClick={() => void runAll([request])}>{T.saved.run}</button>
        <button class="button quiet" onClick={() => openRequest(request)}>{T.saved.open}</button>
      </div>
      {verdict?.state === "failed" && <ul class="problem small">{verdict.faults.map((fault, index) => <li key={index}>{plain(fault())}</li>)}{verdict.run !== null && <li><a href={to("history", verdict.run)}>{T.common.itsCall}</a></li>}</ul>}
      {open && (
        <div class="stack body">
          <Expectations request={request} />
          <div class="row">{link().length < MOST_LINK && <CopyButton name={T.saved.link} text={link} />}<button class="button quiet danger" onClick={() => forget([request.id])}>{T.common.delete}</button></div>
          <details><summary>{T.saved.exports}</summary><Exported taken={request} /></details>
        </div>
      )}
    </li>
  );
}

function Expectations({ request }: { request: Saved }): JSX.Element {
  const schema = useSignal(request.expect.schema === undefined ? "" : toJson(request.expect.schema, 2));
  const problem = useSignal<string | null>(null);
  const set = (part: { [K in keyof Expect]?: Expect[K] | undefined }): void => {
    const next = Object.fromEntries(Object.entries({ ...request.expect, ...part }).filter(([, value]) => value !== undefined && value !== "")) as Expect;
    try {
      change(request.id, { expect: next });
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  return (
    <fieldset class="field stack"><legend>{T.saved.edit}</legend>
      {problem.value !== null && <p class="problem" role="alert">{problem.value}</p>}
      <label class="field"><span class="label">{T.saved.status}</span><select class="input" value={request.expect.status ?? "done"} onChange={(event) => set({ status: event.currentTarget.value as "done" | "failed" })}>
        {Object.entries(T.saved.statuses).map(([each, title]) => <option key={each} value={each}>{title}</option>)}</select></label>
      <label class="field"><span class="label">{T.saved.text}</span><input class="input" value={request.expect.text ?? ""} onChange={(event) => set({ text: event.currentTarget.value })} /><span class="hint">{T.saved.textHint}</span></label>
      <label class="field"><span class="label">{T.saved.artifact}</span><input class="input" value={request.expect.artifact ?? ""} onChange={(event) => set({ artifact: event.currentTarget.value })} /><span class="hint">{T.saved.artifactHint}</span></label>
      <label class="field"><span class="label">{T.saved.schema}</span><textarea class="input" rows={4} spellcheck={false} value={schema.value} onInput={(event) => { schema.value = event.currentTarget.value; }} onBlur={() => {
        const given = schema.value.trim() === "" ? { value: undefined, problem: null } : readObject(schema.value);
        problem.value = given.problem;
        if (given.problem === null) set({ schema: given.value ?? undefined });
      }} /></label>
    </fieldset>
  );
}
