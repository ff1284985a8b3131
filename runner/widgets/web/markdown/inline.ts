/**
 * Inline Markdown as a tree. Never markup: HTML is text. Time grows with the length, whatever the text: a search
 * that failed once is not made again, and patterns have bounds.
 */

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "break" }
  | { kind: "image"; alt: string; address: string }
  | { kind: "link"; address: string; children: Inline[] }
  | { kind: "strong" | "em" | "del"; children: Inline[] };

const MAX_DEPTH = 8;
const LINK = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,500})\]\(\s{0,20}(<[^<>\n]{0,2000}>|[^\s()<]{0,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500}){0,5})(?:\s{1,20}(?:"[^"]{0,300}"|'[^']{0,300}'))?\s{0,20}\)/y;
const POINTED = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;
const MARKS: readonly [string, "strong" | "em" | "del"][] = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];

export function inlines(source: string, depth = 0): Inline[] {
  return new Reader(source, depth).read();
}

/** What is read of a tree, without what it looks like. */
export function textOf(list: readonly Inline[]): string {
  return list.map((one) => ("children" in one ? textOf(one.children) : one.kind === "image" ? one.alt : one.kind === "break" ? " " : one.text)).join("");
}

class Reader {
  readonly #source: string;
  readonly #depth: number;
  readonly #found: Inline[] = [];
  /** What has no end from some place on has none later either. */
  readonly #endless = new Set<string>();
  #at = 0;
  /** Text not taken yet: whole lines, and the one being read. Apart, so that no long text is ever copied twice. */
  #lines: string[] = [];
  #plain = "";

  constructor(source: string, depth: number) {
    this.#source = source;
    this.#depth = depth;
  }

  read(): Inline[] {
    while (this.#at < this.#source.length) {
      const character = this.#source.charAt(this.#at);
      if (!this.#special(character)) {
        this.#plain += character;
        this.#at += 1;
      }
    }
    this.#flush();
    return this.#found;
  }

  #special(character: string): boolean {
    switch (character) {
      case "\\":
        return this.#escape();
      case "\n":
        return this.#newline();
      case "`":
        return this.#code();
      case "!":
      case "[":
        return this.#link();
      case "<":
        return this.#address(POINTED, 1);
      case "h":
        return !WORD.test(this.#source.charAt(this.#at - 1)) && this.#address(BARE, 0);
      case "*":
      case "_":
      case "~":
        return this.#marked();
      default:
        return false;
    }
  }

  #escape(): boolean {
    const next = this.#source.charAt(this.#at + 1);
    if (next === "\n") this.#take({ kind: "break" }, 2);
    else if (PUNCTUATION.test(next)) {
      this.#plain += next;
      this.#at += 2;
    } else return false;
    return true;
  }

  #newline(): boolean {
    const hard = this.#plain.endsWith("  ");
    this.#lines.push(this.#plain.trimEnd());
    this.#plain = "";
    if (hard) this.#take({ kind: "break" }, 1);
    else {
      this.#lines.push(" ");
      this.#at += 1;
    }
    return true;
  }

  #code(): boolean {
    let end = this.#at;
    while (this.#source.charAt(end) === "`") end += 1;
    const fence = this.#source.slice(this.#at, end);
    const close = this.#endless.has(fence) ? -1 : this.#closingFence(fence, end);
    if (close < 0) {
      this.#endless.add(fence);
      this.#plain += fence;
      this.#at = end;
      return true;
    }
    const inner = this.#source.slice(end, close).replace(/\n/g, " ");
    const padded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
    this.#take({ kind: "code", text: padded ? inner.slice(1, -1) : inner }, close + fence.length - this.#at);
    return true;
  }

  #closingFence(fence: string, from: number): number {
    let at = this.#source.indexOf(fence, from);
    while (at >= 0) {
      let end = at;
      while (this.#source.charAt(end) === "`") end += 1;
      if (end - at === fence.length) return at;
      at = this.#source.indexOf(fence, end);
    }
    return -1;
  }

  #link(): boolean {
    LINK.lastIndex = this.#at;
    const match = LINK.exec(this.#source);
    if (match === null || this.#depth >= MAX_DEPTH) return false;
    const [whole, label = "", target = ""] = match;
    const address = unescaped(target.replace(/^<|>$/g, ""));
    if (whole.startsWith("!")) this.#take({ kind: "image", alt: unescaped(label), address }, whole.length);
    else this.#take({ kind: "link", address, children: inlines(label, this.#depth + 1) }, whole.length);
    return true;
  }

  #address(pattern: RegExp, group: 0 | 1): boolean {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#source);
    if (match === null) return false;
    const address = group === 1 ? (match[1] ?? "") : trimmed(match[0]);
    this.#take({ kind: "link", address, children: [{ kind: "text", text: address }] }, group === 1 ? match[0].length : address.length);
    return true;
  }

  #marked(): boolean {
    for (const [mark, kind] of MARKS) {
      if (!this.#source.startsWith(mark, this.#at)) continue;
      const close = this.#depth < MAX_DEPTH ? this.#closing(mark) : -1;
      if (close < 0) continue;
      const children = inlines(this.#source.slice(this.#at + mark.length, close), this.#depth + 1);
      this.#take({ kind, children }, close + mark.length - this.#at);
      return true;
    }
    return false;
  }

  #closing(mark: string): number {
    const start = this.#at + mark.length;
    const opens = /\S/.test(this.#source.charAt(start)) && !(mark.startsWith("_") && WORD.test(this.#source.charAt(this.#at - 1)));
    if (!opens || this.#endless.has(mark)) return -1;
    for (let at = this.#source.indexOf(mark, start + 1); at >= 0; at = this.#source.indexOf(mark, at + 1)) {
      // Of three marks the last two end what is strong; the first one ends what it holds.
      while (mark.length === 2 && this.#source.charAt(at + 2) === mark.charAt(0)) at += 1;
      if (this.#closes(mark, at)) return at;
    }
    this.#endless.add(mark);
    return -1;
  }

  #closes(mark: string, at: number): boolean {
    const [before, after] = [this.#source.charAt(at - 1), this.#source.charAt(at + mark.length)];
    if (!/\S/.test(before) || before === "\\") return false;
    if (mark.length === 1 && (before === mark || after === mark)) return false;
    return !(mark.startsWith("_") && WORD.test(after));
  }

  #take(inline: Inline, length: number): void {
    this.#flush();
    this.#found.push(inline);
    this.#at += length;
  }

  #flush(): void {
    const text = this.#lines.join("") + this.#plain;
    if (text !== "") this.#found.push({ kind: "text", text });
    this.#lines = [];
    this.#plain = "";
  }
}

function unescaped(source: string): string {
  return source.replace(/\\([!-/:-@[-`{-~])/g, "$1");
}

/** A bare address without the punctuation that ends the sentence. */
function trimmed(address: string): string {
  const short = address.replace(/[.,;:!?*_~]{1,20}$/, "");
  return short.endsWith(")") && !short.includes("(") ? short.slice(0, -1) : short;
}
