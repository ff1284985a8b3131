/** What a widget called, a line for each call, and the question where a person wants to be asked first. */
import type { JSX } from "preact";
import { to } from "../model/route";
import type { Run } from "../model/runs";
import { decide, type WidgetCall } from "../model/widget_calls";
import { duration } from "../model/words";
import { plain } from "../views/run";

export function WidgetCalls({ run }: { run: Run }): JSX.Element {
  const calls = run.widgetCalls ?? [];
  return (
    <section class="stack" aria-label="Calls of the widget">
      {calls.filter((call) => call.status === "asked").map((call) => <Ask key={call.id} call={call} />)}
      <h2 class="part">Tools the widget called</h2>
      {calls.length === 0 ? <p class="soft small">None so far.</p> : (
        <div class="scroll calls">
          <table class="grid stacked" role="table">
            <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Tool</th><th role="columnheader" scope="col">Arguments</th><th role="columnheader" scope="col">End</th><th role="columnheader" scope="col" class="number">Took</th></tr></thead>
            <tbody role="rowgroup">
              {[...calls].reverse().map((call) => (
                <tr role="row" key={call.id}>
                  <td role="cell" class="first"><a class="mono" href={to("call", call.tool)}>{plain(call.tool)}</a></td>
                  <td role="cell" class="mono clip whole last" title={plain(call.args)}>{plain(call.args)}</td>
                  <td role="cell"><span class={`badge ${BADGE[call.status]}`}>{WORDS[call.status]}</span></td>
                  <td role="cell" class="number">{call.took === null ? "" : duration(call.took)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

const WORDS: Record<WidgetCall["status"], string> = { asked: "asks", running: "running", done: "done", failed: "failed", refused: "not allowed", left: "page left" };
const BADGE: Record<WidgetCall["status"], string> = { asked: "running", running: "running", done: "done", failed: "failed", refused: "cancelled", left: "cancelled" };

function Ask({ call }: { call: WidgetCall }): JSX.Element {
  return (
    <div class="question stack" role="alert">
      <p>The widget wants to call <b class="mono">{plain(call.tool)}</b> with</p>
      <pre class="code" tabIndex={0}>{plain(call.args)}</pre>
      <div class="row">
        <button class="button main" onClick={() => decide(call.id, true)}>Call it</button>
        <button class="button" onClick={() => decide(call.id, false)}>Do not call it</button>
      </div>
    </div>
  );
}
