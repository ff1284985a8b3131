/** A chat with a model that calls the tools: for each turn what it read, what it called, and what it saw. */
import { Fragment, type JSX } from "preact";
import { signal, useSignal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Markdown } from "../canvas/markdown";
import { asking, asksFirst, busy, chatAsJson, chosenModel, draft, entries, forgetChat, goOn, mayBeAlways, model, models, MOST_TURNS, offered, paused, refused, say, sentWith, stop, system, temperature, used, without, type ChatCall, type Said, type Turn } from "../model/chat";
import { here } from "../model/connections";
import { info } from "../model/info";
import { toJson } from "../model/json";
import { plain } from "../model/plain";
import { to } from "../model/route";
import { runById } from "../model/runs";
import { byName, tools, toolsLoading } from "../model/tools";
import { duration } from "../texts/numbers";
import { T } from "../texts/texts";
import { Consent } from "./consent";
import { saveBlob } from "./download";
import { useEscapeToEnd } from "./escape";
import { Folded } from "./folded";
import { Question } from "./question";
import { Text } from "./result";
import { RunView } from "./run";
import { Badges } from "./tool_list";

/** The call whose result is shown as people see it; one at a time. */
const opened = signal<string | null>(null);

export function ChatView(): JSX.Element {
  const about = info.value?.chat;
  const isWide = useSignal(matchMedia("(min-width: 1181px)").matches);
  return (
    <div class="stack">
      <header class="row"><h1 class="grow">{T.chat.title}</h1>
        <button class="button quiet" data-press="chat-save" disabled={entries.value.length === 0} onClick={() => void saveBlob(new Blob([chatAsJson()], { type: "application/json" }), "chat.json")}>{T.chat.save}</button>
        <button class="button quiet" data-press="chat-new" disabled={entries.value.length === 0} onClick={() => { opened.value = null; forgetChat(); }}>{T.chat.fresh}</button></header>
      <p class="soft small">{T.chat.about(plain(about?.host ?? ""))}</p>
      <div class="chat">
        <div class="stack">
          <Conversation />
          <Compose />
        </div>
        <section class="card" aria-label={T.chat.settings}>
          <details open={isWide.value} onToggle={(event) => { isWide.value = event.currentTarget.open; }}>
            <summary><h2>{T.chat.settings}</h2></summary>
            <Choices />
          </details>
        </section>
      </div>
    </div>
  );
}

function Conversation(): JSX.Element {
  const end = useRef<HTMLLIElement>(null);
  const { length } = entries.value;
  // What was said last comes into sight; while an answer comes, whoever reads is left where they are.
  useLayoutEffect(() => {
    if (length > 0) end.current?.scrollIntoView({ block: "nearest" });
  }, [length]);
  if (length === 0) return <div class="card empty"><p>{T.chat.empty}</p><p class="small">{T.chat.emptyHint}</p></div>;
  return (
    <ol class="stack turns" aria-label={T.chat.conversation}>
      {entries.value.map((entry, index) => (
        <li key={entry.value.id} ref={index === length - 1 ? end : null}>
          {entry.value.kind === "said" ? <Words said={entry as Signal<Said>} /> : <TurnView turn={entry as Signal<Turn>} />}
        </li>
      ))}
    </ol>
  );
}

function Words({ said }: { said: Signal<Said> }): JSX.Element {
  return <article class="said" aria-label={T.chat.you}><h2 class="part">{T.chat.you}</h2><p class="whole-text">{plain(said.value.text)}</p></article>;
}

function TurnView({ turn }: { turn: Signal<Turn> }): JSX.Element {
  const { value } = turn;
  const last = entries.value.at(-1) === turn;
  return (
    <article class="card" aria-label={T.chat.model}>
      <header>
        <h2 class="mono">{plain(value.model)}</h2>
        {value.state !== "done" && <span class={`badge ${value.state}`}>{T.chat.states[value.state]}</span>}
        <span class="grow" />
        <Counted turn={value} />
      </header>
      <div class="body stack">
        <Sent turn={turn} />
        {value.thinking !== "" && <details class="small"><summary>{T.chat.thinking}</summary><p class="soft whole-text">{plain(value.thinking)}</p></details>}
        {value.text !== "" && <Markdown text={value.text} />}
        {value.state === "running" && value.text === "" && <p class="soft">{T.chat.running}</p>}
        {value.calls.length > 0
          ? <ul class="stack calls-made" aria-label={T.chat.calls}>{value.calls.map((call) => <CallMade key={call.id} call={call} />)}</ul>
          : value.calling.map((name, index) => <p key={index} class="mono soft">{plain(name)}…</p>)}
        {T.chat.stops[value.stop] !== undefined && <p class="notice">{T.chat.stops[value.stop]}</p>}
        {value.state === "cancelled" && <p class="notice">{T.chat.cancelled}</p>}
        {value.state === "failed" && <div class="problem" role="alert"><p><strong>{plain(value.problem ?? "")}</strong></p><p>{T.chat.failed}</p></div>}
        {last && !busy.value && (value.state === "failed" || value.state === "cancelled") && <div><button class="button" onClick={() => void goOn()}>{T.chat.again}</button></div>}
      </div>
    </article>
  );
}

function Counted({ turn }: { turn: Turn }): JSX.Element {
  const { usage, took } = turn;
  const said = usage === null ? "" : T.chat.counted(usage.input, usage.cached, usage.output);
  return <span class="soft small counted">{[said || (turn.state === "done" ? T.chat.notCounted : ""), took === null ? "" : duration(took)].filter((each) => each !== "").join(" · ")}</span>;
}

/** What the model was given, written only when somebody looks. */
function Sent({ turn }: { turn: Signal<Turn> }): JSX.Element {
  const open = useSignal(false);
  const whole = open.value ? sentWith(turn) : null;
  const { value } = turn;
  const count = useRef(-1);
  if (count.current < 0) count.current = (sentWith(turn)["messages"] as unknown[]).length;
  return (
    <details class="small" onToggle={(event) => { open.value = event.currentTarget.open; }}>
      <summary class="soft">{T.chat.sent(count.current, value.offered.length)}, {T.chat.estimate(Math.ceil(value.chars / 4))}</summary>
      {whole !== null && (
        <div class="stack">
          <p class="soft">{T.chat.sentAs}</p>
          {Object.keys(value.names).length > 0 && <><h3 class="part">{T.chat.renamed}</h3><dl class="facts mono">{Object.entries(value.names).map(([ours, theirs]) => <Fragment key={ours}><dt>{plain(ours)}</dt><dd>{plain(theirs)}</dd></Fragment>)}</dl></>}
          <Text text={toJson(whole, 2)} />
        </div>
      )}
    </details>
  );
}

function CallMade({ call }: { call: ChatCall }): JSX.Element {
  const run = call.run === null ? undefined : runById(call.run);
  const asked = asking.value !== null && asking.value.call.id === call.id && call.state === "asked" ? asking.value : null;
  const isOpen = opened.value !== null && opened.value === call.run;
  const badge = { refused: "cancelled", asked: "running", waits: "" }[call.state as string] ?? call.state;
  return (
    <li class="stack call-made">
      <div class="row">
        <b class="mono">{plain(call.tool)}</b>
        <span class={`badge ${badge}`}>{T.chat.states[call.state]}</span>
        {run !== undefined && run.value.took !== null && <span class="soft small">{duration(run.value.took)}</span>}
        <span class="grow" />
        {run !== undefined && <a class="button quiet" href={to("history", run.value.id)} aria-label={`${T.chat.history}: ${plain(call.tool)}`}>{T.chat.history}</a>}
      </div>
      {asked === null && <details class="small" open={call.text.length < 200}><summary>{T.chat.arguments}</summary><pre class="code" tabIndex={0}><Folded text={call.args === null ? call.text : toJson(call.args, 2)} /></pre></details>}
      {asked !== null && <Allow />}
      {run !== undefined && run.value.question !== null && <Question run={run} />}
      {call.saw !== null && (
        <div class={isOpen ? "pair" : "stack"}>
          <div class="stack">
            <h3 class="part head">{T.chat.saw} <span class="unpart">{T.chat.estimate(Math.ceil(call.saw.length / 4))}{call.images.length > 0 ? ` ${T.chat.pictures(call.images.length)}` : ""}</span></h3>
            <Text text={call.saw} />
          </div>
          {run !== undefined && (
            <div class="stack">
              <div class="row"><h3 class="part">{T.chat.seen}</h3><button class="button quiet" aria-expanded={isOpen} aria-label={`${isOpen ? T.chat.hide : T.chat.show}: ${plain(call.tool)}`} onClick={() => { opened.value = isOpen ? null : call.run; }}>{isOpen ? T.chat.hide : T.chat.show}</button></div>
              {isOpen && <RunView run={run} tool={byName.value.get(call.tool)} />}
            </div>
          )}
        </div>
      )}
    </li>
  );
}

/** Whether a call is made is a person's to say, with its arguments before their eyes. */
function Allow(): JSX.Element | null {
  const always = useSignal(false);
  const asked = asking.value;
  if (asked === null) return null;
  const { tool, call, decide } = asked;
  const why = tool.annotations["readOnlyHint"] === true || tool.annotations["destructiveHint"] === false ? T.chat.wanted : tool.annotations["destructiveHint"] === true ? T.chat.destroys : T.chat.mayDestroy;
  return (
    <Consent yes={T.chat.yes} no={T.chat.no} decide={(yes) => decide(yes, always.value)}>
      <p><strong>{T.chat.asks(plain(tool.name))}</strong></p>
      <p>{why}</p>
      <pre class="code" tabIndex={0}><Folded text={toJson(call.args, 2)} /></pre>
      {mayBeAlways(tool) && <label class="row small"><input type="checkbox" checked={always.value} onChange={(event) => { always.value = event.currentTarget.checked; }} />{T.chat.always(plain(tool.name))}</label>}
    </Consent>
  );
}

function Compose(): JSX.Element {
  const field = useRef<HTMLTextAreaElement>(null);
  const send = (): void => void say(draft.value);
  useEscapeToEnd(() => {
    if (!busy.value) return false;
    stop();
    return true;
  });
  useLayoutEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
        event.preventDefault();
        send();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
  useEffect(() => field.current?.focus(), []);
  const state = asking.value !== null ? T.chat.waiting : busy.value ? T.chat.running : isDone() ? T.chat.ready : "";
  return (
    <form class="card compose" onSubmit={(event) => { event.preventDefault(); send(); }}>
      <div class="body stack">
        {paused.value && <div class="notice row"><span class="grow">{T.chat.bound(MOST_TURNS)}</span><button type="button" class="button" onClick={() => void goOn()}>{T.chat.goOn}</button></div>}
        {refused.value !== null && <p class="problem" role="alert">{refused.value}</p>}
        <label class="field"><span class="unseen">{T.chat.message}</span>
          <textarea ref={field} class="input words" rows={2} placeholder={T.chat.message} value={draft.value} onInput={(event) => { draft.value = event.currentTarget.value; }} /></label>
        <div class="row">
          {busy.value
            ? <button type="button" class="button danger" onClick={stop}>{T.chat.stop}</button>
            : <button class="button main" disabled={draft.value.trim() === ""}>{T.chat.send} <kbd>Ctrl ↵</kbd></button>}
          <span class="soft small" role="status">{state}{busy.value ? ` · ${T.chat.left(used.value, MOST_TURNS)}` : ""}</span>
        </div>
      </div>
    </form>
  );
}

/** Whether the model has said all that it wants. */
function isDone(): boolean {
  const last = entries.value.at(-1)?.value;
  return !paused.value && last !== undefined && last.kind === "turn" && last.state === "done";
}

function Choices(): JSX.Element {
  const instructions = here.value.about.value?.instructions ?? "";
  const set = (names: Iterable<string>): void => { without.value = new Set(names); };
  return (
    <div class="body stack">
      <label class="field"><span class="label">{T.chat.which}</span>
        <select class="input" value={chosenModel.value} onChange={(event) => { model.value = event.currentTarget.value; }}>{models.value.map((each) => <option key={each} value={each}>{plain(each)}</option>)}</select></label>
      <label class="field"><span class="label">{T.chat.system}</span>
        <textarea class="input words" rows={4} value={system.value} onInput={(event) => { system.value = event.currentTarget.value; }} /><span class="hint">{T.chat.systemHint}</span></label>
      {instructions !== "" && system.value !== instructions && <div><button class="button quiet" onClick={() => { system.value = instructions; }}>{T.chat.instructions}</button></div>}
      <label class="field"><span class="label">{T.chat.temperature}</span>
        <input class="input" inputMode="decimal" value={temperature.value} onInput={(event) => { temperature.value = event.currentTarget.value; }} /><span class="hint">{T.chat.temperatureHint}</span></label>
      <label class="row"><input type="checkbox" checked={asksFirst.value} onChange={(event) => { asksFirst.value = event.currentTarget.checked; }} />{T.chat.askFirst}</label>
      <fieldset class="field"><legend>{T.chat.tools(offered.value.length, tools.value.length)}</legend>
        {tools.value.length === 0 ? <p class="soft">{toolsLoading.value ? T.call.loading : T.chat.noTools}</p> : (
          <>
            <div class="row"><button type="button" class="button quiet" onClick={() => set([])}>{T.chat.all}</button><button type="button" class="button quiet" onClick={() => set(tools.value.map((tool) => tool.name))}>{T.chat.none}</button></div>
            <ul class="offered">{tools.value.map((tool) => (
              <li key={tool.name}><label class="row small"><input type="checkbox" checked={!without.value.has(tool.name)} onChange={(event) => {
                const next = new Set(without.value);
                if (event.currentTarget.checked) next.delete(tool.name);
                else next.add(tool.name);
                set(next);
              }} /><span class="mono">{plain(tool.name)}</span> <Badges of={tool} /></label></li>
            ))}</ul>
          </>
        )}
      </fieldset>
    </div>
  );
}
