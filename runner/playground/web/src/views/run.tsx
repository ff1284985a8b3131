/** One call: how it goes while it runs, and what became of it. */
import type { JSX } from "preact";
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { deadlinesOf } from "../model/info";
import { brief, plain } from "../model/plain";
import { questions } from "../model/questions";
import { cancel, reportOf, type Progress, type Run } from "../model/runs";
import { widgetOf, type Tool } from "../model/tools";
import { count, duration, percent, seconds } from "../texts/numbers";
import { Canvas, ItemView, Viewed } from "../canvas/canvas";
import { boardTab, boardTabs, endEphemeral, openDashboard } from "../canvas/dashboard";
import { itemOf, shownOf, type Item, type Shown } from "../canvas/items";
import { HtmlView, PageView } from "../canvas/page";
import { Links, References } from "../canvas/references";
import { Folded } from "./folded";
import { later } from "./later";
import { ContractTab, keptUri, MessagesTab, ModelTab, SandboxTab, TimingTab } from "./result";
import { Tabs, type Tab } from "./tabs";

const WidgetView = later(() => import("../canvas/widget").then((module) => module.WidgetView));

const PLACE = "in runner.toml or under [tools.NAME]";
export const STATUSES = { running: "Running", done: "Done", failed: "Failed", cancelled: "Cancelled" };

export function RunView({ run, tool, isOfOther = false }: { run: Signal<Run>; tool: Tool | undefined; isOfOther?: boolean }): JSX.Element {
  const tab = useSignal("");
  const { value } = run;
  const asks = value.status === "running" && questions.value.length > 0;
  const denied = reportOf(value)?.denials?.length ?? 0;
  useEffect(() => {
    const { panel } = shownOf(value);
    if (panel !== null) {
      openDashboard(panel);
      tab.value = boardTab(panel);
    }
    return endEphemeral;
  }, [value.id, value.result]);
  return (
    <section class="card" aria-label="Call" data-run tabIndex={-1}>
      <header>
        <span class={`badge ${value.status}`}>{asks ? "Waiting for your answer" : STATUSES[value.status]}</span>
        {value.status === "running" ? (asks ? null : <Clock run={value} />) : <span class="soft small">{value.took === null ? "" : duration(value.took)}</span>}
        {denied > 0 && <button type="button" class="badge failed" title="Show what the sandbox denied" onClick={() => { tab.value = "sandbox"; }}>{`${count(denied)} denied`}</button>}
        {isOfOther && value.status !== "running" && <span class="soft small">with other arguments</span>}
        <span class="grow" />
        {value.status === "running" && <button class="button danger" onClick={() => cancel(value.id)}>Cancel</button>}
      </header>
      {value.status === "running" && <div class="body"><Live run={value} /></div>}
      {value.status === "running" && <Meanwhile run={value} />}
      {value.status !== "running" && <Told run={value} />}
      {value.status !== "running" && (
        <Tabs label="Result" chosen={tab.value} choose={(id) => { tab.value = id; }} tabs={tabs(value, tool)} />
      )}
      <span class="unseen" role="status">{asks ? "Waiting for your answer" : value.status === "running" ? "Call running" : `Call ${(STATUSES[value.status]).toLowerCase()}`}</span>
    </section>
  );
}

function tabs(run: Run, tool: Tool | undefined): Tab[] {
  const shown = shownOf(run);
  const files: Tab[] = shown.items.length === 0 ? [] : [{ id: "files", title: `Files ${count(shown.items.length)}`, body: () => <Canvas key={run.id} shown={shown} /> }];
  const canvas: Tab[] = run.canvas === undefined ? [] : [{ id: "canvas", title: "Canvas", body: () => <CanvasPage canvas={run.canvas} /> }];
  const widget: Tab[] = tool === undefined || widgetOf(tool.meta) === null || run.result === null ? [] : [{
    id: "widget", title: "Widget",
    body: () => <WidgetView key={run.id} run={run} tool={tool} />,
  }];
  return [
    ...(run.status === "failed" ? [] : widget),
    ...(shown.open ? files : []),
    { id: "result", title: "Result", body: () => <ResultTab run={run} shown={shown} /> },
    ...(run.status === "failed" ? widget : []),
    ...(shown.open ? [] : files),
    ...canvas,
    { id: "model", title: "Model view", body: () => <ModelTab run={run} /> },
    { id: "timing", title: "Timing", body: () => <TimingTab run={run} /> },
    { id: "sandbox", title: "Sandbox", body: () => <SandboxTab run={run} /> },
    { id: "logs", title: `Log ${run.logs.length === 0 ? "" : count(run.logs.length)}`, body: () => <Logs run={run} /> },
    ...boardTabs(),
    { id: "messages", title: "Messages", body: () => <MessagesTab run={run} /> },
  ].filter((tab) => tab.id !== "sandbox" || reportOf(run) !== null);
}

function ResultTab({ run, shown }: { run: Run; shown: Shown }): JSX.Element {
  const kept = shown.references.find((item) => item.uri === keptUri(run));
  return (
    <div class="stack">
      <ContractTab run={run} kept={kept === undefined ? null : <Viewed item={kept} />} />
      {shown.references.length > 0 && <References items={shown.references} />}
      {shown.links.length > 0 && <Links links={shown.links} />}
    </div>
  );
}

/** What a running tool shows already: a page, and files. */
function Meanwhile({ run }: { run: Run }): JSX.Element | null {
  const items = (run.soFar ?? []).map(itemOf).filter((item): item is Item => item !== null);
  if (run.canvas === undefined && items.length === 0) return null;
  return (
    <section class="body stack" aria-label="Shown so far">
      {run.canvas !== undefined && <CanvasPage canvas={run.canvas} />}
      {items.map((item) => <ItemView key={item.uri} item={item} />)}
    </section>
  );
}

function CanvasPage({ canvas }: { canvas: Run["canvas"] }): JSX.Element | null {
  if (canvas === undefined) return null;
  return "html" in canvas ? <HtmlView html={canvas.html} title="Canvas" /> : <PageView key={canvas.uri} item={{ ...PAGE, ...canvas }} />;
}

const PAGE: Item = { name: "canvas.html", mime: "text/html", size: 0, uri: "", description: null, expires: null, viewer: "html" };

/** What the tool wants people told, and why a page that it wanted is not here. */
function Told({ run }: { run: Run }): JSX.Element | null {
  const { notification, refused } = shownOf(run);
  if (notification === null && refused === null) return null;
  return (
    <div class="body stack">
      {notification !== null && <p class="notice">{plain(notification)}</p>}
      {refused !== null && <p class="problem" role="alert">{`The dashboard is not shown: ${plain(refused)}.`}</p>}
    </div>
  );
}

/** Progress and limits of a running call, in one line. */
function Clock({ run }: { run: Run }): JSX.Element {
  const now = useClock();
  const { idle_s, total_s } = deadlinesOf(run.tool);
  const went = Math.max(0, now - run.began);
  const silent = Math.max(0, went - run.heard) / 1000;
  const part = partOf(run.progress.at(-1));
  return (
    <>
      {part !== null && (
        <span class="row small soft">
          <span class="bar" role="progressbar" aria-valuenow={Math.round(part * 100)} aria-valuemin={0} aria-valuemax={100} aria-label="Progress"><i style={{ width: `${part * 100}%` }} /></span>
          {percent(part)}{eta(run, part, went)}
        </span>
      )}
      <span class="soft small" title={`total_timeout_s, ${PLACE}`}>{`${seconds(went / 1000)} of ${seconds(total_s)}`}</span>
      {silent >= LEAST_SILENT_S && <span class={`small ${silent > idle_s / 2 ? "warn" : "soft"}`} title={`idle_timeout_s, ${PLACE}`}>{`No output for ${seconds(silent)} (ends at ${seconds(idle_s)})`}</span>}
    </>
  );
}

const LEAST_SILENT_S = 3;

function Live({ run }: { run: Run }): JSX.Element {
  const last = run.progress.at(-1);
  const told = run.logs.findLast((line) => line.notice);
  return (
    <div class="stack">
      {last?.message && <p aria-live="polite">{brief(last.message, MOST_TOLD)}</p>}
      {told !== undefined && told.at > run.heard && <p class="notice" role="status">{brief(told.text, MOST_TOLD)}</p>}
      <Logs run={run} />
    </div>
  );
}

const MOST_TOLD = 500;
const MOST_LEFT_MS = 24 * 3_600_000;

/** How much is done, from 0 to 1; null where that cannot be said. A tool may report any numbers. */
export function partOf(last: Progress | undefined): number | null {
  const part = last === undefined || last.total === null ? Number.NaN : last.progress / last.total;
  return Number.isNaN(part) ? null : Math.min(1, Math.max(0, part));
}

function eta(run: Run, part: number, went: number): string {
  const first = run.progress.find((each) => each.total !== null && each.progress > 0);
  const left = (went / part) * (1 - part);
  if (first === undefined || part <= 0 || part >= 1 || run.progress.length < 2 || left > MOST_LEFT_MS) return "";
  return `, about ${seconds(left / 1000)} to go`;
}

export function Logs({ run }: { run: Run }): JSX.Element {
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    list.current?.scrollTo({ top: list.current.scrollHeight });
  }, [run.logs.length]);
  if (run.logs.length === 0) return <p class="soft small">No log lines.</p>;
  return (
    <ol class="logs" ref={list} tabIndex={0} aria-label="Log">
      {run.logs.map((line, index) => (
        <li key={index} class={line.notice ? "notice" : line.level}>
          <span>{seconds(line.at / 1000)}</span><span>{brief(line.level, 20)}</span><span><Folded text={line.text} /></span>
        </li>
      ))}
    </ol>
  );
}

function useClock(): number {
  const now = useSignal(Date.now());
  useEffect(() => {
    const timer = setInterval(() => { now.value = Date.now(); }, 250);
    return () => clearInterval(timer);
  }, []);
  return now.value;
}
