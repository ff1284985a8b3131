/** A request in each form in which it can be taken along. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { EXPORTS, type Taken } from "../model/exports";
import { CopyButton } from "./copy";
import { Folded } from "./folded";
import { Tabs } from "./tabs";
import { T } from "../texts/texts";

export function Exported({ taken }: { taken: Taken }): JSX.Element {
  const chosen = useSignal("");
  return (
    <div class="wraps"><Tabs press="export" label={T.history.forms} chosen={chosen.value} choose={(id) => { chosen.value = id; }}
      tabs={EXPORTS.filter((each) => each.fits(taken)).map((each) => ({ id: each.id, title: each.title, body: () => <Copied key={each.id} text={each.make(taken)} /> }))} /></div>
  );
}

function Copied({ text }: { text: string }): JSX.Element {
  return (
    <div class="stack">
      <pre class="code" tabIndex={0}><Folded text={text} /></pre>
      <div><CopyButton text={() => text} /></div>
    </div>
  );
}
