/** A first visit: what this page is, shown by one call that a person makes. */
import type { JSX } from "preact";
import { toJson, type Json } from "../model/json";
import { start } from "../model/runs";
import type { Tool } from "../model/tools";
import { info } from "../model/info";
import { plain } from "../model/plain";
import { inserted } from "../texts/inserted";
import { T } from "../texts/texts";

export function First({ tool, sample, fill }: { tool: Tool; sample: { [key: string]: Json }; fill: (value: { [key: string]: Json }) => void }): JSX.Element {
  // Anything else may do something that cannot be taken back: the arguments are shown, and a person presses Run.
  const harmless = tool.annotations["readOnlyHint"] === true;
  const given = Object.keys(sample).length > 0;
  return (
    <section class="card" aria-label={T.first.title}>
      <div class="body stack">
        <h2>{T.first.heading}</h2>
        <p>{info.value?.kind === "tools" ? T.first.aboutSandbox : T.first.about}</p>
        <p>{T.first.sample}</p>
        <pre class="code" tabIndex={0}><b>{plain(tool.name)}</b> {plain(toJson(sample, 2).slice(0, MOST))}</pre>
        <div class="row">
          {harmless
            ? <button class="button" onClick={() => { fill(sample); start(tool.name, sample); }}>{T.first.make}</button>
            : given
              ? <button class="button" onClick={() => { fill(sample); document.querySelector<HTMLElement>("section.arguments .button.main")?.focus(); }}>{T.first.fill}</button>
              : <span class="soft">{T.first.pressRun}</span>}
        </div>
        <ol class="soft small steps">
          <li>{inserted(T.first.result, { tab: <b>{T.common.result}</b> })}</li>
          <li>{inserted(T.first.model, { tab: <b>{T.run.model}</b> })}</li>
          <li>{inserted(T.first.rest, { tabs: <b>{[T.run.timing, T.run.sandbox, T.run.log, T.run.messages].join(", ")}</b> })}</li>
        </ol>
        {!harmless && given && <p class="soft small">{T.first.runsNothing}</p>}
      </div>
    </section>
  );
}

const MOST = 2000;
