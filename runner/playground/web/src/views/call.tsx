/** A tool: its arguments as a form and as raw JSON, and what became of the last call. */
import { Fragment, type JSX } from "preact";
import { effect, useComputed, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { boardTabs } from "../canvas/dashboard";
import { focusNeeded, Form, isStopped } from "../form/form";
import { readObject, toJson, type Json } from "../model/json";
import { recall, remember } from "../model/keep";
import { info } from "../model/info";
import { route, settle, to } from "../model/route";
import { questions } from "../model/questions";
import { runs, start } from "../model/runs";
import { blank } from "../model/schema";
import { here } from "../model/connections";
import { byName, tools, toolsLoading, toolsProblem, type Tool } from "../model/tools";
import { CopyButton } from "./copy";
import { Divider } from "./divider";
import { Folded } from "./folded";
import { plain } from "../model/plain";
import { focusQuestion } from "./asks";
import { RunView } from "./run";
import { SaveRequest } from "./save_request";
import { bringIntoSight } from "./sight";
import { Tabs } from "./tabs";
import { Badges } from "./tool_list";

export function CallView(): JSX.Element {
  const tool = byName.value.get(route.value.rest) ?? (route.value.rest === "" ? tools.value[0] : undefined);
  if (tool === undefined) {
    if (toolsProblem.value !== null) return <div class="empty"><h1>No tools to show</h1><p>{here.value.state.value === "down" ? "" : plain(toolsProblem.value)}</p></div>;
    if (toolsLoading.value) return <p class="empty" role="status">Loading the tools…</p>;
    return (
      <div class="empty">
        <h1>{route.value.rest === "" ? "No tools" : `There is no tool ${route.value.rest}`}</h1>
        <p>{route.value.rest === "" ? "This server offers none. It may have prompts or resources." : "The list on the left has those that there are. It may have been renamed."}</p>
      </div>
    );
  }
  return <Call key={`${here.value.name} ${tool.name}`} tool={tool} />;
}

/** The definition of a tool as its server lists it. */
function About({ tool }: { tool: Tool }): JSX.Element | null {
  const said: [string, unknown][] = [["Input schema", tool.inputSchema], ["Annotations", tool.annotations], ["Output schema", tool.outputSchema ?? {}], ["More", tool.more], ["_meta", tool.meta]];
  const shown = said.filter(([, value]) => Object.keys(value as object).length > 0);
  if (shown.length === 0) return null;
  return (
    <details class="small"><summary>Definition</summary>
      <dl class="facts">{shown.map(([title, value]) => <Fragment key={title}><dt>{title}</dt><dd><pre class="code" tabIndex={0}><Folded text={toJson(value, 2)} /></pre></dd></Fragment>)}</dl>
    </details>
  );
}

function Call({ tool }: { tool: Tool }): JSX.Element {
  const key = `draft ${here.value.name} ${info.value?.user ?? ""} ${tool.name}`;
  const linked = route.value.query.get("args");
  const text = useSignal(linked ?? recall(key) ?? toJson(blank(tool.inputSchema, tool.inputSchema) ?? {}, 2));
  const tab = useSignal(recall("arguments tab") ?? "form");
  const strict = useSignal(false);
  const last = runs.value.find((each) => each.value.tool === tool.name && (each.value.server ?? here.value.name) === here.value.name);
  // By then there is more of it to see.
  const ended = last?.value.status !== "running";
  const stopped = useSignal(0);
  const resets = useSignal(0);
  const begun = useSignal(0);
  const form = useRef<HTMLElement>(null);
  const outcome = useRef<HTMLDivElement>(null);
  // With the picture in which the fields are marked.
  useLayoutEffect(() => {
    if (stopped.value > 0) focusNeeded(form.current);
  }, [stopped.value]);
  // Below or beside a long form the result would come where nobody looks.
  useLayoutEffect(() => {
    if (begun.value > 0) bringIntoSight(outcome.current);
  }, [begun.value, ended]);
  const parsed = useComputed(() => readObject(text.value.trim() === "" ? "{}" : text.value));
  // With the picture, not after it: the next link may have been followed by then.
  useLayoutEffect(() => {
    if (linked === null) return;
    text.value = linked;
    // From here on the draft counts: a reload must not bring the link's arguments back.
    settle(to("call", tool.name));
  }, [linked]);
  // At once, not with the next frame: a reload may come before it.
  useEffect(() => effect(() => remember(key, text.value)), []);
  useEffect(() => effect(() => remember("arguments tab", tab.value)), []);
  const set = (value: Json): void => {
    text.value = toJson(value, 2);
  };
  const run = (): void => {
    // A second call would hide what the first one asks.
    if (last?.value.status === "running" && questions.value.length > 0) {
      focusQuestion();
      return;
    }
    strict.value = true;
    const { value } = parsed.value;
    // What is written as JSON is sent as it is: what a server says of it is something to try, too.
    if (value !== null && tab.value === "form" && isStopped(form.current, value, tool.inputSchema)) {
      stopped.value += 1;
      return;
    }
    begun.value += 1;
    if (value !== null) start(tool.name, value);
  };
  // With the first picture, not after it: who is quick has pressed by then.
  useLayoutEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
        event.preventDefault();
        // In an answer the keys send that.
        const asked = event.target instanceof Element ? event.target.closest<HTMLFormElement>(".question form") : null;
        if (asked === null) run();
        else asked.requestSubmit();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
  return (
    <div class="stack">
      <header class="stack">
        <div class="row"><h1 class="mono">{tool.name}</h1><Badges of={tool} /></div>
        <p class="soft about">{tool.description}</p>
        <About tool={tool} />
      </header>
      <div class="call">
        <section class="card arguments" aria-label="Arguments" ref={form}>
          <Tabs label="Arguments" chosen={tab.value} choose={(id) => { tab.value = id; }} tabs={[
            { id: "form", title: "Form", body: () => parsed.value.value === null
              ? <p class="problem">{`The JSON is invalid: ${parsed.value.problem ?? ""}. Correct it in the JSON tab.`}</p>
              : <Form key={resets.value} schema={tool.inputSchema} value={parsed.value.value} change={set} strict={strict.value} /> },
            { id: "json", title: "JSON", body: () => <Raw text={text.value} problem={parsed.value.problem} change={(next) => { text.value = next; }} /> },
          ]} />
          <div class="body row">
            <button class="button main" onClick={run} disabled={parsed.value.value === null}>Run <kbd>Ctrl ↵</kbd></button>
            <button class="button quiet" onClick={() => { text.value = toJson(blank(tool.inputSchema, tool.inputSchema) ?? {}, 2); strict.value = false; resets.value += 1; }}>Reset</button>
            <span class="grow" />
            <span class="row together">
              <SaveRequest kind="tool" target={tool.name} args={() => parsed.value.value} />
              <CopyButton name="Copy link" title="An address that fills this form in and runs nothing"
                text={() => `${location.origin}${location.pathname}${to("call", tool.name, { args: text.value })}`} />
            </span>
          </div>
        </section>
        <Divider />
        <div class="outcome" ref={outcome}>{last === undefined ? <Nothing /> : <RunView run={last} tool={tool} isOfOther={parsed.value.value !== null && toJson(last.value.args) !== toJson(parsed.value.value)} />}</div>
      </div>
    </div>
  );
}

/** Where no call of this tool is known: dashboards that were kept, or what to do. */
function Nothing(): JSX.Element {
  const chosen = useSignal("");
  const boards = boardTabs();
  if (boards.length > 0) return <section class="card" aria-label="Dashboards"><Tabs label="Dashboards" chosen={chosen.value} choose={(id) => { chosen.value = id; }} tabs={boards} /></section>;
  return (
    <div class="card empty">
      <p>Run the tool to see what it does.</p>
      <p class="small">Its result, files, timing and denials appear here.</p>
    </div>
  );
}

function Raw({ text, problem, change }: { text: string; problem: string | null; change: (text: string) => void }): JSX.Element {
  return (
    <div class="field">
      <label class="label" for="raw">Arguments as JSON</label>
      <textarea id="raw" class="input" rows={Math.min(24, Math.max(8, text.split("\n").length + 1))} spellcheck={false} value={text}
        aria-invalid={problem !== null} aria-describedby="raw-fault" onInput={(event) => change(event.currentTarget.value)} />
      {problem !== null && <span class="fault" id="raw-fault" role="alert">{problem}</span>}
    </div>
  );
}
