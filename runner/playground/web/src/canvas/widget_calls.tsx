/** What a widget called, a line for each call, and the question before a call that a person decides on. */
import type { JSX } from "preact";
import { to } from "../model/route";
import type { Run } from "../model/runs";
import { decide, type WidgetCall } from "../model/widget_calls";
import { duration } from "../texts/numbers";
import { plain } from "../model/plain";
import { Consent } from "../views/consent";
import { Folded } from "../views/folded";

export function WidgetCalls({ run }: { run: Run }): JSX.Element {
  const calls = run.widgetCalls ?? [];
  return (
    <section class="stack" aria-label="Calls of the widget">
      <h2 class="part">Tools the widget called</h2>
      {calls.length === 0 ? <p class="soft small">None so far.</p> : (
        <div class="scroll calls">
          <table class="grid stacked" role="table">
            <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Tool</th><th role="columnheader" scope="col">Arguments</th><th role="columnheader" scope="col">Status</th><th role="columnheader" scope="col" class="number">Took</th></tr></thead>
            <tbody role="rowgroup">
              {[...calls].reverse().map((call) => (
                <tr role="row" key={call.id}>
                  <td role="cell" class="first"><a class="mono" href={to("call", call.tool)}>{plain(call.tool)}</a></td>
                  <td role="cell" class="mono clip whole last" title={plain(call.args)}>{plain(call.args)}</td>
                  <td role="cell"><span class={`badge ${BADGE[call.status]}`}>{STATUSES[call.status]}</span></td>
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

const STATUSES: Record<WidgetCall["status"], string> = { asked: "asks", running: "running", done: "done", failed: "failed", refused: "not allowed", left: "page left" };
const BADGE: Record<WidgetCall["status"], string> = { asked: "running", running: "running", done: "done", failed: "failed", refused: "cancelled", left: "cancelled" };

/** The first of the calls that wait for a person; the others wait behind it. */
export function AskedCall({ run }: { run: Run }): JSX.Element | null {
  const waiting = (run.widgetCalls ?? []).filter((call) => call.status === "asked");
  const [call] = waiting;
  if (call === undefined) return null;
  return (
    <Consent key={call.id} yes="Call it" no="Do not call it" decide={(allowed) => decide(call.id, allowed)}>
      <p>The widget wants to call <b class="mono">{plain(call.tool)}</b>{call.args === "{}" ? "" : " with"}</p>
      {call.args !== "{}" && <pre class="code" tabIndex={0}><Folded text={call.args} /></pre>}
      {call.destructive === true && <p class="soft small">This tool does not say that it leaves everything as it is, so a person is asked each time.</p>}
      {waiting.length > 1 && <p class="soft small">{waiting.length === 2 ? "1 more call waits behind this one." : `${waiting.length - 1} more calls wait behind this one.`}</p>}
    </Consent>
  );
}
