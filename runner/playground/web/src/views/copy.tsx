/** A button that copies a text. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";

export function CopyButton({ text, name, title }: { text: () => string; name?: string; title?: string }): JSX.Element {
  const said = useSignal<string | null>(null);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text());
      said.value = "Copied";
    } catch {
      said.value = "Select and copy by hand";
    }
  };
  return (
    <button type="button" class="button quiet small copy" title={title} onClick={() => void copy()} onBlur={() => { said.value = null; }} aria-live="polite">
      {said.value ?? name ?? "Copy"}
    </button>
  );
}
