/** Documents, docx: their text with headings, lists, tables and links. Nothing in them runs, and no picture is fetched. */
import type { ComponentChildren, JSX } from "preact";
import { plain } from "../model/plain";
import { opened, readPart } from "./archive";
import { Trouble, Waiting } from "./canvas";
import { useLoaded } from "./content";
import type { Item } from "./items";
import { Link } from "./markdown";
import { attribute, child, children, parsed, relations, within } from "./xml";
import { T } from "../texts/texts";

const MOST_PART = 8_000_000;
// More elements than anyone reads, and fewer than hold the page up.
const MOST_ELEMENTS = 10_000;
const MOST_DEPTH = 12;

interface Read {
  body: Element;
  leads: ReturnType<typeof relations>;
  /** Of each style, the level of its heading. */
  levels: Map<string, number>;
  macros: boolean;
}

export function WordsView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, async (signal): Promise<Read> => {
    const archive = await opened(item, signal);
    const text = await readPart(archive, "word/document.xml", MOST_PART, signal);
    const body = text === null ? undefined : child(parsed(text).documentElement, "body");
    if (body === undefined) throw new Error(T.viewers.noDocument);
    const styles = await readPart(archive, "word/styles.xml", MOST_PART, signal);
    return {
      body,
      leads: relations(await readPart(archive, "word/_rels/document.xml.rels", MOST_PART, signal)),
      levels: styles === null ? new Map() : levelsOf(parsed(styles)),
      macros: archive.entries.some((each) => each.name.endsWith("vbaProject.bin")),
    };
  });
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  const writer = new Writer(loaded.value);
  const written = writer.blocks(loaded.value.body, 0);
  return (
    <div class="stack">
      {loaded.value.macros && <p class="notice">{T.viewers.macros}</p>}
      <article class="prose">{written}</article>
      {writer.cut && <p class="soft small">{T.viewers.moreParts}</p>}
    </div>
  );
}

function levelsOf(styles: Document): Map<string, number> {
  const levels = new Map<string, number>();
  for (const style of within(styles, "style")) {
    const name = (attribute(child(style, "name"), "val") ?? "").toLowerCase();
    const level = name === "title" ? 1 : Number(/^heading ([1-6])$/.exec(name)?.[1] ?? 0);
    if (level > 0) levels.set(attribute(style, "styleId") ?? "", level);
  }
  return levels;
}

/** Writes what it knows as elements, as long as there are not too many. */
class Writer {
  #left = MOST_ELEMENTS;
  readonly #read: Read;

  constructor(read: Read) {
    this.#read = read;
  }

  get cut(): boolean {
    return this.#left < 0;
  }

  blocks(parent: Element, depth: number): ComponentChildren {
    const written: ComponentChildren[] = [];
    for (const each of parent.children) {
      this.#left -= 1;
      if (this.#left < 0) break;
      if (each.localName === "p") written.push(this.#paragraph(each));
      else if (each.localName === "tbl" && depth < MOST_DEPTH) written.push(this.#table(each, depth));
      // Fields of forms and inserted parts hold blocks of their own.
      else if (each.localName === "sdt" && depth < MOST_DEPTH) written.push(this.blocks(child(each, "sdtContent") ?? each, depth + 1));
      else if (each.localName === "ins" && depth < MOST_DEPTH) written.push(this.blocks(each, depth + 1));
    }
    return written;
  }

  #paragraph(paragraph: Element): ComponentChildren {
    const style = child(paragraph, "pPr");
    const named = attribute(child(style, "pStyle"), "val") ?? "";
    const text = this.#inlines(paragraph, 0);
    const level = this.#read.levels.get(named);
    if (level !== undefined) {
      // Under the page's own heading.
      const Level = `h${Math.min(6, level + 1)}` as "h2";
      return <Level>{text}</Level>;
    }
    const list = child(style, "numPr");
    if (list === undefined && !/^List/.test(named)) return <p>{text}</p>;
    const deep = Math.min(8, Math.max(0, Number(attribute(child(list, "ilvl"), "val") ?? 0) || 0));
    return <ul style={{ marginInlineStart: `${deep * 1.4}rem` }}><li>{text}</li></ul>;
  }

  #table(table: Element, depth: number): ComponentChildren {
    return (
      <div class="scroll"><table class="grid"><tbody>{children(table, "tr").map((row) => {
        this.#left -= 1;
        return this.#left < 0 ? null : <tr>{children(row, "tc").map((cell) => <td>{this.blocks(cell, depth + 1)}</td>)}</tr>;
      })}</tbody></table></div>
    );
  }

  #inlines(parent: Element, depth: number): ComponentChildren {
    if (depth > MOST_DEPTH) return null;
    const written: ComponentChildren[] = [];
    for (const each of parent.children) {
      this.#left -= 1;
      if (this.#left < 0) break;
      if (each.localName === "r") written.push(this.#run(each));
      else if (each.localName === "hyperlink") {
        const lead = this.#read.leads.get(attribute(each, "id") ?? "");
        const text = this.#inlines(each, depth + 1);
        written.push(lead?.outside === true ? <Link address={lead.target} text={within(each, "t").map((part) => part.textContent).join("")}>{text}</Link> : text);
      } else if (["ins", "smartTag", "sdt", "sdtContent", "fldSimple"].includes(each.localName)) written.push(this.#inlines(each, depth + 1));
    }
    return written;
  }

  #run(run: Element): ComponentChildren {
    const parts: ComponentChildren[] = [];
    for (const each of run.children) {
      if (each.localName === "t") parts.push(plain(each.textContent ?? ""));
      else if (each.localName === "tab") parts.push(" ");
      else if (each.localName === "br" || each.localName === "cr") parts.push(<br />);
      else if (["drawing", "pict", "object"].includes(each.localName)) {
        const about = within(each, "docPr")[0];
        parts.push(<span class="badge">{T.viewers.picture(plain((about?.getAttribute("descr") || about?.getAttribute("name") || T.viewers.noName).slice(0, 200)))}</span>);
      }
    }
    const style = child(run, "rPr");
    let shown: ComponentChildren = parts;
    if (isOn(child(style, "b"))) shown = <strong>{shown}</strong>;
    if (isOn(child(style, "i"))) shown = <em>{shown}</em>;
    if (isOn(child(style, "strike"))) shown = <del>{shown}</del>;
    return shown;
  }
}

function isOn(mark: Element | undefined): boolean {
  return mark !== undefined && !["0", "false", "off"].includes(attribute(mark, "val") ?? "");
}
