/** A text field for an argument of a prompt or a template: the server proposes values while somebody types. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useId, useRef } from "preact/hooks";
import { Must } from "../form/form";
import { complete, type Reference } from "../model/prompts";

const PAUSE_MS = 150;

export function Completed({ of, name, label, required = false, hint = "", value, others, change }: {
  of: Reference;
  name: string;
  label: string;
  required?: boolean;
  hint?: string;
  value: string;
  others: Record<string, string>;
  change: (value: string) => void;
}): JSX.Element {
  const id = useId();
  const proposed = useSignal<string[]>([]);
  const looked = useSignal(false);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const asked = useRef(0);
  const look = (text: string): void => {
    looked.value = true;
    clearTimeout(timer.current);
    const turn = ++asked.current;
    timer.current = setTimeout(() => {
      // Only the answer to the last question counts: they may come in any order.
      void complete(of, name, text, others).then((found) => { if (turn === asked.current) proposed.value = found; });
    }, PAUSE_MS);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  // What another argument says may change what fits here.
  useEffect(() => { if (looked.value) look(value); }, [JSON.stringify(others)]);
  return (
    <div class="field">
      <span class="label"><label for={id}>{label}</label><Must required={required} /></span>
      <input id={id} class="input" list={`${id}-list`} required={required} value={value} autocomplete="off" aria-describedby={hint === "" ? undefined : `${id}-hint`}
        onFocus={() => look(value)} onInput={(event) => { change(event.currentTarget.value); look(event.currentTarget.value); }} />
      <datalist id={`${id}-list`}>{proposed.value.map((each) => <option key={each} value={each} />)}</datalist>
      {proposed.value.some((each) => each !== value) && <span class="row proposed">{proposed.value.slice(0, 8).map((each) => <button key={each} type="button" class="button quiet small" onClick={() => change(each)}>{each}</button>)}</span>}
      {hint !== "" && <span class="hint" id={`${id}-hint`}>{hint}</span>}
    </div>
  );
}
