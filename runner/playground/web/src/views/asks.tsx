/** Questions of a server to the person at the page: elicitation, sampling, roots. Each kind is answered in a form of its own. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { focusNeeded, Form, isFaulty, isStopped } from "../form/form";
import type { Params } from "../model/connection";
import { drafted, forget } from "../model/drafts";
import { isObject, toJson, type Json } from "../model/json";
import { plain } from "../model/plain";
import { questions, type Question } from "../model/questions";
import { blank } from "../model/schema";
import { Folded } from "./folded";
import { bringIntoSight } from "./sight";
import { count, plural } from "../texts/numbers";

interface Asking {
  params: Params;
  /** The name of what is written and not sent yet: it outlives a look at another view. */
  draft: string;
  answer: (result: Params) => void;
}

const KINDS: Record<string, string> = { "sampling/createMessage": "A message of a model (sampling)", "roots/list": "Roots", "elicitation/create": "Input (elicitation)" };

/** All that wait, wherever in the page one is. */
export function Asks(): JSX.Element | null {
  if (questions.value.length === 0) return null;
  return (
    <section class="asks stack" aria-label="Questions">
      {questions.value.map((each) => <One key={each.id} question={each} />)}
    </section>
  );
}

/** Show the first question, and let the person answer it. */
export function focusQuestion(): void {
  const first = document.querySelector<HTMLElement>(".asks .question");
  bringIntoSight(first);
  first?.querySelector<HTMLElement>("textarea, input, select, button")?.focus();
}

function One({ question }: { question: Question }): JSX.Element {
  const card = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => bringIntoSight(card.current), []);
  return (
    <div class="question stack sought" ref={card} role="group" aria-label={`${question.connection.name} asks`}>
      <div class="row"><h2 class="grow"><span class="mono">{plain(question.connection.name)}</span> asks: {KINDS[question.method] ?? question.method}</h2>
        <span class="soft small">{plain(question.of)}</span></div>
      <Answering method={question.method} params={question.params} draft={question.id} answer={(result) => {
        forget(question.id);
        question.answer(result);
        // The focus goes away with the question.
        (document.querySelector<HTMLElement>("[data-run]") ?? document.getElementById("main"))?.focus({ preventScroll: true });
      }} />
      {question.method !== "elicitation/create" && <div><button class="button quiet" onClick={question.refuse}>Refuse</button></div>}
    </div>
  );
}

function Answering({ method, ...asking }: Asking & { method: string }): JSX.Element {
  if (method === "sampling/createMessage") return <Sampling {...asking} />;
  if (method === "roots/list") return <Roots {...asking} />;
  return typeof asking.params["url"] === "string" ? <Address {...asking} /> : <Input {...asking} />;
}

function Input({ params, draft, answer }: Asking): JSX.Element {
  const schema = isObject(params["requestedSchema"]) ? params["requestedSchema"] : {};
  const given = drafted<Json>(draft, "given", () => blank(schema, schema) ?? {});
  const form = useRef<HTMLFormElement>(null);
  const stopped = useSignal(0);
  // With the picture in which the fields are marked.
  useLayoutEffect(() => {
    if (stopped.value > 0) focusNeeded(form.current);
  }, [stopped.value]);
  const send = (event: Event): void => {
    event.preventDefault();
    if (isStopped(form.current, given.value, schema) || isFaulty(form.current)) stopped.value += 1;
    else answer({ action: "accept", content: given.value });
  };
  return (
    <form class="stack" aria-label="The tool asks" ref={form} noValidate onSubmit={send}>
      <p>{plain(String(params["message"] ?? "The server asks for input."))}</p>
      <Form schema={schema} value={given.value} strict={stopped.value > 0} change={(next) => { given.value = next; }} />
      <div class="row">
        <button class="button main">Answer</button>
        <button type="button" class="button" onClick={() => answer({ action: "decline" })}>Decline</button>
        <button type="button" class="button quiet" onClick={() => answer({ action: "cancel" })}>Cancel</button>
      </div>
    </form>
  );
}

/** An address is opened by the person, in a tab that knows nothing of this one. */
function Address({ params, answer }: Asking): JSX.Element {
  const url = String(params["url"]);
  const host = hostOf(url);
  return (
    <div class="stack">
      <p>{plain(String(params["message"] ?? ""))}</p>
      <p class="small">It wants you to open this address in your browser. Look at its host before you do.</p>
      <p class="mono">{plain(url)}</p>
      <div class="row">
        {host !== null && <a class="button main" href={url} target="_blank" rel="noopener noreferrer">{`Open ${plain(host)}`}</a>}
        <button type="button" class="button" onClick={() => answer({ action: "accept" })}>I have done that</button>
        <button type="button" class="button" onClick={() => answer({ action: "decline" })}>Decline</button>
        <button type="button" class="button quiet" onClick={() => answer({ action: "cancel" })}>Cancel</button>
      </div>
    </div>
  );
}

/** The host of an address that may be opened; null where it is malformed, or hides where it leads. */
function hostOf(url: string): string | null {
  try {
    const parts = new URL(url);
    return ["http:", "https:"].includes(parts.protocol) && parts.username === "" && parts.password === "" && parts.origin !== location.origin ? parts.host : null;
  } catch {
    return null;
  }
}

function Sampling({ params, draft, answer }: Asking): JSX.Element {
  const text = drafted(draft, "text", () => "");
  const model = drafted(draft, "model", () => "a person");
  const messages = Array.isArray(params["messages"]) ? params["messages"].filter(isObject) : [];
  const tools = Array.isArray(params["tools"]) ? params["tools"].length : 0;
  return (
    <form class="stack" aria-label={KINDS["sampling/createMessage"]} onSubmit={(event) => { event.preventDefault(); answer({ role: "assistant", content: { type: "text", text: text.value }, model: model.value, stopReason: "endTurn" }); }}>
      <p class="small">The server wants a model to answer this. Write what the model would say.</p>
      {typeof params["systemPrompt"] === "string" && <div><h3 class="part">System prompt</h3><p>{plain(params["systemPrompt"])}</p></div>}
      {messages.map((each, index) => <div key={index}><h3 class="part">{plain(String(each["role"]))}</h3><pre class="code" tabIndex={0}><Folded text={said(each["content"])} /></pre></div>)}
      <p class="small soft">{params["maxTokens"] !== undefined && `At most ${String(params["maxTokens"])} tokens. `}{tools > 0 && `${count(tools)} ${plural(tools, { one: "tool is", other: "tools are" })} offered to the model.`}</p>
      <label class="field"><span class="label">What the model says</span>
        <textarea class="input" rows={4} required value={text.value} onInput={(event) => { text.value = event.currentTarget.value; }} /></label>
      <label class="field"><span class="label">Model</span>
        <input class="input" value={model.value} onInput={(event) => { model.value = event.currentTarget.value; }} /></label>
      <details><summary class="small">The whole request</summary><pre class="code" tabIndex={0}><Folded text={toJson(params, 2)} /></pre></details>
      <div><button class="button main">Answer</button></div>
    </form>
  );
}

function said(content: Json | undefined): string {
  const blocks = Array.isArray(content) ? content : [content ?? null];
  return blocks.map((block) => (isObject(block) && block["type"] === "text" ? String(block["text"]) : toJson(block, 2).slice(0, 2000))).join("\n");
}

function Roots({ draft, answer }: Asking): JSX.Element {
  const text = drafted(draft, "text", () => "");
  return (
    <form class="stack" aria-label="Roots" onSubmit={(event) => { event.preventDefault(); answer({ roots: rootsOf(text.value) }); }}>
      <label class="field"><span class="hint">The server wants to know which folders it is about. One a line: an address such as file:///srv/work, then a name if you like.</span>
        <textarea class="input" rows={3} value={text.value} onInput={(event) => { text.value = event.currentTarget.value; }} /></label>
      <div><button class="button main">Answer</button></div>
    </form>
  );
}

export function rootsOf(text: string): Params[] {
  return text.split("\n").map((line) => line.trim()).filter((line) => line !== "").map((line) => {
    const [uri = "", ...name] = line.split(/\s+/);
    return { uri, ...(name.length > 0 ? { name: name.join(" ") } : {}) };
  });
}
