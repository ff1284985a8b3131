/** What a call made, from several sides: the contract, the model's text, messages, times, the sandbox. */
import { Fragment, type ComponentChildren, type JSX } from "preact";
import { useSignal } from "@preact/signals";
import { isObject, toJson, type Json } from "../model/json";
import type { Params } from "../model/connection";
import { reportOf, type Cause, type Run, type Span } from "../model/runs";
import { seenByModel } from "../model/seen";
import { count, duration, size } from "../texts/numbers";
import { ADVISING, AS_THE_MESSAGE_SAYS, adviceOf, adviceOfDenial, adviceOfProblem } from "../model/advice";
import { CopyButton } from "./copy";
import { Folded } from "./folded";
import { later } from "./later";
import { plain } from "../model/plain";

const Markdown = later(() => import("../canvas/markdown").then((module) => module.Markdown));

export function contractOf(result: Params): Params | null {
  const meta = result["_meta"];
  const kept = isObject(meta) ? meta["toolcell/result"] : undefined;
  const value = kept ?? result["structuredContent"];
  if (!isObject(value)) return null;
  // Facts that are too large for a model, and a page's token, stand beside what it reads.
  const facts = isObject(meta) ? meta["toolcell/meta_data"] : undefined;
  return facts === undefined ? value : { ...value, meta_data: facts };
}

/** The address of the whole value where the runner kept it and returned a reference; null where it did not. */
export function keptUri(run: Run): string | null {
  const contract = run.result === null ? null : contractOf(run.result);
  const value = contract === null ? null : returnedOf(contract);
  const kept = isObject(value) ? value["artifact"] : null;
  return isObject(kept) && typeof kept["id"] === "string" ? `artifact://${kept["id"]}` : null;
}

export function ContractTab({ run, kept }: { run: Run; kept: JSX.Element | null }): JSX.Element {
  if (run.result === null) return <Problem text={run.problem ?? "The call gave no result."} cause={run.cause} />;
  const contract = contractOf(run.result);
  const error = contract === null ? null : failure(contract);
  // Of a server that gives its results no form of ours.
  if (error === null && run.result["isError"] === true) return <div class="stack"><Refused text={modelText(run.result)} />{contract !== null && <Whole value={contract} />}</div>;
  if (contract === null) return <ModelTab run={run} />;
  return (
    <div class="stack">
      {error !== null && <Failure contract={contract} />}
      {error === null && (kept ?? <Returned value={returnedOf(contract)} />)}
      <Whole value={contract} />
    </div>
  );
}

/** The value a person looks for: `results` of the contract, else the one field in which FastMCP wraps a bare value. */
function returnedOf(contract: Params): Json {
  if (contract["results"] !== undefined) return contract["results"];
  const [only, ...others] = Object.keys(contract);
  return only === "result" && others.length === 0 ? (contract["result"] ?? null) : contract;
}

/** A returned value: text as text, with its Markdown rendered on request; anything else as JSON. */
function Returned({ value }: { value: Json }): JSX.Element {
  const rendered = useSignal(false);
  if (typeof value !== "string") return <Text text={toJson(value, 2)} />;
  if (value === "") return <p class="soft">(no text)</p>;
  return (
    <div class="stack">
      {looksLikeMarkdown(value) && <div><button type="button" class="button small" aria-pressed={rendered.value} onClick={() => { rendered.value = !rendered.value; }}>Rendered Markdown</button></div>}
      {rendered.value ? <Markdown text={value} /> : <Text text={value} />}
    </div>
  );
}

/** Whether rendering would change how a text looks. */
function looksLikeMarkdown(text: string): boolean {
  return /^(#{1,6} |\s{0,3}[-*+] |\s{0,3}\d+[.)] |> |```|\|.*\|)|\*\*\S|`[^`]+`|\[[^\]]+\]\([^)]+\)/m.test(text.slice(0, 20_000));
}

function failure(contract: Params): Params | null {
  const meta = contract["meta_data"];
  return isObject(meta) && meta["is_error"] === true ? meta : null;
}

/** An error in three parts: what, why, what to try. */
function Failure({ contract }: { contract: Params }): JSX.Element {
  const meta = failure(contract) ?? {};
  const results = contract["results"];
  const what = isObject(results) && results["error"] !== undefined ? results["error"] : results;
  const details = isObject(meta["details"]) ? meta["details"] : {};
  const code = String(meta["error_code"] ?? "Error");
  const reasons = Object.entries(details).filter(([key, value]) => value !== null && !ADVISING.includes(key));
  return (
    <Three what={typeof what === "string" ? what : toJson(what ?? null)} code={code} advice={adviceOf(code, details, meta["retryable"] === true)}>
      {reasons.length > 0 && (
        <dl class="facts small">
          {reasons.map(([key, value]) => (
            <Fragment key={key}><dt>{plain(key.replaceAll("_", " "))}</dt><dd class="mono">{plain(clipped(asLines(value)))}</dd></Fragment>
          ))}
        </dl>
      )}
    </Three>
  );
}

function asLines(value: Json): string {
  if (typeof value === "string") return value;
  return Array.isArray(value) && value.every((each) => typeof each === "string") ? value.join("\n") : toJson(value);
}

/** What happened, why, what to try. */
export function Three({ what, code, advice, children }: { what: string; code: string | null; advice: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="problem" role="alert">
      <h2 class="part">What happened</h2>
      <p><strong>{plain(clipped(what))}</strong>{code !== null && <> <code class="soft">{plain(code)}</code></>}</p>
      {children && <h2 class="part">Why</h2>}
      {children}
      <h2 class="part">What to try</h2>
      <p>{plain(advice)}</p>
    </div>
  );
}

export function Problem({ text, cause }: { text: string; cause?: Cause | undefined }): JSX.Element {
  const [what = "", ...why] = text.split("\n");
  return <Three what={what} code={null} advice={adviceOfProblem(what, cause)}>{why.length > 0 ? <pre>{plain(clipped(why.join("\n")))}</pre> : null}</Three>;
}

/** An error of a tool, as its server wrote it. */
function Refused({ text }: { text: string }): JSX.Element {
  const [what = "", ...why] = text.trim().split("\n");
  return <Three what={what || "(no text)"} code={null} advice={AS_THE_MESSAGE_SAYS}>{why.length > 0 ? <pre>{plain(clipped(why.join("\n")))}</pre> : null}</Three>;
}

/** The text that a model reads, and how long it is. */
export function modelText(result: Params): string {
  const content = Array.isArray(result["content"]) ? result["content"] : [];
  return content.filter(isObject).map((block) => (block["type"] === "text" ? String(block["text"]) : toJson(seenByModel(block), 2))).join("\n");
}

export function ModelTab({ run }: { run: Run }): JSX.Element {
  if (run.result === null) return <Problem text={run.problem ?? "The call gave no result."} cause={run.cause} />;
  const text = modelText(run.result);
  const length = lengthOf(text);
  return (
    <div class="stack">
      <p class="soft small">{count(length)} {length === 1 ? "character" : "characters"}, about {count(Math.ceil(length / 4))} {length > 0 && length <= 4 ? "token" : "tokens"}</p>
      <Text text={text || "(no text)"} />
    </div>
  );
}

export function MessagesTab({ run }: { run: Run }): JSX.Element {
  if (run.wire.length === 0) return <p class="soft">The messages of this call were not kept.</p>;
  return (
    <ol class="stack">
      {run.wire.map((wire, index) => (
        <li key={index}>
          <details open={run.wire.length < 4}>
            <summary class="small"><span class="mono">{duration(wire.at)}</span> {wire.direction === "sent" ? "→" : "←"} {title(wire.message)}</summary>
            <pre class="code" tabIndex={0}><Folded text={clipped(toJson(wire.message, 2))} /></pre>
          </details>
        </li>
      ))}
    </ol>
  );
}

function title(message: Json): string {
  if (!isObject(message)) return "message";
  if (typeof message["method"] === "string") return message["method"];
  return message["error"] !== undefined ? "error" : "result";
}

/** A text in full, or its beginning where all of it would hold the page up; copied, it is whole. */
export function Text({ text }: { text: string }): JSX.Element {
  return (
    <div class="text">
      <pre class="code" tabIndex={0}><Folded text={clipped(text)} /></pre>
      <CopyButton text={() => text} />
    </div>
  );
}

function Whole({ value }: { value: Params }): JSX.Element {
  const open = useSignal(false);
  return (
    <details onToggle={(event) => { open.value = event.currentTarget.open; }}>
      <summary class="small">Full result</summary>
      {open.value && <Text text={toJson(value, 2)} />}
    </details>
  );
}

function lengthOf(text: string): number {
  let pairs = 0;
  for (let at = 0; at < text.length; at += 1) if ((text.charCodeAt(at) & 0xfc00) === 0xd800) pairs += 1;
  return text.length - pairs;
}

const MOST = 100_000;

function clipped(text: string): string {
  return text.length <= MOST ? text : `${text.slice(0, MOST)}\n${`… ${count(text.length - MOST)} more characters`}`;
}

const STEPS: Record<string, string> = {
  admit: "wait for a place",
  stage: "stage the inputs",
  lease: "take a worker",
  run: "run the tool",
  normalise: "read the result",
  end: "wait until every process is gone",
  collect: "collect and route the files",
  render: "write the message",
  guard: "guard the output",
};

export function TimingTab({ run }: { run: Run }): JSX.Element {
  const report = reportOf(run);
  if (report === null) return <p class="soft">This server gives no times.</p>;
  const steps = Object.entries(report.steps_ms);
  if (report.trace !== undefined && report.spans !== undefined) return <Waterfall run={run} trace={report.trace} spans={report.spans} />;
  const inside = steps.reduce((sum, [, took]) => sum + took, 0);
  const most = Math.max(...steps.map(([, took]) => took), 0.001);
  return (
    <div class="stack">
      <table class="grid">
        <caption class="unseen">Time of each step</caption>
        <thead><tr><th scope="col">Step</th><th scope="col" class="number">Time</th><th scope="col" aria-hidden="true" /></tr></thead>
        <tbody>
          {steps.map(([step, took]) => (
            <tr key={step}>
              <td>{STEPS[step] ?? step}</td>
              <td class="number">{duration(took)}</td>
              <td style={{ width: "45%" }} aria-hidden="true"><div class="bar"><i style={{ width: `${(took / most) * 100}%` }} /></div></td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="soft small">{`${duration(inside)} in the server, ${duration(run.took ?? 0)} as this page saw it.`}</p>
    </div>
  );
}

/** The spans of a call as they lie in time: what this page waited for, and within it the server's call and its steps. */
function Waterfall({ run, trace, spans }: { run: Run; trace: string; spans: Span[] }): JSX.Element {
  const inside = spans.reduce((end, span) => Math.max(end, span.start_ms + span.took_ms), 0);
  const whole = Math.max(run.took ?? 0, inside, 0.001);
  // The server does not say when it got the request by the page's clock; half of the rest lies before it.
  const shift = (whole - inside) / 2;
  const rows = [
    { name: "this page", start: 0, took: run.took ?? whole, depth: 0 },
    { name: `tools/call ${run.tool}`, start: shift, took: inside, depth: 1 },
    ...spans.map((span) => ({ name: STEPS[span.name] ?? span.name, start: shift + span.start_ms, took: span.took_ms, depth: 2 })),
  ];
  const [, traceId = trace, spanId = ""] = trace.split("-");
  return (
    <div class="stack">
      <div class="scroll" role="region" aria-label="Spans" tabIndex={0}><table class="grid waterfall">
        <caption class="unseen">Spans of the call</caption>
        <thead><tr><th scope="col">Span</th><th scope="col" class="number">From</th><th scope="col" class="number">Took</th><th scope="col" aria-hidden="true" /></tr></thead>
        <tbody>{rows.map((row, index) => (
          <tr key={index}>
            <td style={{ paddingInlineStart: `${0.7 + row.depth}rem` }}>{plain(row.name)}</td>
            <td class="number">{duration(row.start)}</td>
            <td class="number">{duration(row.took)}</td>
            <td class="lane" aria-hidden="true"><i style={{ marginInlineStart: `${(row.start / whole) * 100}%`, width: `${Math.max(0.5, (row.took / whole) * 100)}%` }} /></td>
          </tr>
        ))}</tbody>
      </table></div>
      <dl class="facts small"><dt>Trace</dt><dd class="mono">{plain(traceId)}</dd><dt>Span of the call</dt><dd class="mono">{plain(spanId)}</dd></dl>
      <p class="soft small">What the tool records itself goes to the operator's collector, below this span.</p>
    </div>
  );
}

function Allowed({ denial }: { denial: Params }): JSX.Element {
  const { flag, text } = adviceOfDenial(denial);
  return <>{flag !== null && <span class="row flag"><CopyButton text={() => flag} /><code>{plain(flag)}</code></span>} <span class={flag === null ? "" : "soft"}>{text}</span></>;
}

export function SandboxTab({ run }: { run: Run }): JSX.Element {
  const report = reportOf(run);
  if (report === null) return <p class="soft">This server gives no report.</p>;
  const { limits = {}, denials = [] } = report;
  return (
    <div class="stack">
      <dl class="facts">
        <dt>Tier</dt><dd>{report.tier}</dd>
        {report.layers !== undefined && <><dt>Layers</dt><dd>{report.layers.join(", ")}</dd></>}
        {report.usage?.peak_bytes !== undefined && <><dt>Peak memory</dt><dd>{size(report.usage.peak_bytes)}</dd></>}
        {report.usage?.cpu_s !== undefined && <><dt>Processor time</dt><dd>{duration(report.usage.cpu_s * 1000)}</dd></>}
        {limits["memory_bytes"] !== undefined && <><dt>Memory limit</dt><dd>{`${size(limits["memory_bytes"])} a process`}</dd></>}
        {limits["cpu_s"] !== undefined && <><dt>Processor limit</dt><dd>{limits["cpu_s"]} s</dd></>}
      </dl>
      <h2 class="part">Denials</h2>
      {denials.length === 0 ? <p class="soft">Nothing was denied.</p> : (
        <div class="scroll" role="region" aria-label="Denials" tabIndex={0}><table class="grid stacked" role="table">
          <thead role="rowgroup"><tr role="row">{["Tried", "On", "Denied by", "To allow"].map((title) => <th key={title} role="columnheader" scope="col">{title}</th>)}</tr></thead>
          <tbody role="rowgroup">
            {denials.map((denial, index) => (
              <tr key={index} role="row">
                <td role="cell" class="mono">{plain(String(denial["operation"]))}</td>
                <td role="cell" class="mono first">{plain(String(denial["path"]))}</td>
                <td role="cell" data-label="Denied by">{String(denial["layer"])}</td>
                <td role="cell" class="whole"><Allowed denial={denial} /></td>
              </tr>
            ))}
          </tbody>
        </table></div>
      )}
    </div>
  );
}
