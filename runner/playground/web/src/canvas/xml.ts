/** XML of office documents. A document with declarations of its own is refused: none of these formats has any, and entities grow. */

/** Read a small document whole. */
export function parsed(text: string): Document {
  refuse(text);
  const read = new DOMParser().parseFromString(text, "application/xml");
  if (read.getElementsByTagName("parsererror").length > 0) throw new Error("its content is not XML");
  return read;
}

function refuse(text: string): void {
  if (text.includes("<!DOCTYPE") || text.includes("<!ENTITY")) throw new Error("it declares entities, which no document of its kind does");
}

/** All elements of that name, whatever their prefix. */
export function within(element: Element | Document, name: string): Element[] {
  return [...element.getElementsByTagNameNS("*", name)];
}

/** Relations of a part: where its ids lead. */
export function relations(text: string | null): Map<string, string> {
  return new Map(text === null ? [] : within(parsed(text), "Relationship").map((each) => [each.getAttribute("Id") ?? "", each.getAttribute("Target") ?? ""]));
}

export interface Tag {
  name: string;
  attributes: string;
  /** What it is: `<a>`, `</a>` or `<a/>`. */
  kind: "begin" | "end" | "empty";
  /** The text between the tag before and this one. */
  before: string;
}

const TAG = /<(\/?)(?:[\w.-]+:)?([\w.-]+)((?:[^<>"'/]|"[^"<]*"|'[^'<]*'|\/(?!>))*)(\/?)>/y;

/** Go through a large document tag by tag, in a time that grows with its length. */
export function* tags(text: string): Generator<Tag> {
  refuse(text);
  let at = 0;
  for (;;) {
    const next = text.indexOf("<", at);
    if (next < 0) return;
    const before = text.slice(at, next);
    if (text.startsWith("<?", next) || text.startsWith("<!", next)) {
      const close = text.startsWith("<!--", next) ? "-->" : ">";
      const end = text.indexOf(close, next);
      if (end < 0) return;
      at = end + close.length;
      continue;
    }
    TAG.lastIndex = next;
    const found = TAG.exec(text);
    if (found === null) throw new Error("its content is not XML");
    at = TAG.lastIndex;
    yield { name: found[2] ?? "", attributes: found[3] ?? "", kind: found[1] === "/" ? "end" : found[4] === "/" ? "empty" : "begin", before: decoded(before) };
  }
}

export function valueOf(attributes: string, name: string): string | null {
  const found = new RegExp(`(?:^|\\s)${name}\\s*=\\s*(?:"([^"]*)"|'([^']*)')`).exec(attributes);
  return found === null ? null : decoded(found[1] ?? found[2] ?? "");
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

function decoded(text: string): string {
  if (!text.includes("&")) return text;
  return text.replaceAll(/&(?:#x([0-9a-f]{1,6})|#([0-9]{1,7})|(amp|lt|gt|quot|apos));/gi, (whole, hex?: string, number?: string, name?: string) => {
    if (name !== undefined) return ENTITIES[name.toLowerCase()] ?? whole;
    const code = hex === undefined ? Number(number) : Number.parseInt(hex, 16);
    return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
