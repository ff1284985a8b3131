/** Markdown: written as elements of the page, one by one. HTML in it is shown as text, pictures from elsewhere are only named. */
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { lexer, type Token, type Tokens } from "marked";
import { count } from "../model/words";
import { plain } from "../views/run";
import { Trouble, Waiting } from "./canvas";
import { Coloured } from "./code";
import { head, useLoaded } from "./content";
import type { Item } from "./items";

const MOST = 500_000;
const MAX_DEPTH = 40;

export function MarkdownView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => head(item, MOST, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  return (
    <>
      <Markdown text={loaded.value.text} />
      {loaded.value.cut && <p class="soft small">The first {count(MOST)} bytes. Download it for the rest.</p>}
    </>
  );
}

export function Markdown({ text }: { text: string }): JSX.Element {
  const tokens = useMemo(() => lexer(text), [text]);
  return <article class="prose">{blocks(tokens, 0)}</article>;
}

function blocks(tokens: Token[], depth: number): ComponentChildren {
  return depth > MAX_DEPTH ? null : tokens.map((token, index) => <Block key={index} token={token as Tokens.Generic} depth={depth + 1} />);
}

function Block({ token, depth }: { token: Tokens.Generic; depth: number }): JSX.Element | null {
  switch (token.type) {
    case "space": return null;
    case "heading": return heading(token as Tokens.Heading, depth);
    case "paragraph": return <p>{inline(token.tokens, depth)}</p>;
    case "blockquote": return <blockquote>{blocks(token.tokens ?? [], depth)}</blockquote>;
    case "code": return <Coloured text={String(token["text"])} language={language(String(token["lang"] ?? ""))} />;
    case "hr": return <hr />;
    case "list": return list(token as Tokens.List, depth);
    case "table": return table(token as Tokens.Table, depth);
    case "text": return <>{inline(token.tokens ?? [token], depth)}</>;
    default: return <p>{plain(token.raw)}</p>;
  }
}

function heading(token: Tokens.Heading, depth: number): JSX.Element {
  // Under the page's own heading.
  const Level = `h${Math.min(6, token.depth + 1)}` as "h2";
  return <Level>{inline(token.tokens, depth)}</Level>;
}

function list(token: Tokens.List, depth: number): JSX.Element {
  const items = token.items.map((item, index) => (
    <li key={index}>{item.task && <input type="checkbox" disabled checked={item.checked ?? false} aria-label={item.checked ? "done" : "open"} />}{blocks(item.tokens, depth)}</li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function table(token: Tokens.Table, depth: number): JSX.Element {
  return (
    <div class="scroll"><table class="grid">
      <thead><tr>{token.header.map((cell, index) => <th key={index} scope="col">{inline(cell.tokens, depth)}</th>)}</tr></thead>
      <tbody>{token.rows.map((row, at) => <tr key={at}>{row.map((cell, index) => <td key={index}>{inline(cell.tokens, depth)}</td>)}</tr>)}</tbody>
    </table></div>
  );
}

function inline(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return depth > MAX_DEPTH ? null : (tokens ?? []).map((token, index) => <Inline key={index} token={token as Tokens.Generic} depth={depth + 1} />);
}

function Inline({ token, depth }: { token: Tokens.Generic; depth: number }): JSX.Element {
  switch (token.type) {
    case "strong": return <strong>{inline(token.tokens, depth)}</strong>;
    case "em": return <em>{inline(token.tokens, depth)}</em>;
    case "del": return <del>{inline(token.tokens, depth)}</del>;
    case "codespan": return <code>{plain(String(token["text"]))}</code>;
    case "br": return <br />;
    case "link": return <Link href={String(token["href"])}>{inline(token.tokens, depth)}</Link>;
    case "image": return <span class="badge" title={String(token["href"])}>picture: {plain(String(token["text"] || token["href"]))}</span>;
    case "escape": return <>{plain(String(token["text"]))}</>;
    case "text": return <>{token.tokens === undefined ? plain(decoded(String(token["raw"]))) : inline(token.tokens, depth)}</>;
    default: return <>{plain(token.raw)}</>;
  }
}

export function Link({ href, children }: { href: string; children: ComponentChildren }): JSX.Element {
  return safe(href) ? <a href={href} target="_blank" rel="noopener noreferrer nofollow">{children}</a> : <span title={`This address is not opened: ${plain(href).slice(0, 200)}`}>{children}</span>;
}

export function safe(href: string): boolean {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(href).protocol);
  } catch {
    return false;
  }
}

function language(named: string): string | null {
  const known: Record<string, string> = { py: "python", python: "python", js: "javascript", javascript: "javascript", ts: "typescript", typescript: "typescript", sh: "bash", bash: "bash", json: "json", sql: "sql", html: "xml", xml: "xml", yaml: "yaml", yml: "yaml", toml: "ini", rust: "rust", css: "css", diff: "diff" };
  return known[named.trim().split(/\s/)[0]?.toLowerCase() ?? ""] ?? null;
}

const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

function decoded(text: string): string {
  return text.replaceAll(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity] ?? entity);
}
