/** Text with colours. What it holds is put on the page as text; colours are classes of spans. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import ini from "highlight.js/lib/languages/ini";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { plain } from "../model/plain";
import { Folded, hasLongLine } from "../views/folded";
import { Trouble, Waiting } from "./canvas";
import { head, useLoaded } from "./content";
import type { Item } from "./items";
import { count } from "../texts/numbers";

const LANGUAGES = { bash, css, diff, ini, javascript, json, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

const ENDINGS: Record<string, string> = {
  sh: "bash", css: "css", diff: "diff", patch: "diff", ini: "ini", toml: "ini", js: "javascript", mjs: "javascript", json: "json", py: "python",
  rs: "rust", sql: "sql", ts: "typescript", tsx: "typescript", html: "xml", xml: "xml", svg: "xml", yaml: "yaml", yml: "yaml",
};
const MOST = 1_000_000;
const MOST_COLOURED = 200_000;

export function CodeView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => head(item, MOST, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  return (
    <>
      <Coloured text={loaded.value.text} language={languageOf(item.name.split(".").at(-1) ?? "")} />
      {loaded.value.cut && <p class="soft small">The first {count(MOST)} bytes. Download it for the rest.</p>}
    </>
  );
}

/** The language that code is in, by the name or the ending under which it is known. */
export function languageOf(named: string): string | null {
  const name = named.toLowerCase();
  return (Object.hasOwn(ENDINGS, name) ? ENDINGS[name] : undefined) ?? (Object.hasOwn(LANGUAGES, name) ? name : null);
}

interface Piece {
  scope: string | null;
  text: string;
}

export function Coloured({ text, language }: { text: string; language: string | null }): JSX.Element {
  const shown = plain(text);
  // Nobody reads one endless line by its colours.
  const pieces = useMemo(() => (language === null || shown.length > MOST_COLOURED || hasLongLine(text) ? null : piecesOf(shown, language)), [shown, language]);
  return (
    <pre class="code" tabIndex={0}><code>{pieces === null ? <Folded text={text} /> : pieces.map((piece, index) => (piece.scope === null ? piece.text : <span key={index} class={piece.scope}>{piece.text}</span>))}</code></pre>
  );
}

/** Read the marked-up text that the highlighter writes back into pieces, so that none of it is ever parsed as HTML in the page. */
function piecesOf(text: string, language: string): Piece[] {
  const marked = new DOMParser().parseFromString(hljs.highlight(text, { language, ignoreIllegals: true }).value, "text/html");
  const pieces: Piece[] = [];
  const walk = (node: Node, scope: string | null): void => {
    for (const child of node.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) pieces.push({ scope, text: child.textContent ?? "" });
      else if (child instanceof Element) walk(child, /^hljs-[a-z_ -]+$/.test(child.className) ? child.className : scope);
    }
  };
  walk(marked.body, null);
  return pieces;
}
