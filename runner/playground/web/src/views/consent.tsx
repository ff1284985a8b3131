/**
 * A question before something is done for what a tool made. It stands where only the page puts things, it is about one thing
 * until it is answered, and its yes can be pressed only once it has been seen: a click that was meant for something else
 * says nothing.
 */
import type { ComponentChildren, JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

const SEEN_MS = 600;

export function Consent({ children, yes, no, decide }: { children: ComponentChildren; yes: string; no: string; decide: (allowed: boolean) => void }): JSX.Element {
  const seen = useSignal(false);
  useEffect(() => {
    const timer = setTimeout(() => { seen.value = true; }, SEEN_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class="question stack" role="alert">
      {children}
      <div class="row">
        <button class="button main" disabled={!seen.value} onClick={() => decide(true)}>{yes}</button>
        <button class="button" onClick={() => decide(false)}>{no}</button>
      </div>
    </div>
  );
}
