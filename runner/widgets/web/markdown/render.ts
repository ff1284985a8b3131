/** Draw Markdown as elements. Links go through the host; pictures stay placeholders; nothing hidden stays hidden. */

import { safeHref } from "../bridge/arguments.ts";
import { h, spoken } from "../lib/dom.ts";
import type { Child } from "../lib/dom.ts";
import { HIDDEN } from "../lib/hidden.ts";
import { icon } from "../lib/icons.ts";
import type { Scene } from "../lib/page.ts";
import { link } from "../lib/parts.ts";
import type { Block, ListItem } from "./blocks.ts";
import { inlines } from "./inline.ts";
import { textOf } from "./inline.ts";
import type { Inline } from "./inline.ts";
import { leadsTo, namesAnotherHost } from "./links.ts";

// More elements than anyone reads, and fewer than make a browser slow.
const MAX_ELEMENTS = 5_000;
const HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"] as const;

export class Renderer {
  readonly #scene: Scene;
  readonly #above: number;
  /** The level of the heading before; the next one goes at most one deeper. */
  #level: number;
  #left = MAX_ELEMENTS;

  /** `above`: 1 where the page has a heading of its own already, else 0. */
  constructor(scene: Scene, above: 0 | 1) {
    this.#scene = scene;
    this.#above = above;
    this.#level = above;
  }

  /** Whether the document had more elements than were drawn. */
  get cut(): boolean {
    return this.#left < 0;
  }

  draw(list: readonly Block[]): Child {
    return list.map((block) => (this.#affords() ? this.#block(block) : null));
  }

  #affords(): boolean {
    if (this.#left >= 0) this.#left -= 1;
    return this.#left >= 0;
  }

  #block(block: Block): Child {
    switch (block.kind) {
      case "heading":
        return this.#heading(block.level, block.text);
      case "paragraph":
        return h("p", { dir: "auto" }, this.#inline(inlines(block.text)));
      case "code":
        return h("pre", { tabindex: "0", dir: "ltr", role: "region", "aria-label": "Code" }, h("code", null, visible(block.text)));
      case "rule":
        return h("hr");
      case "quote":
        return h("blockquote", { dir: "auto" }, this.draw(block.children));
      case "list":
        return this.#list(block.ordered, block.start, block.items);
      case "table":
        return this.#table(block.aligned, block.head, block.rows);
    }
  }

  #heading(level: number, source: string): Child {
    this.#level = Math.min(level + this.#above, this.#level + 1, 6);
    return h(HEADINGS[this.#level - 1] ?? "h6", { dir: "auto" }, this.#inline(inlines(source)));
  }

  #list(ordered: boolean, start: number, items: readonly ListItem[]): Child {
    const lines = items.map(({ done, children }) => {
      if (!this.#affords()) return null;
      const only = children.length === 1 && children[0]?.kind === "paragraph" ? children[0] : undefined;
      const content = only === undefined ? this.draw(children) : this.#inline(inlines(only.text));
      if (done === undefined) return h("li", { dir: "auto" }, content);
      const box = h("span", { class: done ? "task done" : "task", "aria-hidden": "true" }, done ? "✓" : "");
      return h("li", { dir: "auto", class: "task-item" }, box, spoken(done ? "Done: " : "To do: "), content);
    });
    return ordered ? h("ol", { start: start === 1 ? undefined : start }, lines) : h("ul", null, lines);
  }

  #table(aligned: readonly string[], head: readonly string[], rows: readonly string[][]): Child {
    const cell = (tag: "th" | "td", source: string, place: number): HTMLElement =>
      h(tag, { scope: tag === "th" ? "col" : undefined, class: `to-${aligned[place] ?? "start"}`, dir: "auto" }, this.#inline(inlines(source)));
    const top = h("thead", null, h("tr", null, head.map((source, place) => (source === "" ? h("td") : cell("th", source, place)))));
    const body = h("tbody", null, rows.map((row) => (this.#affords() ? h("tr", null, row.map((source, place) => cell("td", source, place))) : null)));
    return h("div", { class: "sideways", tabindex: "0", role: "region", "aria-label": "Table, scrolls sideways" }, h("table", null, top, body));
  }

  #inline(list: readonly Inline[]): Child {
    return list.map((one): Child => {
      if (!this.#affords()) return null;
      switch (one.kind) {
        case "text":
          return visible(one.text);
        case "code":
          return h("code", { dir: "ltr" }, visible(one.text));
        case "break":
          return h("br");
        case "image":
          return this.#image(one.alt, one.address);
        case "link":
          return this.#link(one.address, one.children);
        default:
          return h(one.kind, null, this.#inline(one.children));
      }
    });
  }

  #link(address: string, children: readonly Inline[]): Child {
    const content = this.#inline(children.filter(({ kind }) => kind !== "link"));
    const href = safeHref(address);
    if (href === undefined) return h("span", null, this.#inline(children));
    const drawn = link(this.#scene, href, children.some(({ kind }) => kind === "link") ? visible(textOf(children)) : content, { title: href });
    if (!namesAnotherHost(textOf(children), href)) return drawn;
    return [drawn, h("span", { class: "leads", dir: "ltr" }, ` (leads to ${leadsTo(href)})`)];
  }

  /** A picture from elsewhere would tell its server who reads; the reader may go there. */
  #image(alt: string, address: string): Child {
    const label = [icon("image", "icon small-icon"), visible(alt || "Picture")];
    return safeHref(address)?.startsWith("http") ? link(this.#scene, address, label, { class: "placeholder" }) : h("span", { class: "placeholder" }, label);
  }
}

function visible(source: string): Child {
  return source.split(HIDDEN).map((piece, place) => {
    if (place % 2 === 0) return piece;
    const code = (piece.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
    return h("span", { class: "hidden-character", title: "A character without a shape of its own" }, `U+${code}`);
  });
}
