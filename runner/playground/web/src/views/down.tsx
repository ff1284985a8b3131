/** The server that is looked at does not answer: which one, why, and the way back to it. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { here } from "../model/connections";
import { isLost } from "../model/news";
import { plain } from "../model/plain";
import { loadTools } from "../model/tools";

export function Down(): JSX.Element | null {
  const connection = here.value;
  const busy = useSignal(false);
  if (connection.state.value !== "down") return isLost.value ? <p class="notice down" role="status">Can't reach the server. Reconnecting…</p> : null;
  const retry = async (): Promise<void> => {
    busy.value = true;
    try {
      await connection.meet();
      await loadTools();
    } catch {
      // The state says it.
    } finally {
      busy.value = false;
    }
  };
  return (
    <div class="problem down" role="alert">
      <h2>Can't reach <span class="mono">{plain(connection.name)}</span></h2>
      <p>{plain(connection.why.value)}</p>
      <div class="row"><button class="button" disabled={busy.value} aria-busy={busy.value} onClick={() => void retry()}>Try again</button></div>
    </div>
  );
}
