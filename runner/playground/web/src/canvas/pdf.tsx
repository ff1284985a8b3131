/** PDF, drawn page by page on canvases. Nothing in it runs, and no link in it is followed. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { getDocument, GlobalWorkerOptions, type PDFDocumentProxy } from "pdfjs-dist";
import workerUrl from "pdfjs-dist/build/pdf.worker.min.mjs?url";
import { bytes } from "../model/files";
import { Trouble, Waiting } from "./canvas";
import { useLoaded } from "./content";
import type { Item } from "./items";
import { count } from "../texts/numbers";

GlobalWorkerOptions.workerSrc = workerUrl;

const MOST = 100_000_000;

export function PdfView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => open(item, signal));
  const at = useSignal(1);
  useEffect(() => () => { void loaded.value?.loadingTask.destroy(); }, [loaded.value]);
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  const pages = loaded.value.numPages;
  return (
    <div class="stack">
      <div class="row">
        <button class="button" disabled={at.value <= 1} onClick={() => { at.value -= 1; }}>Previous</button>
        <span class="soft small" role="status">{`page ${count(at.value)} of ${count(pages)}`}</span>
        <button class="button" disabled={at.value >= pages} onClick={() => { at.value += 1; }}>Next</button>
      </div>
      <Page document={loaded.value} number={at.value} name={item.name} />
    </div>
  );
}

async function open(item: Item, signal: AbortSignal): Promise<PDFDocumentProxy> {
  if (item.size > MOST) throw new Error("it is too large to be shown here; download it");
  const data = await (await bytes(item.uri, undefined, signal)).arrayBuffer();
  return getDocument({ data, enableXfa: false, useSystemFonts: true, disableFontFace: false, stopAtErrors: false }).promise;
}

function Page({ document, number, name }: { document: PDFDocumentProxy; number: number; name: string }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const text = useSignal("");
  const problem = useSignal<string | null>(null);
  useEffect(() => {
    let left = false;
    problem.value = null;
    const draw = async (): Promise<void> => {
      const page = await document.getPage(number);
      const element = canvas.current;
      if (left || element === null) return;
      const scale = Math.min(2, 900 / page.getViewport({ scale: 1 }).width) * Math.min(2, devicePixelRatio);
      const viewport = page.getViewport({ scale });
      element.width = viewport.width;
      element.height = viewport.height;
      await page.render({ canvas: element, viewport }).promise;
      const content = await page.getTextContent();
      if (!left) text.value = content.items.map((each) => ("str" in each ? each.str : "")).join(" ");
    };
    // Work in flight on leaving is aborted, which is not a fault; nor are these errors to JavaScript.
    draw().catch((error: { message: string }) => { if (!left) problem.value = error.message; });
    return () => { left = true; };
  }, [document, number]);
  if (problem.value !== null) return <Trouble problem={problem.value} />;
  return <canvas ref={canvas} class="picture" role="img" aria-label={`${name}, page ${count(number)}: ${text.value.slice(0, 2000)}`} />;
}
