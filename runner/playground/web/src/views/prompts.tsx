/** Prompts: filled in with what the server proposes, and shown as the messages that a model would get. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { isObject, readObject, toJson, type Json } from "../model/json";
import type { Params } from "../model/connection";
import { drafted } from "../model/drafts";
import { info } from "../model/info";
import { plain } from "../model/plain";
import { getPrompt, loadPrompts, prompts, promptsLoading, promptsProblem, type Prompt } from "../model/prompts";
import { here } from "../model/connections";
import { route, settle, to } from "../model/route";
import { Completed } from "./completed";
import { Content } from "./contents";
import { CopyButton } from "./copy";
import { Folded } from "./folded";
import { SaveRequest } from "./save_request";
import { bringIntoSight } from "./sight";

export function PromptsView(): JSX.Element {
  const asked = useSignal("");
  useEffect(() => {
    void loadPrompts();
  }, [here.value]);
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = prompts.value.filter((each) => words.every((word) => `${each.name} ${each.title} ${each.description}`.toLowerCase().includes(word)));
  const chosen = prompts.value.find((each) => each.name === route.value.rest);
  return (
    <div class="stack">
      <header class="row"><h1 class="grow">Prompts</h1><button class="button quiet" onClick={() => void loadPrompts()}>Reload</button></header>
      {promptsProblem.value !== null && <p class="problem" role="alert">{plain(promptsProblem.value)}</p>}
      {promptsLoading.value && prompts.value.length === 0 && <p class="soft" role="status">Loading…</p>}
      {!promptsLoading.value && prompts.value.length === 0 && promptsProblem.value === null && <div class="card empty"><p>This server offers no prompts.</p></div>}
      {prompts.value.length > 0 && (
        <div class="call">
          <section class="card" aria-label="Prompts">
            <div class="body stack">
              <input id="search" class="input" type="search" aria-label="Search prompts" placeholder={`Search prompts   /`} value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; }} />
              <ul class="tools">{found.map((each) => (
                <li key={each.name}><a href={to("prompts", each.name)} aria-current={each === chosen ? "page" : undefined}>
                  <span class="mono">{plain(each.name)}</span><span class="about">{plain(each.description)}</span></a></li>
              ))}</ul>
            </div>
          </section>
          {chosen === undefined ? <div class="card empty"><p>Choose a prompt to fill it in.</p></div> : <One key={`${here.value.name} ${chosen.name}`} prompt={chosen} />}
        </div>
      )}
    </div>
  );
}

function One({ prompt }: { prompt: Prompt }): JSX.Element {
  const linked = route.value.query.get("args");
  const given = drafted<Record<string, string>>(`prompt ${here.value.name} ${info.value?.user ?? ""} ${prompt.name}`, "given", () => ({}));
  const got = useSignal<Params | null>(null);
  const problem = useSignal<string | null>(null);
  const busy = useSignal(false);
  const card = useRef<HTMLElement>(null);
  useLayoutEffect(() => bringIntoSight(card.current), []);
  useLayoutEffect(() => {
    if (linked === null) return;
    given.value = Object.fromEntries(Object.entries(readObject(linked).value ?? {}).map(([key, each]) => [key, typeof each === "string" ? each : toJson(each)]));
    settle(to("prompts", prompt.name));
  }, [linked]);
  const get = async (event: Event): Promise<void> => {
    event.preventDefault();
    busy.value = true;
    problem.value = null;
    try {
      got.value = await getPrompt(prompt.name, given.value);
    } catch (error) {
      got.value = null;
      problem.value = (error as Error).message;
    } finally {
      busy.value = false;
    }
  };
  return (
    <section class="card sought" aria-label={prompt.name} ref={card}>
      <header><h2 class="mono grow">{plain(prompt.name)}</h2>
        <CopyButton name="Copy link" text={() => `${location.origin}${location.pathname}${to("prompts", prompt.name, { args: toJson(given.value) })}`} /></header>
      <div class="body stack">
        {prompt.description !== "" && <p class="soft">{plain(prompt.description)}</p>}
        <form class="stack" aria-label={`Arguments of ${prompt.name}`} onSubmit={(event) => void get(event)}>
          {prompt.arguments.length === 0 && <p class="soft">This prompt takes no arguments.</p>}
          {prompt.arguments.map((each) => (
            <Completed key={each.name} of={{ type: "ref/prompt", name: prompt.name }} name={each.name} label={each.title} required={each.required} hint={plain(each.description)}
              value={given.value[each.name] ?? ""} others={given.value} change={(value) => { given.value = { ...given.value, [each.name]: value }; }} />
          ))}
          <div class="row"><button class="button main" disabled={busy.value} aria-busy={busy.value}>Get the prompt</button>
            <SaveRequest kind="prompt" target={prompt.name} args={() => given.value} /></div>
        </form>
        {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
        {got.value === null ? (problem.value === null ? <p class="soft">Fill it in, and its messages come here.</p> : null) : <Got result={got.value} />}
      </div>
    </section>
  );
}

function Got({ result }: { result: Params }): JSX.Element {
  const messages = Array.isArray(result["messages"]) ? result["messages"].filter(isObject) : [];
  return (
    <section class="stack" aria-label="Messages" role="status">
      {typeof result["description"] === "string" && <p class="soft">{plain(result["description"])}</p>}
      {messages.map((each, index) => (
        <div key={index} class="stack"><h3 class="part">{plain(String(each["role"]))}</h3><Block block={each["content"]} /></div>
      ))}
    </section>
  );
}

/** One block of content, by its kind. */
export function Block({ block }: { block: Json | undefined }): JSX.Element {
  if (Array.isArray(block)) return <>{block.map((each, index) => <Block key={index} block={each} />)}</>;
  if (!isObject(block)) return <p class="soft">Nothing.</p>;
  if (block["type"] === "text") return <pre class="code" tabIndex={0}><Folded text={String(block["text"])} /></pre>;
  if (block["type"] === "resource" && isObject(block["resource"])) return <Content content={block["resource"]} />;
  if (typeof block["data"] === "string") return <Content content={{ blob: block["data"], mimeType: block["mimeType"] ?? "application/octet-stream", uri: `${String(block["type"])}` }} />;
  return <pre class="code" tabIndex={0}><Folded text={toJson(block, 2)} /></pre>;
}
