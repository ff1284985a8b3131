/** What was called: run again, change and run, compare, take along as curl, Python, a shell line or a test. */
import type { JSX } from "preact";
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { diffLines } from "diff";
import { toJson } from "../model/json";
import { forgetRuns } from "../model/keep";
import { route, to } from "../model/route";
import { picked, pin, runById, runs, start, type Run } from "../model/runs";
import { byName } from "../model/tools";
import { forgetStates } from "../model/widget_states";
import { ago, duration, time } from "../texts/numbers";
import { Divider } from "./divider";
import { Exported } from "./exported";
import { plain } from "../model/plain";
import { Folded } from "./folded";
import { RunView, STATUSES } from "./run";
import { SaveRequest } from "./save_request";
import { contractOf, modelText } from "./result";

export function HistoryView(): JSX.Element {
  const one = runById(route.value.rest);
  if (one !== undefined) return <One key={one.value.id} run={one} />;
  return <List />;
}

function List(): JSX.Element {
  useEffect(() => () => { picked.value = []; }, []);
  const asked = useSignal("");
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.value.filter((run) => words.every((word) => textOf(run.value).includes(word)));
  // Pinned ones first; within both, the newest.
  const listed = [...found.filter((run) => run.value.pinned === true), ...found.filter((run) => run.value.pinned !== true)];
  const both = picked.value.map((id) => runById(id)?.value).filter((run): run is Run => run !== undefined);
  const pick = (id: string): void => {
    picked.value = picked.value.includes(id) ? picked.value.filter((each) => each !== id) : [...picked.value, id].slice(-2);
  };
  return (
    <div class="stack">
      <header class="row"><h1>History</h1><a class="button quiet grow" href={to("saved")}>Saved</a>
        {runs.value.length > 0 && <button class="button quiet" onClick={() => { runs.value = []; forgetStates(); void forgetRuns(); }}>Clear history</button>}</header>
      {runs.value.length === 0 && <div class="card empty"><p>No calls yet.</p><p class="small">Every call from this page is listed here, in this browser only.</p></div>}
      {both[0] !== undefined && both[1] !== undefined && <Difference key={picked.value.join()} one={both[1]} other={both[0]} close={() => { picked.value = []; }} />}
      {runs.value.length > 0 && <input id="search" class="input" type="search" aria-label="Search calls" placeholder="Search calls: tool, server, arguments, result   /" value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; }} />}
      {picked.value.length === 1 && <p class="soft small" role="status">Choose a second call to compare with.</p>}
      {runs.value.length > 0 && listed.length === 0 && <p class="soft" role="status">No matching calls</p>}
      {listed.length > 0 && (
        <div class="card scroll">
          <table class="grid stacked" role="table">
            <caption class="unseen">Calls</caption>
            <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Compare</th><th role="columnheader" scope="col">Tool</th><th role="columnheader" scope="col">Arguments</th><th role="columnheader" scope="col">Status</th><th role="columnheader" scope="col">Took</th><th role="columnheader" scope="col">When</th><th role="columnheader" scope="col"><span class="unseen">Again</span></th></tr></thead>
            <tbody role="rowgroup">{listed.map((run) => <Row key={run.value.id} run={run} picked={picked.value.includes(run.value.id)} pick={pick} />)}</tbody>
          </table>
        </div>
      )}
    </div>
  );
}

/** What a search looks in: of a long result its beginning. */
function textOf(run: Run): string {
  return `${run.tool} ${run.status} ${STATUSES[run.status]} ${toJson(run.args).slice(0, 5000)} ${run.problem ?? ""} ${run.result === null ? "" : modelText(run.result).slice(0, 5000)}`.toLowerCase();
}

function Row({ run, picked, pick }: { run: Signal<Run>; picked: boolean; pick: (id: string) => void }): JSX.Element {
  const { value } = run;
  return (
    <tr role="row">
      <td role="cell"><input type="checkbox" checked={picked} onChange={() => pick(value.id)} aria-label={`Compare this call of ${value.tool}`} /></td>
      <td role="cell" class="first"><a class="mono" href={to("history", value.id)}>{value.tool}</a></td>
      <td role="cell" class="mono clip whole last">{plain(toJson(value.args)).slice(0, 200)}</td>
      <td role="cell"><span class={`badge ${value.status}`}>{STATUSES[value.status]}</span></td>
      <td role="cell" class="number">{value.took === null ? "" : duration(value.took)}</td>
      <td role="cell" class="time">{ago(new Date(value.began).toISOString())}</td>
      <td role="cell" class="whole last"><span class="row end"><button class="button quiet" aria-pressed={value.pinned === true} title="Keep this call, and list it first" onClick={() => pin(run, value.pinned !== true)}>{value.pinned === true ? "Pinned" : "Pin"}</button><Again run={value} /></span></td>
    </tr>
  );
}

function Again({ run }: { run: Run }): JSX.Element {
  return (
    <>
      <button class="button quiet" disabled={!byName.value.has(run.tool)} onClick={() => { start(run.tool, run.args); location.hash = to("call", run.tool).slice(1); }}>Run again</button>
      <a class="button quiet" href={to("call", run.tool, { args: toJson(run.args, 2) })}>Edit</a>
    </>
  );
}

function One({ run }: { run: Signal<Run> }): JSX.Element {
  const { value } = run;
  return (
    <div class="stack">
      <header class="row"><h1 class="mono">{value.tool}</h1><span class="soft small grow">{origin(value)}</span><SaveRequest kind="tool" target={value.tool} args={() => value.args} /><Again run={value} /><a class="button quiet" href={to("history")}>All calls</a></header>
      <div class="call">
        <section class="card" aria-label="Arguments">
          <header><h2>Arguments</h2></header>
          <div class="body"><pre class="code" tabIndex={0}><Folded text={toJson(value.args, 2)} /></pre></div>
          <header><h2>Export</h2></header>
          <Exported taken={{ kind: "tool", target: value.tool, args: value.args, run: value }} />
        </section>
        <Divider />
        <RunView run={run} tool={byName.value.get(value.tool)} />
      </div>
    </div>
  );
}

function Difference({ one, other, close }: { one: Run; other: Run; close: () => void }): JSX.Element {
  const card = useRef<HTMLElement>(null);
  // It stands above the list, in which the second was chosen far below.
  useLayoutEffect(() => card.current?.scrollIntoView({ block: "start", behavior: "instant" }), []);
  const several = origin(one) !== origin(other);
  // Only servers under the contract have its value beside what they send.
  const alike = [one, other].every((run) => run.result !== null && contractOf(run.result) !== null);
  return (
    <section class="card difference" ref={card} aria-label="Difference">
      <header><h2 class="grow">{`From ${when(one) + (several ? origin(one) : "")} to ${when(other) + (several ? origin(other) : "")}`}</h2><button class="button quiet" onClick={close}>Close</button></header>
      <div class="body stack">
        <h3 class="part">Arguments</h3><Lines one={toJson(one.args, 2)} other={toJson(other.args, 2)} />
        <h3 class="part">Result</h3><Lines one={shown(one, alike)} other={shown(other, alike)} />
      </div>
    </section>
  );
}

/** By the clock, too: two calls that are compared often lie seconds apart. */
function when(run: Run): string {
  return `${time(run.began)}, ${ago(new Date(run.began).toISOString())}`;
}

/** Of which server, in which version, where that is known. */
function origin(run: Run): string {
  return run.server === undefined || run.server === "" ? "" : plain(` (${run.server}${run.version ? ` ${run.version}` : ""})`);
}

const MOST = 300_000;

function shown(run: Run, byContract: boolean): string {
  if (run.result === null) return run.problem ?? "";
  const value = byContract ? contractOf(run.result) : run.result["structuredContent"];
  return (value === null || value === undefined ? modelText(run.result) : toJson(value, 2)).slice(0, MOST);
}

function Lines({ one, other }: { one: string; other: string }): JSX.Element {
  const parts = one === other ? [] : diffLines(one, other, { timeout: 1000 });
  if (one === other) return <p class="soft small">The same.</p>;
  if (parts === undefined) return <p class="soft small">Too different to compare line by line.</p>;
  return (
    <pre class="code diff" tabIndex={0}>
      {parts.map((part, index) => part.added ? <ins key={index}>{marked("+ ", part.value)}</ins> : part.removed ? <del key={index}>{marked("− ", part.value)}</del> : <span key={index}>{marked("  ", part.value)}</span>)}
    </pre>
  );
}

function marked(mark: string, text: string): string {
  return plain(text).replace(/^(?=[^])/gm, mark);
}
