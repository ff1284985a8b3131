/** A button that copies a text. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import type { Pressed } from "../model/press";
import { T } from "../texts/texts";

export function CopyButton({ text, name, title, press }: { text: () => string; name?: string; title?: string; press?: Pressed }): JSX.Element {
  const said = useSignal<string | null>(null);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text());
      said.value = T.copy.copied;
    } catch {
      said.value = T.copy.byHand;
    }
  };
  return (
    <button type="button" class="button quiet small copy" title={title} data-press={press} onClick={() => void copy()} onBlur={() => { said.value = null; }} aria-live="polite">
      {said.value ?? name ?? T.copy.copy}
    </button>
  );
}
