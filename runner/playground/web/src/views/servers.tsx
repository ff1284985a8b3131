/** The servers that this page speaks to, how each is, and the way to more of them. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { again, beside, besideProblem, connect, connections, disconnect, here, loadBeside, look, mayConnect, ownProblems, type Wanted } from "../model/connections";
import type { Connection } from "../model/connection";
import { info } from "../model/info";
import { isObject, toJson } from "../model/json";
import { plain } from "../model/plain";
import { readObject } from "./asks";
import { Folded } from "./folded";
import { T } from "../texts/texts";

export function ServersView(): JSX.Element {
  useEffect(() => {
    void loadBeside();
  }, []);
  return (
    <div class="stack">
      <header class="row"><h1 class="grow">{T.servers.title}</h1></header>
      <p class="soft">{T.servers.about}</p>
      {besideProblem.value !== null && <p class="problem" role="alert">{plain(besideProblem.value)}</p>}
      <ul class="stack servers">{connections.value.map((each) => <li key={each.id}><Server connection={each} /></li>)}</ul>
      {mayConnect.value.length === 0 ? <p class="card empty">{T.servers.none}</p> : <Add />}
    </div>
  );
}

function Server({ connection }: { connection: Connection }): JSX.Element {
  const told = beside.value.find((each) => each.id === connection.id);
  // Of a server behind the proxy what the proxy was told: what this page speaks with the proxy is another matter.
  const met = connection.isOwn ? connection.about.value : told?.said;
  const problem = useSignal<string | null>(null);
  const busy = useSignal(false);
  const state = told !== undefined && told.state !== "up" ? told.state : connection.state.value;
  const why = told !== undefined && told.why !== "" ? told.why : connection.why.value;
  const act = async (what: Promise<unknown>): Promise<void> => {
    busy.value = true;
    problem.value = await what.then(() => null, (error: Error) => error.message);
    busy.value = false;
  };
  const looked = connection === here.value;
  return (
    <section class={`card ${looked ? "looked" : ""}`} aria-label={connection.name}>
      <header>
        <h2 class="mono">{plain(connection.name)}</h2>
        <span class={`badge ${state}`} role="status">{T.servers.states[state]}</span>
        {connection.isOwn && <span class="soft small">{T.servers.own}</span>}
        <span class="grow" />
        {looked ? <span class="soft small">{T.servers.looking}</span> : <button class="button" onClick={() => look(connection.id)}>{T.servers.look}</button>}
        {told !== undefined && <button class="button" disabled={busy.value} onClick={() => void act(again(connection.id).then(() => connection.meet()))}>{T.servers.again}</button>}
        {told === undefined && state === "down" && <button class="button" disabled={busy.value} onClick={() => void act(connection.meet())}>{T.servers.again}</button>}
        {told !== undefined && <button class="button quiet" disabled={busy.value} onClick={() => void act(disconnect(connection.id))}>{T.servers.close}</button>}
      </header>
      <div class="body stack">
        {state === "down" && why !== "" && <p class="problem" role="alert">{plain(why)}</p>}
        {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
        {told !== undefined && <p class="mono small">{plain(told.target)}</p>}
        <p class="soft small">{[met?.version && T.servers.version(plain(met.version)), met?.protocol && `MCP ${plain(met.protocol)}`, told?.tier && T.servers.tier(told.tier)].filter(Boolean).join(", ")}</p>
        {told?.said != null && <details><summary class="small">{T.session.theirs}</summary><pre class="code" tabIndex={0}><Folded text={toJson(told.said.capabilities, 2)} /></pre></details>}
        {connection.isOwn && (info.value?.servers.length ?? 0) > 0 && <Behind />}
      </div>
    </section>
  );
}

/** The servers behind a proxy, and which of them are dead. */
export function Behind(): JSX.Element {
  return (
    <section class="stack" aria-label={T.servers.behind}>
      <h3 class="part">{T.servers.behind}</h3>
      <ul class="stack">{(info.value?.servers ?? []).map((name) => {
        const why = ownProblems.value[name] ?? "";
        return <li key={name} class="stack"><span class="row"><span class="mono">{plain(name)}</span><span class={`badge ${why === "" ? "up" : "down"}`}>{T.servers.states[why === "" ? "up" : "down"]}</span></span>{why !== "" && <p class="problem">{plain(why)}</p>}</li>;
      })}</ul>
    </section>
  );
}

function Add(): JSX.Element {
  const commands = mayConnect.value.includes("command");
  const addresses = mayConnect.value.some((each) => each !== "command");
  const name = useSignal("");
  const how = useSignal(addresses ? "url" : "command");
  const url = useSignal("");
  const headers = useSignal("");
  const command = useSignal("");
  const env = useSignal("");
  const pasted = useSignal("");
  const problem = useSignal<string | null>(null);
  const busy = useSignal(false);
  const add = async (wanted: Wanted[]): Promise<boolean> => {
    busy.value = true;
    problem.value = null;
    try {
      for (const each of wanted) look(await connect(each));
      return true;
    } catch (error) {
      problem.value = (error as Error).message;
      return false;
    } finally {
      busy.value = false;
    }
  };
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    const wanted: Wanted = how.value === "url" ? { name: name.value, url: url.value.trim(), headers: lines(headers.value, ":") } : { name: name.value, command: words(command.value), env: lines(env.value, "=") };
    if (await add([wanted])) name.value = url.value = headers.value = command.value = env.value = "";
  };
  return (
    <section class="card" aria-label={T.servers.add}>
      <header><h2>{T.servers.add}</h2></header>
      <form class="body stack" onSubmit={(event) => void send(event)}>
        <label class="field"><span class="label">{T.servers.name}</span><input class="input" data-press="connect" required maxLength={64} value={name.value} onInput={(event) => { name.value = event.currentTarget.value; }} /></label>
        {commands && addresses && (
          <fieldset class="field"><legend>{T.servers.how}</legend><div class="row">
            {[["url", T.servers.address], ["command", T.servers.command]].map(([id = "", title]) => <label key={id} class="row small"><input type="radio" name="how" checked={how.value === id} onChange={() => { how.value = id; }} />{title}</label>)}
          </div></fieldset>
        )}
        {how.value === "url" ? (
          <>
            <label class="field"><span class="label">{T.servers.address}</span><input class="input mono" type="url" required placeholder="https://host.example/mcp" value={url.value} onInput={(event) => { url.value = event.currentTarget.value; }} /></label>
            <label class="field"><span class="label">{T.servers.headers}</span><textarea class="input" rows={2} spellcheck={false} autocomplete="off" value={headers.value} onInput={(event) => { headers.value = event.currentTarget.value; }} /><span class="hint">{T.servers.headersHint}</span></label>
          </>
        ) : (
          <>
            <label class="field"><span class="label">{T.servers.command}</span><input class="input mono" required placeholder="my-mcp-server --verbose" value={command.value} onInput={(event) => { command.value = event.currentTarget.value; }} /><span class="hint">{T.servers.commandHint}</span></label>
            <label class="field"><span class="label">{T.servers.env}</span><textarea class="input" rows={2} spellcheck={false} autocomplete="off" value={env.value} onInput={(event) => { env.value = event.currentTarget.value; }} /></label>
          </>
        )}
        {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
        <div><button class="button main" disabled={busy.value} aria-busy={busy.value}>{busy.value ? T.page.connecting : T.servers.connect}</button></div>
        <details><summary class="small">{T.servers.paste}</summary>
          <div class="stack">
            <textarea class="input" rows={6} spellcheck={false} aria-label={T.servers.paste} value={pasted.value} onInput={(event) => { pasted.value = event.currentTarget.value; }} />
            <div><button type="button" class="button" disabled={busy.value} onClick={() => {
              const read = fromFile(pasted.value);
              if (typeof read === "string") problem.value = read;
              else void add(read).then((done) => { if (done) pasted.value = ""; });
            }}>{T.servers.take}</button></div>
          </div></details>
      </form>
    </section>
  );
}

/** The servers of an `mcp.json`, or what is wrong with it. */
function fromFile(text: string): Wanted[] | string {
  const read = readObject(text);
  if (read.value === null) return read.problem;
  const table = [read.value["mcpServers"], read.value["servers"], read.value].find(isObject) ?? {};
  return Object.entries(table).filter(([, each]) => isObject(each)).map(([name, each]): Wanted => {
    const said = isObject(each) ? each : {};
    const strings = (value: unknown): Record<string, string> => (isObject(value) ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, String(one)])) : {});
    if (typeof said["url"] === "string") return { name, url: said["url"], headers: strings(said["headers"]) };
    return { name, command: [String(said["command"] ?? ""), ...(Array.isArray(said["args"]) ? said["args"].map(String) : [])], env: strings(said["env"]) };
  });
}

function lines(text: string, mark: string): Record<string, string> {
  return Object.fromEntries(text.split("\n").filter((line) => line.includes(mark)).map((line) => {
    const at = line.indexOf(mark);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

/** Words as a shell divides them, without anything else that a shell does. */
export function words(text: string): string[] {
  return [...text.matchAll(/(?:"((?:\\.|[^"\\])*)"|'([^']*)'|((?:\\.|[^\s"'\\])+))+/g)].map(([whole]) =>
    whole.replaceAll(/"((?:\\.|[^"\\])*)"|'([^']*)'|\\(.)/g, (_all, double?: string, single?: string, one?: string) => double?.replaceAll(/\\(["\\$`])/g, "$1") ?? single ?? one ?? ""));
}
