/** Every JSON-RPC message of this page: found, paired, changed and sent again. */
import type { JSX } from "preact";
import { signal, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { here } from "../model/connections";
import { isObject, readObject, toJson, type Json } from "../model/json";
import { brief, plain } from "../model/plain";
import { forgetMessages, forgotten, messages, partner, wireChanges, type Message } from "../model/wire";
import { count, duration, length, plural, time } from "../texts/numbers";
import { CopyButton } from "./copy";
import { Folded } from "./folded";
import { inSight } from "./sight";

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
      <header class="row"><h1 class="grow">Messages</h1>
        <button class="button quiet" disabled={found.length === 0} onClick={toNewest}>To the newest</button>
        <button class="button quiet" onClick={() => { composing.value = { text: toJson({ jsonrpc: "2.0", id: 1, method: "ping", params: {} }, 2) }; }}>Send a message</button>
        <button class="button quiet" disabled={log.length === 0} onClick={forgetMessages}>Clear</button></header>
      <div class="row filters">
        <label class="grow"><span class="unseen">Search in messages</span>
          <input id="search" class="input" type="search" placeholder={`Search in messages   /`} value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; }} /></label>
        <Choice name="Direction" of={direction} options={["sent", "received"]} />
        <Choice name="Kind" of={kind} options={["request", "notification", "result", "error"]} />
      </div>
      {composing.value !== null && <Compose key={composing.value.text} {...composing.value} />}
      {forgotten.value > 0 && <p class="soft small">{`${count(forgotten.value)} older ${plural(forgotten.value, { one: "message is", other: "messages are" })} no longer here.`}</p>}
      {log.length === 0 && <div class="card empty"><p>No messages yet. Every JSON-RPC message of this page is listed here.</p></div>}
      {log.length > 0 && found.length === 0 && <p class="soft" role="status">No matching messages</p>}
      {found.length > 0 && (
        <section class="card" aria-label="Messages">
          {from > 0 && <div class="body"><button class="button quiet" onClick={() => { shown.value += PAGE; }}>{`${count(from)} before these`}</button></div>}
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
  inSight(row);
}

/** Open a message, whatever is looked for: its row comes into sight and has the focus. */
function show(message: Message): void {
  if (!fits(message)) for (const each of [asked, direction, kind]) each.value = "";
  jumped = message.n;
  opened.value = message.n;
}

function Choice({ name, of, options }: { name: string; of: typeof kind; options: string[] }): JSX.Element {
  return (
    <label class="row small"><span class="soft">{name}</span>
      <select class="input compact" value={of.value} onChange={(event) => { of.value = event.currentTarget.value; }}>
        <option value="">All</option>
        {options.map((each) => <option key={each}>{each}</option>)}
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
    inSight(row.current);
  }, [open]);
  return (
    <li class={message.kind}>
      <button class="wire-row" ref={row} aria-expanded={open} onClick={() => { opened.value = open ? null : message.n; }}>
        <span class="number soft">{message.n}</span>
        <span class="time soft">{clock(message.at)}</span>
        <span aria-label={message.direction === "sent" ? "Sent" : "Received"}>{message.direction === "sent" ? "→" : "←"}</span>
        <span class="mono grow clip">{plain(message.method || message.kind)}{named(message)}{message.kind === "result" || message.kind === "error" ? <span class="soft"> {message.kind}</span> : null}</span>
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
      <div class="text"><pre class="code" tabIndex={0}><Folded text={text.slice(0, MOST_CHARS)} />{text.length > MOST_CHARS ? `\n${`… ${count(text.length - MOST_CHARS)} more`}` : ""}</pre><CopyButton text={() => text} /></div>
      <div class="row">
        {other !== undefined && <button class="button" onClick={() => show(other)}>{message.kind === "request" ? `Its answer (${other.n})` : `Its request (${other.n})`}</button>}
        {message.direction === "sent" && (message.kind === "request" || message.kind === "notification") && (
          <button class="button" onClick={() => { composing.value = { text }; scrollTo({ top: 0 }); }}>Change and send again</button>
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
    <section class="card" aria-label="Send a message">
      <header><h2 class="grow">Send a message</h2>
        <button class="button quiet" onClick={() => { composing.value = null; }}>Close</button></header>
      <div class="body stack">
        <label class="field"><span class="hint">It is sent as it stands; only the id of a request is made new.</span>
          <textarea class="input wide" rows={Math.min(20, text.value.split("\n").length + 1)} spellcheck={false} value={text.value} aria-invalid={read.value === null} onInput={(event) => { text.value = event.currentTarget.value; }} /></label>
        {read.problem !== null && <span class="fault" role="alert">{read.problem}</span>}
        <div><button class="button main" disabled={read.value === null || busy.value} aria-busy={busy.value} onClick={() => void send()}>Send</button></div>
        {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
        {answer.value !== undefined && <div role="status" class="stack" ref={inSight}><h3 class="part">Answer</h3>{answer.value === null ? <p class="soft">The server took it, and answered nothing.</p> : <pre class="code" tabIndex={0}><Folded text={toJson(answer.value, 2).slice(0, MOST_CHARS)} /></pre>}</div>}
      </div>
    </section>
  );
}

function clock(at: number): string {
  return `${time(at)}.${String(new Date(at).getMilliseconds()).padStart(3, "0")}`;
}
