/** One connection: who the server is, what both can do and in which version of the protocol they speak. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { LEVELS, type Connection, type Level } from "../model/connection";
import { here, problems, speak } from "../model/connections";
import { ERAS, hasSessions, isEra } from "../model/eras";
import { info } from "../model/info";
import { toJson } from "../model/json";
import { plain } from "../model/plain";
import { duration } from "../texts/numbers";
import { Folded } from "./folded";

export function SessionView(): JSX.Element {
  const connection = here.value;
  return (
    <div class="stack" key={connection.name}>
      <header class="row"><h1 class="grow">Connection: <span class="mono">{plain(connection.name)}</span></h1><Ping connection={connection} /></header>
      <Server connection={connection} />
    </div>
  );
}

function Server({ connection }: { connection: Connection }): JSX.Element {
  const about = connection.about.value;
  const setLevel = (level: Level): void => {
    connection.level.value = level;
    if (hasSessions(connection.era)) void connection.request("logging/setLevel", { level }).catch(() => undefined);
  };
  return (
    <section class="card" aria-label="Server"><header><h2 class="grow">Server</h2><span class={`badge ${connection.state.value}`}>{connection.state.value === "new" ? "not asked yet" : connection.state.value}</span></header><div class="body stack">
      <label class="field"><span class="label">Protocol version</span>
        <select class="input" value={connection.era} onChange={(event) => { const era = event.currentTarget.value; if (isEra(era)) speak(era); }}>
          {ERAS.map((era) => <option key={era} value={era}>{hasSessions(era) ? era : `${era} (no sessions)`}</option>)}</select>
        <span class="hint">Tools that ask by ctx.elicit, sampling or roots need 2025-11-25 or older. Tools that return their questions need 2026-07-28. A change reconnects.</span></label>
      <label class="field"><span class="label">Log messages from</span>
        <select class="input" value={connection.level.value} onChange={(event) => setLevel(event.currentTarget.value as Level)}>
          {LEVELS.map((level) => <option key={level}>{level}</option>)}</select>
        <span class="hint">The least important messages that the server is asked to send.</span></label>
      {about === null ? <p class="soft" role="status">The server has not answered yet.</p> : (
        <>
          <dl class="facts">
            <dt>Name</dt><dd>{plain(about.title || about.name)}</dd>
            <dt>Version</dt><dd>{plain(about.version)}</dd>
            <dt>The server answered with</dt><dd class="mono">{plain(about.protocol)}</dd>
          </dl>
          {about.instructions !== "" && <details><summary>Instructions for a model</summary><pre class="code" tabIndex={0}><Folded text={about.instructions} /></pre></details>}
          <details open><summary>What the server can do</summary><pre class="code" tabIndex={0}><Folded text={toJson(about.capabilities, 2)} /></pre></details>
        </>
      )}
      {(info.value?.servers.length ?? 0) > 0 && <Behind />}
      <details><summary>What this page can do</summary><pre class="code" tabIndex={0}>{toJson(connection.capabilities(), 2)}</pre></details>
    </div></section>
  );
}

/** The servers behind a proxy, and which of them are dead. */
function Behind(): JSX.Element {
  return (
    <section class="stack" aria-label="Servers behind this proxy">
      <h3 class="part">Servers behind this proxy</h3>
      <ul class="stack">{(info.value?.servers ?? []).map((name) => {
        const why = problems.value[name] ?? "";
        return <li key={name} class="stack"><span class="row"><span class="mono">{plain(name)}</span><span class={`badge ${why === "" ? "up" : "down"}`}>{why === "" ? "up" : "down"}</span></span>{why !== "" && <p class="problem">{plain(why)}</p>}</li>;
      })}</ul>
    </section>
  );
}

function Ping({ connection }: { connection: Connection }): JSX.Element {
  const said = useSignal<string | null>(null);
  const ask = async (): Promise<void> => {
    const began = performance.now();
    try {
      await connection.request(hasSessions(connection.era) ? "ping" : "server/discover");
      said.value = duration(performance.now() - began);
    } catch (error) {
      said.value = (error as Error).message;
    }
  };
  return <><span class="soft small" role="status">{said.value === null ? "" : plain(said.value)}</span><button class="button" onClick={() => void ask()}>Ping</button></>;
}
