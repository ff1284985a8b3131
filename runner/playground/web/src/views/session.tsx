/** One connection: who the server is, what both can do, in which era they speak, and what the server says by itself. */
import type { ComponentChildren, JSX } from "preact";
import { useSignal } from "@preact/signals";
import { LEVELS, type Connection, type Level, type Params } from "../model/connection";
import { here, problems } from "../model/connections";
import { ERAS, hasSessions, isEra } from "../model/eras";
import { info } from "../model/info";
import { toJson } from "../model/json";
import { plain } from "../model/plain";
import { messages, wireChanges } from "../model/wire";
import { duration, time } from "../texts/numbers";
import { Folded } from "./folded";
import { T } from "../texts/texts";

const MOST_NEWS = 100;

export function SessionView(): JSX.Element {
  const connection = here.value;
  return (
    <div class="stack" key={connection.name}>
      <header class="row"><h1 class="grow">{T.session.title}: <span class="mono">{plain(connection.name)}</span></h1><Ping connection={connection} /></header>
      <div class="pair">
        <Server connection={connection} />
        <News connection={connection} />
      </div>
    </div>
  );
}

function Card({ title, children, more }: { title: string; children: ComponentChildren; more?: ComponentChildren }): JSX.Element {
  return <section class="card" aria-label={title}><header><h2 class="grow">{title}</h2>{more}</header><div class="body stack">{children}</div></section>;
}

function Server({ connection }: { connection: Connection }): JSX.Element {
  const about = connection.about.value;
  const setLevel = (level: Level): void => {
    connection.level.value = level;
    if (hasSessions(connection.era.value)) void connection.request("logging/setLevel", { level }).catch(() => undefined);
  };
  return (
    <Card title={T.session.server} more={<span class={`badge ${connection.state.value}`}>{T.servers.states[connection.state.value]}</span>}>
      {connection.why.value !== "" && connection.state.value === "down" && <p class="problem" role="alert">{plain(connection.why.value)}</p>}
      <label class="field"><span class="label">{T.session.era}</span>
        <select class="input" value={connection.era.value} onChange={(event) => { const era = event.currentTarget.value; if (isEra(era)) connection.speak(era); }}>
          {ERAS.map((era) => <option key={era} value={era}>{hasSessions(era) ? era : T.session.noSessions(era)}</option>)}</select>
        <span class="hint">{T.session.eraHint}</span></label>
      <label class="field"><span class="label">{T.session.level}</span>
        <select class="input" value={connection.level.value} onChange={(event) => setLevel(event.currentTarget.value as Level)}>
          {LEVELS.map((level) => <option key={level}>{level}</option>)}</select>
        <span class="hint">{T.session.levelHint}</span></label>
      {about === null ? <p class="soft" role="status">{T.session.notMet}</p> : (
        <>
          <dl class="facts">
            <dt>{T.session.name}</dt><dd>{plain(about.title || about.name)}</dd>
            <dt>{T.session.version}</dt><dd>{plain(about.version)}</dd>
            <dt>{T.session.agreed}</dt><dd class="mono">{plain(about.protocol)}</dd>
          </dl>
          {about.instructions !== "" && <details><summary>{T.session.instructions}</summary><pre class="code" tabIndex={0}><Folded text={about.instructions} /></pre></details>}
          <Able title={T.session.theirs} able={about.capabilities} />
        </>
      )}
      {(info.value?.servers.length ?? 0) > 0 && <Behind />}
      <details><summary>{T.session.ours}</summary><pre class="code" tabIndex={0}>{toJson(connection.capabilities(), 2)}</pre></details>
    </Card>
  );
}

/** The servers behind a proxy, and which of them are dead. */
function Behind(): JSX.Element {
  return (
    <section class="stack" aria-label={T.servers.behind}>
      <h3 class="part">{T.servers.behind}</h3>
      <ul class="stack">{(info.value?.servers ?? []).map((name) => {
        const why = problems.value[name] ?? "";
        return <li key={name} class="stack"><span class="row"><span class="mono">{plain(name)}</span><span class={`badge ${why === "" ? "up" : "down"}`}>{T.servers.states[why === "" ? "up" : "down"]}</span></span>{why !== "" && <p class="problem">{plain(why)}</p>}</li>;
      })}</ul>
    </section>
  );
}

function Able({ title, able }: { title: string; able: Params }): JSX.Element {
  return <details open><summary>{title}</summary><pre class="code" tabIndex={0}><Folded text={toJson(able, 2)} /></pre></details>;
}

function Ping({ connection }: { connection: Connection }): JSX.Element {
  const said = useSignal<string | null>(null);
  const ask = async (): Promise<void> => {
    const began = performance.now();
    try {
      await connection.request(hasSessions(connection.era.value) ? "ping" : "server/discover");
      said.value = duration(performance.now() - began);
    } catch (error) {
      said.value = (error as Error).message;
    }
  };
  return <><span class="soft small" role="status">{said.value === null ? "" : plain(said.value)}</span><button class="button" data-press="ping" onClick={() => void ask()}>{T.session.ping}</button></>;
}

function News({ connection }: { connection: Connection }): JSX.Element {
  void wireChanges.value;
  const heard = messages().filter((each) => each.kind === "notification" && each.direction === "received" && each.server === connection.name).slice(-MOST_NEWS).reverse();
  return (
    <Card title={T.session.notifications}>
      {heard.length === 0 && <p class="soft">{T.session.noNotifications}</p>}
      <ol class="stack news-list">
        {heard.map((each) => (
          <li key={each.n}><details><summary class="small"><span class="mono">{plain(each.method.replace("notifications/", ""))}</span> <span class="soft">{time(each.at)}</span></summary>
            <pre class="code" tabIndex={0}><Folded text={toJson(each.message, 2).slice(0, 20_000)} /></pre></details></li>
        ))}
      </ol>
    </Card>
  );
}
