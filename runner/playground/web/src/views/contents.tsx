/** What a resource holds, in the viewer of its kind: the same viewers as for files. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ItemView } from "../canvas/canvas";
import { viewerOf, type Item } from "../canvas/items";
import type { Params } from "../model/connection";
import { hold, letGo } from "../model/files";
import { plain } from "../model/plain";
import { readResource } from "../model/resources";

export function Content({ content }: { content: Params }): JSX.Element {
  const mime = typeof content["mimeType"] === "string" ? content["mimeType"] : null;
  const { text, blob } = content;
  const uri = String(content["uri"] ?? "resource");
  if (typeof text === "string") return <Held key={uri} uri={uri} mime={mime ?? "text/plain"} text={text} />;
  if (typeof blob === "string") return <Held key={uri} uri={uri} mime={mime ?? "application/octet-stream"} blob={blob} />;
  return <p class="soft small">{`${mime ?? "unknown type"}, nothing`}</p>;
}

/** Bytes that came in a message, under an address of this page's own for as long as they are shown. */
function Held({ uri, mime, text, blob }: { uri: string; mime: string; text?: string; blob?: string }): JSX.Element {
  const item = useSignal<Item | null>(null);
  const problem = useSignal<string | null>(null);
  useEffect(() => {
    let at = "";
    try {
      const kept = hold(text === undefined ? { base64: blob ?? "" } : { text });
      at = kept.uri;
      const name = nameIn(uri);
      item.value = { name, mime, ...kept, description: null, expires: null, viewer: viewerOf(name, mime, null) };
    } catch {
      problem.value = "what the server sent is not base64";
    }
    return () => letGo(at);
  }, [text, blob, mime, uri]);
  if (problem.value !== null) return <p class="problem" role="alert">{`This resource cannot be shown: ${problem.value}.`}</p>;
  return item.value === null ? <p class="soft" role="status">Reading…</p> : <ItemView key={item.value.uri} item={item.value} />;
}

function nameIn(uri: string): string {
  const last = /[^/]*$/.exec(uri.replace(/[?#].*$/, ""))?.[0] ?? "";
  try {
    return decodeURIComponent(last) || "resource";
  } catch {
    return last || "resource";
  }
}

/** What a resource holds, read when this is shown. */
export function ResourceContent({ uri }: { uri: string }): JSX.Element {
  const contents = useSignal<Params[] | null>(null);
  const problem = useSignal<string | null>(null);
  useEffect(() => {
    readResource(uri).then((read) => { contents.value = read; }, (error: Error) => { problem.value = error.message; });
  }, [uri]);
  if (problem.value !== null) return <p class="problem" role="alert">{plain(problem.value)}</p>;
  if (contents.value === null) return <p class="soft" role="status">Reading…</p>;
  return <div class="stack">{contents.value.map((each, index) => <Content key={index} content={each} />)}</div>;
}
