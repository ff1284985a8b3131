/** A request in each form in which it can be exported. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { EXPORTS, type Taken } from "../model/exports";
import { Text } from "./result";
import { Tabs } from "./tabs";

export function Exported({ taken }: { taken: Taken }): JSX.Element {
  const chosen = useSignal("");
  return (
    <div class="wraps"><Tabs label="Forms" chosen={chosen.value} choose={(id) => { chosen.value = id; }}
      tabs={EXPORTS.filter((each) => each.fits(taken)).map((each) => ({ id: each.id, title: each.title, body: () => <Text key={each.id} text={each.make(taken)} /> }))} /></div>
  );
}
