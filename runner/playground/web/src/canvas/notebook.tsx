/** Notebooks: what was written and what came out of it, as text and pictures. Nothing in them runs, and their HTML is not written. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { isObject, parseJson, toJson, type Json } from "../model/json";
import type { Params } from "../model/mcp";
import { brief } from "../model/plain";
import { Trouble, Waiting } from "./canvas";
import { Coloured } from "./code";
import { head, useLoaded } from "./content";
import type { Item } from "./items";
import { Markdown } from "./markdown";
import { T } from "../texts/texts";

const MOST_BYTES = 20_000_000;
const MOST_CELLS = 300;
const MOST_OUTPUTS = 50;
const MOST_TEXT = 50_000;

export function NotebookView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, async (signal) => {
    const { text, cut } = await head(item, MOST_BYTES, signal);
    if (cut) throw new Error(T.viewers.tooLarge);
    const read = parseJson(text);
    if (!isObject(read) || !Array.isArray(read["cells"])) throw new Error(T.viewers.noNotebook);
    return read;
  });
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  const cells = (loaded.value["cells"] as Json[]).filter(isObject);
  const meta = loaded.value["metadata"];
  const info = isObject(meta) ? meta["language_info"] : null;
  const language = isObject(info) && typeof info["name"] === "string" && ["python", "javascript", "typescript", "sql", "bash"].includes(info["name"]) ? info["name"] : null;
  return (
    <div class="stack">
      {cells.slice(0, MOST_CELLS).map((cell, index) => <Cell key={index} cell={cell} language={language} />)}
      {cells.length > MOST_CELLS && <p class="soft small">{T.viewers.cells(MOST_CELLS, cells.length)}</p>}
    </div>
  );
}

function Cell({ cell, language }: { cell: Params; language: string | null }): JSX.Element {
  const source = joined(cell["source"]).slice(0, MOST_TEXT);
  if (cell["cell_type"] === "markdown") return <Markdown text={source} />;
  const outputs = (Array.isArray(cell["outputs"]) ? cell["outputs"] : []).filter(isObject);
  return (
    <section class="stack" aria-label={T.viewers.cell}>
      <Coloured text={source} language={cell["cell_type"] === "code" ? language : null} />
      {outputs.slice(0, MOST_OUTPUTS).map((output, index) => <Output key={index} output={output} />)}
    </section>
  );
}

function Output({ output }: { output: Params }): JSX.Element | null {
  if (output["output_type"] === "stream") return <pre class="output">{text(output["text"])}</pre>;
  if (output["output_type"] === "error") return <pre class="output problem">{text(output["traceback"], "\n") || text(output["evalue"])}</pre>;
  const data = isObject(output["data"]) ? output["data"] : {};
  for (const mime of ["image/png", "image/jpeg"]) if (typeof data[mime] === "string" || Array.isArray(data[mime])) return <Picture base64={joined(data[mime])} mime={mime} />;
  if (data["text/plain"] !== undefined) return <pre class="output">{text(data["text/plain"])}</pre>;
  if (data["text/html"] !== undefined) return <Coloured text={joined(data["text/html"]).slice(0, MOST_TEXT)} language="xml" />;
  const [kind] = Object.keys(data);
  return kind === undefined ? null : <pre class="output">{brief(`${kind}: ${toJson(data[kind] ?? null)}`, 2000)}</pre>;
}

function Picture({ base64, mime }: { base64: string; mime: string }): JSX.Element {
  const address = useSignal<string | null>(null);
  const problem = useSignal(false);
  useEffect(() => {
    let made: string | null = null;
    try {
      made = URL.createObjectURL(new Blob([Uint8Array.from(atob(base64.replaceAll(/\s/g, "")), (char) => char.charCodeAt(0))], { type: mime }));
      address.value = made;
    } catch {
      problem.value = true;
    }
    return () => { if (made !== null) URL.revokeObjectURL(made); };
  }, [base64, mime]);
  if (problem.value) return <Trouble problem={T.viewers.brokenPicture} />;
  return address.value === null ? <Waiting /> : <img class="picture" src={address.value} alt={T.viewers.cellPicture} onError={() => { problem.value = true; }} />;
}

function joined(value: Json | undefined, by = ""): string {
  return Array.isArray(value) ? value.filter((each) => typeof each === "string").join(by) : typeof value === "string" ? value : "";
}

/** Line breaks stay; colours of terminals go, and what else is not seen is named. */
function text(value: Json | undefined, by = ""): string {
  const whole = joined(value, by).slice(0, MOST_TEXT).replaceAll(/\u001b\[[0-9;]*m/g, "");
  return whole.split("\n").map((line) => brief(line, 4000)).join("\n");
}
