/** Markdown as a list of blocks: CommonMark's everyday part, with tables and task lists. */

export type Block =
  | { kind: "heading"; level: number; text: string }
  | { kind: "paragraph"; text: string }
  | { kind: "code"; text: string; language: string }
  | { kind: "rule" }
  | { kind: "quote"; children: Block[] }
  | { kind: "list"; ordered: boolean; start: number; items: ListItem[] }
  | { kind: "table"; aligned: string[]; head: string[]; rows: string[][] };

export interface ListItem {
  /** Done or not, of a task; `undefined` for what is no task. */
  done: boolean | undefined;
  children: Block[];
}

const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}(?! )| {1,}|$)/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const SETEXT = /^ {0,3}(=+|-+)[ \t]*$/;

export function blocks(source: string): Block[] {
  return new Reader(source.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0).read();
}

class Reader {
  readonly #lines: readonly string[];
  readonly #depth: number;
  #at = 0;

  constructor(lines: readonly string[], depth: number) {
    this.#lines = lines;
    this.#depth = depth;
  }

  read(): Block[] {
    const found: Block[] = [];
    while (this.#at < this.#lines.length) {
      if (blank(this.#line())) this.#at += 1;
      else found.push(this.#block());
    }
    return found;
  }

  #block(): Block {
    const line = this.#line();
    if (FENCE.test(line)) return this.#fenced();
    if (line.startsWith("    ")) return this.#indented();
    if (HEADING.test(line)) return this.#heading();
    if (RULE.test(line)) return this.#rule();
    if (this.#depth < MAX_DEPTH && QUOTE.test(line)) return this.#quote();
    if (this.#depth < MAX_DEPTH && ITEM.test(line)) return this.#list();
    if (line.includes("|") && DIVIDER.test(this.#line(1)) && this.#line(1).includes("-")) return this.#table();
    return this.#paragraph();
  }

  #fenced(): Block {
    const opening = this.#line();
    const [, fence = "```", language = ""] = FENCE.exec(opening) ?? [];
    const closes = (line: string): boolean => line.trim().length >= fence.length && line.trim() === fence.charAt(0).repeat(line.trim().length);
    this.#at += 1;
    const lines = this.#while((line) => !closes(line));
    this.#at += 1;
    return { kind: "code", text: lines.join("\n"), language: language.trim() };
  }

  #indented(): Block {
    const lines = this.#while((line) => line.startsWith("    ") || blank(line));
    return { kind: "code", text: lines.map((line) => line.slice(4)).join("\n").trimEnd(), language: "" };
  }

  #heading(): Block {
    const line = this.#line();
    const marks = HEADING.exec(line)?.[0] ?? "";
    this.#at += 1;
    return { kind: "heading", level: marks.trim().length, text: line.slice(marks.length).trim().replace(/ #{1,6}$/, "") };
  }

  #rule(): Block {
    this.#at += 1;
    return { kind: "rule" };
  }

  #quote(): Block {
    const lines = this.#while((line) => QUOTE.test(line)).map((line) => line.replace(QUOTE, ""));
    return { kind: "quote", children: new Reader(lines, this.#depth + 1).read() };
  }

  #list(): Block {
    const [, , sign = "-"] = ITEM.exec(this.#line()) ?? [];
    const ordered = /\d/.test(sign);
    const items: ListItem[] = [];
    const last = sign.slice(-1);
    for (let match = ITEM.exec(this.#line()); match !== null && match[2]?.slice(-1) === last && !RULE.test(this.#line()); match = ITEM.exec(this.#line())) {
      items.push(this.#item(match[0].length));
      if (this.#at >= this.#lines.length) break;
    }
    return { kind: "list", ordered, start: ordered ? Number.parseInt(sign, 10) : 1, items };
  }

  #item(offset: number): ListItem {
    const first = this.#line().slice(offset);
    this.#at += 1;
    const indent = " ".repeat(Math.min(offset, 4));
    const rest = this.#while((line, place) => {
      if (blank(line)) return this.#line(1).startsWith(indent) || this.#again(place);
      return line.startsWith(" ".repeat(2)) ? line.startsWith(indent) || !ITEM.test(line) : !starts(line) && !blank(this.#lines[place - 1] ?? "");
    }).map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line.trimStart()));
    const task = /^\[([ xX])\] /.exec(first);
    const lines = [task === null ? first : first.slice(4), ...rest];
    return { done: task === null ? undefined : task[1] !== " ", children: new Reader(lines, this.#depth + 1).read() };
  }

  /** Whether an item of the list follows the blank line. */
  #again(place: number): boolean {
    return ITEM.test(this.#lines[place + 1] ?? "");
  }

  #table(): Block {
    const head = cells(this.#line());
    const aligned = cells(this.#line(1)).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "end") : "start"));
    this.#at += 2;
    const rows = this.#while((line) => !blank(line) && line.includes("|")).map(cells);
    return { kind: "table", aligned, head, rows: rows.map((row) => head.map((_, place) => row[place] ?? "")) };
  }

  #paragraph(): Block {
    const lines = [this.#line()];
    this.#at += 1;
    while (this.#at < this.#lines.length && !blank(this.#line())) {
      const under = SETEXT.exec(this.#line());
      if (under !== null) {
        this.#at += 1;
        return { kind: "heading", level: under[1]?.startsWith("=") ? 1 : 2, text: lines.join("\n").trim() };
      }
      if (starts(this.#line())) break;
      lines.push(this.#line());
      this.#at += 1;
    }
    return { kind: "paragraph", text: lines.map((line) => line.trimStart()).join("\n").trimEnd() };
  }

  #while(belongs: (line: string, place: number) => boolean): string[] {
    const from = this.#at;
    while (this.#at < this.#lines.length && belongs(this.#line(), this.#at)) this.#at += 1;
    return this.#lines.slice(from, this.#at);
  }

  #line(ahead = 0): string {
    return this.#lines[this.#at + ahead] ?? "";
  }
}

function blank(line: string): boolean {
  return line.trim() === "";
}

/** Whether a line begins a block, also without a blank line before it. */
function starts(line: string): boolean {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

function cells(line: string): string[] {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.replace(/\\\|/g, "|").trim());
}
