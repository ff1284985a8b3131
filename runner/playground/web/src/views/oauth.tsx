/** An OAuth login made by hand: each step, what it asked and what was answered. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { able, aim, authorisation, awaitAnswer, busy, done, handOver, learn, learnt, make, makeAll, STEPS, type Exchange, type Step } from "../model/oauth";
import { beside, connect, look, mayConnect } from "../model/connections";
import { isObject, parseJson, toJson } from "../model/json";
import { plain } from "../model/plain";
import { go, route } from "../model/route";
import { duration } from "../texts/numbers";
import { Folded } from "./folded";
import { T } from "../texts/texts";

export function OAuthView(): JSX.Element {
  useEffect(awaitAnswer, []);
  const begun = route.value.query.get("server");
  useEffect(() => {
    if (begun !== null && learnt.value.server === "") aim(begun);
  }, [begun]);
  if (mayConnect.value.length === 0) return <div class="stack"><h1>{T.oauth.title}</h1><p class="card empty">{T.oauth.none}</p></div>;
  return (
    <div class="stack">
      <h1>{T.oauth.title}</h1>
      <p class="soft">{T.oauth.about} {T.oauth.secrets}</p>
      <form class="row low" onSubmit={(event) => { event.preventDefault(); void makeAll(); }}>
        <label class="field grow"><span class="label">{T.oauth.server}</span><input class="input mono" type="url" required value={learnt.value.server} onInput={(event) => aim(event.currentTarget.value.trim())} list="known-servers" /></label>
        <datalist id="known-servers">{beside.value.filter((each) => each.kind === "address").map((each) => <option key={each.id} value={each.target} />)}</datalist>
        <button class="button main" disabled={busy.value !== null}>{T.oauth.all}</button>
      </form>
      <ol class="stack">{STEPS.map((step) => <li key={step}><One step={step} /></li>)}</ol>
    </div>
  );
}

function One({ step }: { step: Step }): JSX.Element {
  const result = done.value[step];
  const ready = able.value[step];
  const state = result === undefined ? "new" : result.problem === null ? "done" : "failed";
  return (
    <section class="card" aria-label={T.oauth.steps[step]}>
      <header><h2 class="grow">{T.oauth.steps[step]}</h2>
        {state !== "new" && <span class={`badge ${state}`} role="status">{T.oauth.states[state]}</span>}
        {step === "authorise" ? <Authorise ready={ready} /> : <button class="button" disabled={!ready || busy.value !== null} aria-busy={busy.value === step} onClick={() => void make(step)}>{result === undefined ? T.oauth.run : T.oauth.again}</button>}</header>
      <div class="body stack">
        {!ready && result === undefined && <p class="soft small">{step === "challenge" ? T.oauth.address : T.oauth.waits}</p>}
        <Editable step={step} />
        {result?.problem != null && <p class="problem" role="alert">{plain(result.problem)}</p>}
        {result?.exchanges.map((each, index) => <Shown key={index} exchange={each} />)}
        {step === "authorise" && learnt.value.state !== "" && <p class="notice" role="status">{T.oauth.waiting}</p>}
        {step === "call" && result?.problem === null && <Connect />}
      </div>
    </section>
  );
}

/** What a person may say in place of what was learnt. */
function Editable({ step }: { step: Step }): JSX.Element | null {
  const { clientId, clientSecret, scope } = learnt.value;
  if (step === "register") {
    return (
      <div class="row">
        <label class="field grow"><span class="label">{T.oauth.clientId}</span><input class="input mono" value={clientId} autocomplete="off" onInput={(event) => learn({ clientId: event.currentTarget.value })} /></label>
        <label class="field grow"><span class="label">{T.oauth.clientSecret}</span><input class="input mono" type="password" value={clientSecret} autocomplete="off" onInput={(event) => learn({ clientSecret: event.currentTarget.value })} /></label>
      </div>
    );
  }
  return step === "authorise" ? <label class="field"><span class="label">{T.oauth.scope}</span><input class="input mono" value={scope} onInput={(event) => learn({ scope: event.currentTarget.value })} /></label> : null;
}

function Authorise({ ready }: { ready: boolean }): JSX.Element {
  const problem = useSignal<string | null>(null);
  const begin = async (): Promise<void> => {
    try {
      const address = await authorisation();
      // The other site gets no handle of this page: its answer comes by way of this server.
      open(address, "_blank", "noopener,noreferrer");
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  return <>{problem.value !== null && <span class="problem" role="alert">{plain(problem.value)}</span>}<button class="button" disabled={!ready} onClick={() => void begin()}>{T.oauth.open}</button></>;
}

function Connect(): JSX.Element {
  const problem = useSignal<string | null>(null);
  const begin = async (): Promise<void> => {
    try {
      const host = new URL(learnt.value.server).host;
      const taken = new Set(beside.value.map((each) => each.name));
      let name = host;
      for (let count = 2; taken.has(name); count += 1) name = `${host} (${count})`;
      look(await connect({ name, url: learnt.value.server, headers: { Authorization: `Bearer ${learnt.value.token}` } }));
      go("call");
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  return <div class="stack">{problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}<div><button class="button main" onClick={() => void begin()}>{T.oauth.connect}</button></div></div>;
}

function Shown({ exchange }: { exchange: Exchange }): JSX.Element {
  const { method, url, headers, body, status, answered, text, took } = exchange;
  return (
    <details>
      <summary><span class="mono">{method} {plain(url.length > 120 ? `${url.slice(0, 120)}…` : url)}</span> {status !== null && <b>{status}</b>} <span class="soft small">{took > 0 ? duration(took) : ""}</span></summary>
      <div class="stack">
        <h3 class="part">{T.oauth.asked}</h3>
        <pre class="code" tabIndex={0}><Folded text={[`${method} ${url}`, ...Object.entries(headers).map(([key, value]) => `${key}: ${value}`), ...(body === null ? [] : ["", pretty(body)])].join("\n")} /></pre>
        <h3 class="part">{T.oauth.answered}</h3>
        <pre class="code" tabIndex={0}><Folded text={[...(status === null ? [] : [`HTTP ${status}`]), ...Object.entries(answered).map(([key, value]) => `${key}: ${value}`), "", pretty(text)].join("\n").slice(0, 50_000)} /></pre>
      </div>
    </details>
  );
}

function pretty(text: string): string {
  try {
    const value = parseJson(text);
    return isObject(value) ? toJson(value, 2) : text;
  } catch {
    return text.includes("=") && !/\s/.test(text) ? text.split("&").join("\n&") : text;
  }
}

/** The tab in which somebody logged in, once it is back. */
export function OAuthAnswer(): JSX.Element {
  const taken = useSignal<boolean | null>(null);
  useEffect(() => {
    const query = route.value.query.toString();
    // A code is worth a token, and belongs in no history.
    history.replaceState(null, "", "#/oauth-answer");
    void handOver(query).then((given) => { taken.value = given; });
  }, []);
  return <p class="card empty" role="status">{taken.value === null ? "…" : taken.value ? T.oauth.back : T.oauth.nobody}</p>;
}
