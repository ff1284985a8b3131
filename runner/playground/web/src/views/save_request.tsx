/** The way into the saved requests: a button, and a small form for its name. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Params } from "../model/connection";
import { here } from "../model/connections";
import { save, type Kind } from "../model/saved";
import { useEscape } from "./escape";

const SAID_MS = 4000;

export function SaveRequest({ kind, target, args }: { kind: Kind; target: string; args: () => Params | null }): JSX.Element {
  const open = useSignal(false);
  const name = useSignal("");
  const said = useSignal<string | null>(null);
  const first = useRef<HTMLInputElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const wasOpen = useRef(false);
  useLayoutEffect(() => {
    if (open.value) first.current?.select();
    else if (wasOpen.current) button.current?.focus();
    wasOpen.current = open.value;
  }, [open.value]);
  useEscape(() => { open.value = false; }, open.value);
  const keep = (): void => {
    try {
      save({ kind, target, args: args() ?? {}, server: here.value.name, name: name.value.trim() || target });
      open.value = false;
      said.value = "Saved";
      setTimeout(() => { said.value = null; }, SAID_MS);
    } catch (error) {
      said.value = (error as Error).message;
    }
  };
  if (!open.value) {
    return <button ref={button} type="button" class="button quiet" onClick={() => { open.value = true; said.value = null; name.value = target; }} aria-live="polite">{said.value ?? "Save"}</button>;
  }
  return (
    <div class="row save" role="group" aria-label="Save this request" onKeyDown={(event) => {
      // It may stand in another form, which this must not send.
      if (event.key === "Enter") { event.preventDefault(); keep(); }
    }}>
      <span class="row fields">
        <input class="input compact" aria-label="Name" ref={first} value={name.value} onInput={(event) => { name.value = event.currentTarget.value; }} />
      </span>
      <span class="row">
        <button type="button" class="button" onClick={keep}>Save</button>
        <button type="button" class="button quiet" onClick={() => { open.value = false; }}>Cancel</button>
      </span>
    </div>
  );
}
