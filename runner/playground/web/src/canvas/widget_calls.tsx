/** What a widget called, a line for each call, and the question before a call that a person decides on. */
import type { JSX } from "preact";
import { to } from "../model/route";
import type { Run } from "../model/runs";
import { decide, type WidgetCall } from "../model/widget_calls";
import { duration } from "../texts/numbers";
import { plain } from "../model/plain";
import { Consent } from "../views/consent";
import { Folded } from "../views/folded";
import { inserted } from "../texts/inserted";
import { T } from "../texts/texts";

export function WidgetCalls({ run }: { run: Run }): JSX.Element {
  const calls = run.widgetCalls ?? [];
  return (
    <section class="stack" aria-label={T.widget.callsOf}>
      <h2 class="part">{T.widget.called}</h2>
      {calls.length === 0 ? <p class="soft small">{T.widget.noneSoFar}</p> : (
        <div class="scroll calls">
          <table class="grid stacked" role="table">
            <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">{T.common.tool}</th><th role="columnheader" scope="col">{T.common.arguments}</th><th role="columnheader" scope="col">{T.common.status}</th><th role="columnheader" scope="col" class="number">{T.common.took}</th></tr></thead>
            <tbody role="rowgroup">
              {[...calls].reverse().map((call) => (
                <tr role="row" key={call.id}>
                  <td role="cell" class="first"><a class="mono" href={to("call", call.tool)}>{plain(call.tool)}</a></td>
                  <td role="cell" class="mono clip whole last" title={plain(call.args)}>{plain(call.args)}</td>
                  <td role="cell"><span class={`badge ${BADGE[call.status]}`}>{T.widget.statuses[call.status]}</span></td>
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

const BADGE: Record<WidgetCall["status"], string> = { asked: "running", running: "running", done: "done", failed: "failed", refused: "cancelled", left: "cancelled" };

/** The first of the calls that wait for a person; the others wait behind it. */
export function AskedCall({ run }: { run: Run }): JSX.Element | null {
  const waiting = (run.widgetCalls ?? []).filter((call) => call.status === "asked");
  const [call] = waiting;
  if (call === undefined) return null;
  return (
    <Consent key={call.id} yes={T.widget.callIt} no={T.widget.doNotCall} decide={(allowed) => decide(call.id, allowed)}>
      <p>{inserted(call.args === "{}" ? T.widget.wantsCall : T.widget.wantsCallWith, { tool: <b class="mono">{plain(call.tool)}</b> })}</p>
      {call.args !== "{}" && <pre class="code" tabIndex={0}><Folded text={call.args} /></pre>}
      {call.destructive === true && <p class="soft small">{T.widget.destructive}</p>}
      {waiting.length > 1 && <p class="soft small">{T.widget.waiting(waiting.length - 1)}</p>}
    </Consent>
  );
}
