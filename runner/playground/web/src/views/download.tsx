/** A link that saves a file, and says so where the file is gone: a browser alone would only say that it failed. */
import type { JSX } from "preact";
import { addressOf, missing } from "../model/files";

export function Download({ uri, name, quiet = false, failed }: { uri: string; name: string; quiet?: boolean; failed: (why: string) => void }): JSX.Element {
  const save = async (event: MouseEvent): Promise<void> => {
    event.preventDefault();
    const problem = await missing(uri);
    if (problem !== null) {
      failed(problem);
      return;
    }
    const link = document.createElement("a");
    link.href = addressOf(uri);
    link.download = name;
    link.click();
  };
  return <a class={quiet ? "button quiet" : "button"} href={addressOf(uri)} download={name} onClick={(event) => void save(event)}>Download</a>;
}
