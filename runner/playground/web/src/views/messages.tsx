/** Every JSON-RPC message of this page: found, paired, changed and sent again. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { here } from "../model/connections";
import { isObject, toJson, type Json } from "../model/json";
import { brief, plain } from "../model/plain";
import { forgetMessages, forgotten, messages, partner, wireChanges, type Message } from "../model/wire";
import { duration, length, time } from "../texts/numbers";
import { readObject } from "./asks";
import { CopyButton } from "./copy";
import { Folded } from "./folded";
import { T } from "../texts/texts";

const PAGE = 200;
const MOST_CHARS = 100_000;

/** What is looked for outlives a look at another view. */
const asked = signal("");
const direction = signal("");
const kind = signal("");
const opened = signal<number | null>(null);
/** The message that is to have the focus once it is drawn. */
let jumped: number | null = null;
const composing = signal<{ text: string } | null>(null);

export function MessagesView(): JSX.Element {
  void wireChanges.value;
  const shown = useSignal(PAGE);
  const log = messages();
  const found = log.filter(fits);
  const from = Math.max(0, found.length - shown.value);
  return (
    <div class="stack">
      <header class="row"><h1 class="grow">{T.messages.title}</h1>
        <button class="button quiet" disabled={found.length === 0} onClick={toNewest}>{T.messages.newest}</button>
        <button class="button quiet" data-press="compose" onClick={() => { composing.value = { text: toJson({ jsonrpc: "2.0", id: 1, method: "ping", params: {} }, 2) }; }}>{T.messages.compose}</button>
        <button class="button quiet" disabled={log.length === 0} data-press="clear" onClick={forgetMessages}>{T.messages.clear}</button></header>
      <div class="row filters">
        <label class="grow"><span class="unseen">{T.messages.search}</span>
          <input id="search" class="input" type="search" placeholder={`${T.messages.search}   /`} value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; }} /></label>
        <Choice name={T.messages.direction} of={direction} options={[["sent", T.messages.sent], ["received", T.messages.received]]} />
        <Choice name={T.messages.kind} of={kind} options={Object.entries(T.messages.kinds)} />
      </div>
      {composing.value !== null && <Compose key={composing.value.text} {...composing.value} />}
      {forgotten.value > 0 && <p class="soft small">{T.messages.gone(forgotten.value)}</p>}
      {log.length === 0 && <div class="card empty"><p>{T.messages.none}</p></div>}
      {log.length > 0 && found.length === 0 && <p class="soft" role="status">{T.messages.nothing}</p>}
      {found.length > 0 && (
        <section class="card" aria-label={T.messages.title}>
          {from > 0 && <div class="body"><button class="button quiet" onClick={() => { shown.value += PAGE; }}>{T.messages.before(from)}</button></div>}
          <ol class="wire">{found.slice(from).map((each) => <Row key={each.n} message={each} />)}</ol>
        </section>
      )}
    </div>
  );
}

/** The newest messages alone, for the dock; it follows its end. */
export function MessageList(): JSX.Element {
  void wireChanges.value;
  const list = useRef<HTMLOListElement>(null);
  const newest = messages().slice(-PAGE);
  useLayoutEffect(() => { list.current?.parentElement?.scrollTo({ top: list.current.scrollHeight }); }, [newest.at(-1)?.n]);
  return <ol class="wire" ref={list}>{newest.map((each) => <Row key={each.n} message={each} />)}</ol>;
}

function fits(each: Message): boolean {
  if (direction.value !== "" && each.direction !== direction.value) return false;
  if (kind.value !== "" && each.kind !== kind.value) return false;
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return true;
  const text = `${each.method} ${each.kind} ${toJson(each.message)}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

/** The list is as long as the session was. */
function toNewest(): void {
  const row = document.querySelector<HTMLElement>(".wire > li:last-child > .wire-row");
  row?.focus();
  row?.scrollIntoView({ block: "nearest", behavior: "instant" });
}

/** Open a message, whatever is looked for: its row comes into sight and has the focus. */
function show(message: Message): void {
  if (!fits(message)) for (const each of [asked, direction, kind]) each.value = "";
  jumped = message.n;
  opened.value = message.n;
}

function Choice({ name, of, options }: { name: string; of: typeof kind; options: [string, string][] }): JSX.Element {
  return (
    <label class="row small"><span class="soft">{name}</span>
      <select class="input compact" value={of.value} onChange={(event) => { of.value = event.currentTarget.value; }}>
        <option value="">{T.common.all}</option>
        {options.map(([id, title]) => <option key={id} value={id}>{plain(title)}</option>)}
      </select></label>
  );
}

function Row({ message }: { message: Message }): JSX.Element {
  const open = opened.value === message.n;
  const row = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    if (!open || jumped !== message.n) return;
    jumped = null;
    row.current?.focus();
    row.current?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }, [open]);
  return (
    <li class={message.kind}>
      <button class="wire-row" ref={row} aria-expanded={open} onClick={() => { opened.value = open ? null : message.n; }}>
        <span class="number soft">{message.n}</span>
        <span class="time soft">{clock(message.at)}</span>
        <span aria-label={message.direction === "sent" ? T.messages.sent : T.messages.received}>{message.direction === "sent" ? "→" : "←"}</span>
        <span class="mono grow clip">{plain(message.method || T.messages.kinds[message.kind])}{named(message)}{message.kind === "result" || message.kind === "error" ? <span class="soft"> {T.messages.kinds[message.kind]}</span> : null}</span>
        <span class="number soft small">{message.took === null ? "" : duration(message.took)}</span>
        <span class="number soft small">{length(message.size)}</span>
      </button>
      {open && <Whole message={message} />}
    </li>
  );
}

/** What a request is for: the name of its tool or prompt, or the address of its resource. */
function named(message: Message): JSX.Element | null {
  const params = isObject(message.message) ? message.message["params"] : null;
  const name = isObject(params) ? (params["name"] ?? params["uri"]) : null;
  return typeof name === "string" ? <span class="soft"> {brief(name, 100)}</span> : null;
}

function Whole({ message }: { message: Message }): JSX.Element {
  const other = partner(message);
  const text = toJson(message.message, 2);
  return (
    <div class="body stack">
      <div class="text"><pre class="code" tabIndex={0}><Folded text={text.slice(0, MOST_CHARS)} />{text.length > MOST_CHARS ? `\n${T.messages.more(text.length - MOST_CHARS)}` : ""}</pre><CopyButton text={() => text} /></div>
      <div class="row">
        {other !== undefined && <button class="button" onClick={() => show(other)}>{message.kind === "request" ? T.messages.pair(other.n) : T.messages.question(other.n)}</button>}
        {message.direction === "sent" && (message.kind === "request" || message.kind === "notification") && (
          <button class="button" onClick={() => { composing.value = { text }; scrollTo({ top: 0 }); }}>{T.messages.replay}</button>
        )}
      </div>
    </div>
  );
}

/** A message as a person wrote it, and what came of it. */
function Compose({ text: first }: { text: string }): JSX.Element {
  const text = useSignal(first);
  const busy = useSignal(false);
  const answer = useSignal<Json | undefined>(undefined);
  const problem = useSignal<string | null>(null);
  const read = readObject(text.value);
  const send = async (): Promise<void> => {
    if (read.value === null) return;
    busy.value = true;
    problem.value = null;
    answer.value = undefined;
    try {
      answer.value = await here.value.raw(read.value);
    } catch (error) {
      problem.value = (error as Error).message;
    } finally {
      busy.value = false;
    }
  };
  return (
    <section class="card" aria-label={T.messages.compose}>
      <header><h2 class="grow">{T.messages.compose}</h2>
        <button class="button quiet" onClick={() => { composing.value = null; }}>{T.common.close}</button></header>
      <div class="body stack">
        <label class="field"><span class="hint">{T.messages.sends}</span>
          <textarea class="input wide" rows={Math.min(20, text.value.split("\n").length + 1)} spellcheck={false} value={text.value} aria-invalid={read.value === null} onInput={(event) => { text.value = event.currentTarget.value; }} /></label>
        {read.problem !== null && <span class="fault" role="alert">{read.problem}</span>}
        <div><button class="button main" disabled={read.value === null || busy.value} aria-busy={busy.value} onClick={() => void send()}>{T.messages.send}</button></div>
        {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
        {answer.value !== undefined && <div role="status" class="stack" ref={inSight}><h3 class="part">{T.messages.answer}</h3>{answer.value === null ? <p class="soft">{T.messages.noAnswer}</p> : <pre class="code" tabIndex={0}><Folded text={toJson(answer.value, 2).slice(0, MOST_CHARS)} /></pre>}</div>}
      </div>
    </section>
  );
}

/** What is answered comes below a long message, where nobody may look. */
function inSight(answer: HTMLElement | null): void {
  answer?.scrollIntoView({ block: "nearest", behavior: "instant" });
}

function clock(at: number): string {
  return `${time(at)}.${String(new Date(at).getMilliseconds()).padStart(3, "0")}`;
}
