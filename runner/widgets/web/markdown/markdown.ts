/**
 * Markdown as elements of any kind: markdown-it parses it, and only the elements named here are made.
 *
 * Raw HTML is text, pictures are only named, and control characters are visible. Source: CommonMark 0.31, tables of GFM.
 */

import MarkdownIt from "markdown-it";
import type { Token } from "markdown-it";

/** Longer texts are shown as they are written: up to here any text takes less than a second. */
export const MOST = 100_000;
// More elements than anyone reads, and fewer than make a browser slow.
const MOST_ELEMENTS = 10_000;
// Deeper than anyone indents.
const MOST_LEVELS = 20;

/** How a page makes the elements of a document. */
export interface Maker<N> {
  element: (tag: string, props: Record<string, unknown>, children: N[]) => N;
  text: (source: string) => N;
  code: (source: string, language: string) => N;
  link: (address: string, text: string, children: N[]) => N;
  picture: (alt: string, address: string) => N;
  table: (children: N[]) => N;
  task: (done: boolean) => N;
}

const parser = new MarkdownIt({ html: false, linkify: true, maxNesting: MOST_LEVELS });
// The maker decides which addresses are links. Text without a scheme is not an address.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.validateLink = () => true;
parser.normalizeLink = (address) => address;
parser.normalizeLinkText = (text) => text;

/** List the source of each block at the top of a document, and whether it is a heading. */
export function blocks(source: string): { source: string; heading: boolean }[] {
  const lines = source.split("\n");
  return parser.parse(source.slice(0, MOST), {}).flatMap(({ level, nesting, map, type }) => {
    return level > 0 || nesting < 0 || map === null ? [] : [{ source: lines.slice(...map).join("\n"), heading: type === "heading_open" }];
  });
}

/** Draw a document below a heading of the level `above`; `cut` where it had more than was drawn. One that is too long or too deep is code. */
export function draw<N>(source: string, above: 0 | 1, maker: Maker<N>): { children: N[]; cut: boolean } {
  if (source.length > MOST) return { children: [maker.code(source, "")], cut: false };
  let left = MOST_ELEMENTS;
  let level: number = above;

  const nodes = (tokens: readonly Token[]): N[] => {
    const stack: { open: Token | undefined; at: number; children: N[] }[] = [{ open: undefined, at: 0, children: [] }];
    const close = (): void => {
      const last = stack.pop();
      if (last?.open !== undefined) stack.at(-1)?.children.push(...wrapped(last.open, last.children, () => textOf(inside(tokens, last.at))));
    };
    for (const [at, token] of tokens.entries()) {
      left -= 1;
      // The parser drops what nests deeper: the source shows all of it.
      if (token.level >= MOST_LEVELS - 1) throw new RangeError("nested too deep");
      if (left < 0) break;
      if (token.nesting < 0) close();
      else if (token.nesting > 0) stack.push({ open: token, at, children: [] });
      else stack.at(-1)?.children.push(...leaf(token, tokens[at - 2]?.type === "list_item_open"));
    }
    while (stack.length > 1) close();
    return stack[0]?.children ?? [];
  };

  const leaf = (token: Token, first: boolean): N[] => {
    const { content } = token;
    switch (token.type) {
      case "inline": {
        const children = token.children ?? [];
        const task = first ? /^\[([ xX])\] /.exec(children[0]?.content ?? "") : null;
        if (task === null || children[0] === undefined) return nodes(children);
        children[0].content = children[0].content.slice(task[0].length);
        return [maker.task(task[1] !== " "), ...nodes(children)];
      }
      case "fence":
      case "code_block": return [maker.code(content.replace(/\n$/, ""), token.info.trim())];
      case "code_inline": return [maker.element("code", { dir: "ltr" }, [maker.text(content)])];
      case "image": return [maker.picture(textOf(token.children ?? []), String(token.attrGet("src") ?? ""))];
      case "hr": return [maker.element("hr", {}, [])];
      case "hardbreak": return [maker.element("br", {}, [])];
      case "softbreak": return [maker.text(" ")];
      default: return content === "" ? [] : [maker.text(content)];
    }
  };

  const wrapped = (open: Token, children: N[], text: () => string): N[] => {
    switch (open.type) {
      case "heading_open":
        level = Math.min(Number(open.tag.slice(1)) + above, level + 1, 6);
        return [maker.element(`h${level}`, { dir: "auto" }, children)];
      case "paragraph_open": return open.hidden ? children : [maker.element("p", { dir: "auto" }, children)];
      case "link_open": return [maker.link(String(open.attrGet("href") ?? ""), text(), children)];
      case "table_open": return [maker.table(children)];
      case "ordered_list_open": return [maker.element("ol", { start: open.attrGet("start") ?? undefined }, children)];
      case "th_open":
      case "td_open": {
        const side = { "text-align:center": "to-center", "text-align:right": "to-end" }[String(open.attrGet("style"))] ?? "to-start";
        const heads = open.tag === "th" && children.length > 0;
        return [maker.element(heads ? "th" : "td", { class: side, dir: "auto", scope: heads ? "col" : undefined }, children)];
      }
      case "blockquote_open":
      case "list_item_open": return [maker.element(open.tag, { dir: "auto" }, children)];
      case "bullet_list_open":
      case "thead_open":
      case "tbody_open":
      case "tr_open":
      case "strong_open":
      case "em_open":
      case "s_open": return [maker.element(open.tag === "s" ? "del" : open.tag, {}, children)];
      default: return children;
    }
  };

  try {
    return { children: nodes(parser.parse(source, {})), cut: left < 0 };
  } catch {
    return { children: [maker.code(source, "")], cut: false };
  }
}

/** The tokens between the one that opens a link and the one that closes it; no link is inside another. */
function inside(tokens: readonly Token[], opened: number): Token[] {
  const rest = tokens.slice(opened + 1, opened + 1_000);
  const end = rest.findIndex(({ type }) => type === "link_close");
  return end < 0 ? rest : rest.slice(0, end);
}

function textOf(tokens: readonly Token[]): string {
  return tokens.map((token) => (token.children === null ? token.content || (token.type.endsWith("break") ? " " : "") : textOf(token.children))).join("");
}
