/** Parameters that take files of the user: dropped here, picked, or chosen from My Files. */
import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";
import { files, loadFiles, upload } from "../model/files";
import type { Json } from "../model/json";
import type { Field } from "../model/schema";
import { Labelled, type Editing } from "./form";
import { T } from "../texts/texts";

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
  return (
    <Labelled editing={editing} id={id} {...(wrong === null ? {} : { fault: wrong })}>
      <div class="stack drop" onDragOver={(event) => event.preventDefault()}
        onDrop={(event) => { event.preventDefault(); void take(event.dataTransfer?.files ?? null); }}>
        {many ? (
          <ul>{chosen.map((each, index) => (
            <li key={index} class="row"><code class="grow">{each}</code>
              <button type="button" class="button quiet" aria-label={T.form.remove(each)} onClick={() => change(chosen.filter((_, at) => at !== index))}>×</button></li>
          ))}</ul>
        ) : (
          <input id={id} class="input" value={typeof value === "string" ? value : ""} placeholder={T.form.fileName}
            aria-describedby={`${id}-hint ${id}-fault`} onInput={(event) => change(event.currentTarget.value || undefined)} />
        )}
        <div class="row">
          <select class="input grow" id={many ? id : undefined} aria-label={T.form.chooseFile(name)} value="" onFocus={() => void loadFiles()}
            onChange={(event) => { if (event.currentTarget.value) put(event.currentTarget.value); event.currentTarget.value = ""; }}>
            <option value="">{T.form.fromFiles}</option>
            {files.value.map((file) => <option key={file.key + file.filename} value={file.filename}>{file.filename}</option>)}
          </select>
          <label class="button">
            {busy === null ? T.form.upload : T.form.uploading}
            <input type="file" class="unseen" multiple={many} onChange={(event) => void take(event.currentTarget.files)} />
          </label>
        </div>
      </div>
    </Labelled>
  );
}
