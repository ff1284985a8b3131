/** A link that saves a file, and says so where the file is gone: a browser alone would only say that it failed. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { addressOf, bytes, isHeld, missing, save } from "../model/files";
import { count } from "../texts/numbers";

export function Download({ uri, name, quiet = false, failed }: { uri: string; name: string; quiet?: boolean; failed: (why: string) => void }): JSX.Element {
  const download = async (event: MouseEvent): Promise<void> => {
    event.preventDefault();
    const problem = await missing(uri);
    if (problem !== null) {
      failed(problem);
      return;
    }
    if (isHeld(uri)) await saveBlob(await (await bytes(uri)).blob(), name);
    else save(addressOf(uri), name);
  };
  return <a class={quiet ? "button quiet" : "button"} href={addressOf(uri)} download={name} onClick={(event) => void download(event)}>Download</a>;
}

/** Save what is in the page. */
export async function saveBlob(blob: Blob, name: string): Promise<void> {
  const href = URL.createObjectURL(blob);
  save(href, name);
  // The browser reads it after the click; a moment is enough for it to begin.
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** A button that saves several files as one archive. */
export function DownloadAll({ files, name, label = "Download all", failed }: { label?: string; files: { uri: string; name: string }[]; name: string; failed: (why: string) => void }): JSX.Element {
  const busy = useSignal(false);
  const all = async (): Promise<void> => {
    busy.value = true;
    try {
      const { zip } = await import("../model/zip");
      await saveBlob(await zip(files.map((file) => ({ name: file.name, open: () => bytes(file.uri) }))), name);
    } catch (error) {
      failed((error as Error).message);
    } finally {
      busy.value = false;
    }
  };
  return <button class="button" disabled={busy.value} aria-busy={busy.value} onClick={() => void all()}>{busy.value ? "Packing…" : `${label} (${count(files.length)})`}</button>;
}
