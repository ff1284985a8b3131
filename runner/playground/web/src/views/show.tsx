/** One stored file, with an address of its own: `#/show/artifact%3A%2F%2F…?name=`. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { ItemView } from "../canvas/canvas";
import { viewerOf } from "../canvas/items";
import { files, filesLoaded, filesProblem, loadFiles } from "../model/files";
import { plain } from "../model/plain";
import { route, to } from "../model/route";

export function ShowView(): JSX.Element {
  const uri = route.value.rest;
  const name = route.value.query.get("name");
  useEffect(() => {
    void loadFiles();
  }, [uri]);
  const file = files.value.find((each) => each.uri === uri && (name === null || each.filename === name)) ?? files.value.find((each) => each.uri === uri);
  return (
    <div class="stack">
      <p><a href={to("files")}>Files</a></p>
      <h1 class="mono">{plain(file?.filename ?? name ?? "File")}</h1>
      {file === undefined
        ? <div class="card empty"><p>{filesProblem.value ?? (!filesLoaded.value ? "Looking for the file…" : "This file is not in My Files any more. It has expired, or was deleted. Run the tool that made it again, or upload it again.")}</p></div>
        : <section class="card"><div class="body"><ItemView key={file.uri} item={{ name: file.filename, mime: file.content_type, size: file.size, uri: file.uri, description: null, expires: file.expires_at, viewer: viewerOf(file.filename, file.content_type, null) }} /></div></section>}
    </div>
  );
}
