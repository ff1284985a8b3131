/** Parameters that take files of the user: dropped here, picked, or chosen from My Files. */
import type { JSX, RefObject } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { files, loadFiles, upload } from "../model/files";
import type { Json } from "../model/json";
import type { Field } from "../model/schema";
import { Labelled, type Editing } from "./form";

const ONE = "filename";
const MANY = ["filenames", "file_names"];

export function takesFiles(name: string): boolean {
  return name === ONE || MANY.includes(name);
}

export function FileField(editing: Editing & { field: Field }): JSX.Element {
  const id = useId();
  const { name, value, change } = editing;
  const many = MANY.includes(name);
  const chosen = many ? (Array.isArray(value) ? value.filter((each): each is string => typeof each === "string") : []) : [];
  const [busy, setBusy] = useState<string | null>(null);
  const [wrong, setWrong] = useState<string | null>(null);
  const put = (named: string): void => change(many ? ([...chosen, named] as Json) : named);
  const take = async (given: FileList | null): Promise<void> => {
    for (const file of given ?? []) {
      setBusy(file.name);
      try {
        put((await upload(file)).filename);
        setWrong(null);
      } catch (error) {
        setWrong((error as Error).message);
      }
    }
    setBusy(null);
  };
  const zone = useRef<HTMLDivElement>(null);
  const isOver = useDropped(zone, (given) => void take(given));
  return (
    <Labelled editing={editing} id={id} {...(wrong === null ? {} : { fault: wrong })}>
      <div class={`stack drop ${isOver ? "over" : ""}`} ref={zone}>
        {isOver && <p class="small" role="status">Drop the file anywhere on the page</p>}
        {many ? (
          <ul>{chosen.map((each, index) => (
            <li key={index} class="row"><code class="grow">{each}</code>
              <button type="button" class="button quiet" aria-label={`Remove ${each}`} onClick={() => change(chosen.filter((_, at) => at !== index))}>×</button></li>
          ))}</ul>
        ) : (
          <input id={id} class="input" value={typeof value === "string" ? value : ""} placeholder="file name"
            aria-describedby={`${id}-hint ${id}-fault`} onInput={(event) => change(event.currentTarget.value || undefined)} />
        )}
        <div class="row">
          <select class="input grow" id={many ? id : undefined} aria-label={`Choose ${name} from My Files`} value="" onFocus={() => void loadFiles()}
            onChange={(event) => { if (event.currentTarget.value) put(event.currentTarget.value); event.currentTarget.value = ""; }}>
            <option value="">From My Files…</option>
            {files.value.map((file) => <option key={file.key + file.filename} value={file.filename}>{file.filename}</option>)}
          </select>
          <label class="button">
            {busy === null ? "Upload" : "Uploading…"}
            <input type="file" class="unseen" multiple={many} onChange={(event) => void take(event.currentTarget.files)} />
          </label>
        </div>
      </div>
    </Labelled>
  );
}

/** Take files dropped on a zone; those dropped beside every zone go to the first. Returns whether files are dragged over the page. */
function useDropped(zone: RefObject<HTMLDivElement | null>, take: (files: FileList) => void): boolean {
  const [isOver, setOver] = useState(false);
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => {
    const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") === true;
    const over = (event: DragEvent): void => {
      if (!hasFiles(event)) return;
      // Or the browser would leave the page and open the file.
      event.preventDefault();
      setOver(true);
    };
    const left = (event: DragEvent): void => { if (event.relatedTarget === null) setOver(false); };
    const dropped = (event: DragEvent): void => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      const aimed = event.target instanceof Element ? event.target.closest(".drop") : null;
      if ((aimed ?? document.querySelector(".drop")) === zone.current && event.dataTransfer !== null) latest.current(event.dataTransfer.files);
    };
    addEventListener("dragover", over);
    addEventListener("dragleave", left);
    addEventListener("drop", dropped);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("dragleave", left);
      removeEventListener("drop", dropped);
    };
  }, [zone]);
  return isOver;
}
