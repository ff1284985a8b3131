/**
 * Markdown: written as elements of the page, one by one. HTML in it is shown as text, pictures from elsewhere are only
 * named, links say where they lead. It is read as the widgets read it: in a time that grows with its length, and no deeper
 * than anyone indents.
 */
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { safeHref } from "../../../../widgets/web/bridge/arguments.ts";
import { isOwn } from "../../../../widgets/web/hosting/own.ts";
import { blocks, type Block } from "../../../../widgets/web/markdown/blocks.ts";
import { inlines, textOf, type Inline } from "../../../../widgets/web/markdown/inline.ts";
import { leadsTo, namesAnotherHost } from "../../../../widgets/web/markdown/links.ts";
import { plain } from "../model/plain";
import { Trouble, Waiting } from "./canvas";
import { Coloured } from "./code";
import { head, useLoaded } from "./content";
import type { Item } from "./items";
import { T } from "../texts/texts";

const MOST = 500_000;
// More elements than anyone reads, and fewer than hold the page up.
const MOST_ELEMENTS = 10_000;

export function MarkdownView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => head(item, MOST, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  return (
    <>
      <Markdown text={loaded.value.text} />
      {loaded.value.cut && <p class="soft small">{T.viewers.firstBytes(MOST)}</p>}
    </>
  );
}

export function Markdown({ text }: { text: string }): JSX.Element {
  const writer = useMemo(() => {
    const made = new Writer();
    return { children: made.blocks(blocks(text)), cut: made.cut };
  }, [text]);
  return (
    <>
      <article class="prose">{writer.children}</article>
      {writer.cut && <p class="soft small">{T.viewers.moreParts}</p>}
    </>
  );
}

/** Writes blocks as elements, as long as there are not too many. */
class Writer {
  #left = MOST_ELEMENTS;

  get cut(): boolean {
    return this.#left < 0;
  }

  blocks(list: readonly Block[]): ComponentChildren {
    return this.#each(list, (block) => this.#block(block));
  }

  #each<T>(list: readonly T[], write: (one: T, index: number) => ComponentChildren): ComponentChildren {
    const written: ComponentChildren[] = [];
    for (const [index, one] of list.entries()) {
      this.#left -= 1;
      if (this.#left < 0) break;
      written.push(write(one, index));
    }
    return written;
  }

  #block(block: Block): ComponentChildren {
    switch (block.kind) {
      case "heading": {
        // Under the page's own heading.
        const Level = `h${Math.min(6, block.level + 1)}` as "h2";
        return <Level>{this.#text(block.text)}</Level>;
      }
      case "paragraph": return <p>{this.#text(block.text)}</p>;
      case "quote": return <blockquote>{this.blocks(block.children)}</blockquote>;
      case "code": return <Coloured text={block.text} language={language(block.language)} />;
      case "rule": return <hr />;
      case "list": {
        const items = this.#each(block.items, ({ done, children }) => <li>{done !== undefined && <input type="checkbox" disabled checked={done} aria-label={done ? T.viewers.done : T.viewers.open} />}{this.#item(children)}</li>);
        return block.ordered ? <ol start={block.start}>{items}</ol> : <ul>{items}</ul>;
      }
      case "table": return (
        <div class="scroll"><table class="grid">
          <thead><tr>{this.#each(block.head, (cell, at) => <th scope="col" class={block.aligned[at] ?? ""}>{this.#text(cell)}</th>)}</tr></thead>
          <tbody>{this.#each(block.rows, (row) => <tr>{this.#each(row, (cell, at) => <td class={block.aligned[at] ?? ""}>{this.#text(cell)}</td>)}</tr>)}</tbody>
        </table></div>
      );
    }
  }

  #item(children: readonly Block[]): ComponentChildren {
    const [only] = children;
    return children.length === 1 && only?.kind === "paragraph" ? this.#text(only.text) : this.blocks(children);
  }

  #text(source: string): ComponentChildren {
    return this.#inlines(inlines(source));
  }

  #inlines(list: readonly Inline[]): ComponentChildren {
    return this.#each(list, (one) => this.#inline(one));
  }

  #inline(one: Inline): ComponentChildren {
    switch (one.kind) {
      case "text": return plain(decoded(one.text));
      case "code": return <code>{plain(one.text)}</code>;
      case "break": return <br />;
      case "image": return <span class="badge" title={plain(one.address)}>{T.viewers.picture(plain(one.alt || one.address))}</span>;
      case "strong": return <strong>{this.#inlines(one.children)}</strong>;
      case "em": return <em>{this.#inlines(one.children)}</em>;
      case "del": return <del>{this.#inlines(one.children)}</del>;
      // A link in the text of a link is text.
      case "link": return <Link address={one.address} text={textOf(one.children)}>{one.children.some(({ kind }) => kind === "link") ? plain(textOf(one.children)) : this.#inlines(one.children)}</Link>;
    }
  }
}

/** A link of a document, if it leads somewhere that a document may lead to; with the place, if its text names another. */
export function Link({ address, text, children }: { address: string; text: string; children: ComponentChildren }): JSX.Element {
  const href = safeHref(address);
  if (href === undefined) return <Closed address={address} why={T.viewers.notWeb}>{children}</Closed>;
  if (isOwn(new URL(href), location)) return <Closed address={address} why={T.viewers.own}>{children}</Closed>;
  const shown = text === address ? plain(text) : children;
  const link = <a href={href} title={href} target="_blank" rel="noopener noreferrer nofollow">{shown}</a>;
  return namesAnotherHost(text, href) ? <>{link} <span class="badge network">{T.viewers.leadsTo(plain(leadsTo(href)))}</span></> : link;
}

function Closed({ address, why, children }: { address: string; why: string; children: ComponentChildren }): JSX.Element {
  return <span class="closed" title={T.viewers.notOpened(plain(address).slice(0, 200), why)}>{children}</span>;
}

function language(named: string): string | null {
  const known: Record<string, string> = { py: "python", python: "python", js: "javascript", javascript: "javascript", ts: "typescript", typescript: "typescript", sh: "bash", bash: "bash", json: "json", sql: "sql", html: "xml", xml: "xml", yaml: "yaml", yml: "yaml", toml: "ini", rust: "rust", css: "css", diff: "diff" };
  return known[named.trim().split(/\s/)[0]?.toLowerCase() ?? ""] ?? null;
}

const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

function decoded(text: string): string {
  return text.replaceAll(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity] ?? entity);
}
