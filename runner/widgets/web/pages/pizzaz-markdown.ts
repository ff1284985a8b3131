/** A text in Markdown: its beginning in the conversation, all of it on the full screen. */

import { own } from "../bridge/read.ts";
import { safeHref } from "../bridge/arguments.ts";
import { BadData, asRecord, clip, field, kindOf, words } from "../lib/data.ts";
import { h, spoken } from "../lib/dom.ts";
import type { Child } from "../lib/dom.ts";
import { plain } from "../lib/hidden.ts";
import { icon } from "../lib/icons.ts";
import { emptyState, mount } from "../lib/page.ts";
import type { Page, Scene } from "../lib/page.ts";
import { button, head, link, modeButton } from "../lib/parts.ts";
import { leadsTo, namesAnotherHost } from "../markdown/links.ts";
import { blocks, draw, MOST } from "../markdown/markdown.ts";
import type { Maker } from "../markdown/markdown.ts";

const INLINE_CHARS = 1_000;
const empty: Page["empty"] = { icon: "text", title: "Nothing written", text: "The document is empty." };
let expanded = false;

mount({
  empty,
  draw(output, scene) {
    const record = typeof output === "string" ? { markdown: output } : asRecord(output, "markdown");
    const source = field(record, ["markdown", "text", "content"], MOST - 1);
    const wrong = ["markdown", "text", "content"].find((name) => typeof own(record, name) === "object" && own(record, name) !== null);
    if (source === "" && wrong !== undefined) throw new BadData(`“${wrong}” should be a text; the tool returned ${kindOf(own(record, wrong))}.`);
    const title = words(own(record, "title"), 200);
    if (source === "") return emptyState(title === "" ? empty : { ...empty, title });
    const all = blocks(source);
    const shown = scene.inline && !expanded ? beginning(all, source) : source;
    const titled = all[0]?.heading === true;
    const top = title !== "" ? head(title, "", modeButton(scene)) : h("div", { class: "corner" }, titled ? null : h("h1", { class: "spoken" }, "Document"), modeButton(scene));
    const written = draw(shown, title !== "" || !titled ? 1 : 0, maker(scene));
    const drawn = h("article", { class: "prose" }, written.children);
    const left = written.cut || source.length >= MOST ? h("p", { class: "muted small" }, "This document is too long to show all of it here.") : null;
    return [top, drawn, left, shown !== source ? more(scene) : null];
  },
});

function more(scene: Scene): HTMLElement {
  const read = (): void => {
    // The full screen where the host has one; the whole text here where it has none.
    scene.runtime.requestDisplayMode({ mode: "fullscreen" }).catch(() => {
      expanded = true;
      scene.redraw();
    });
  };
  return h("div", { class: "actions" }, button(["Read more", spoken(" of this document")], "primary", read, { key: "more" }));
}

/** The blocks that make a card: whole ones, except a first one that alone is too long. */
function beginning(all: ReturnType<typeof blocks>, source: string): string {
  const shown: typeof all = [];
  let room = INLINE_CHARS;
  for (const block of all) {
    if (shown.length > 0 && block.source.length > room) break;
    shown.push(block.source.length > 2 * INLINE_CHARS ? { ...block, source: clip(block.source, INLINE_CHARS) } : block);
    room -= block.source.length;
  }
  // A heading without its text says nothing.
  while (shown.length > 1 && shown.length < all.length && shown.at(-1)?.heading === true) shown.pop();
  const text = shown.map((block) => block.source).join("\n\n");
  return shown.length < all.length || text.length < all.map((block) => block.source).join("\n\n").length ? text : source;
}

/** Links go through the host; a picture from elsewhere would tell its server who reads, so that the reader may only go there. */
function maker(scene: Scene): Maker<Child> {
  return {
    element: (tag, props, children) => h(tag as "p", props, children),
    text: plain,
    code: (source) => h("pre", { tabindex: "0", dir: "ltr", role: "group", "aria-label": "Code" }, h("code", null, plain(source))),
    link: (address, text, children) => {
      const href = safeHref(address);
      if (href === undefined) return h("span", null, children);
      const leads = namesAnotherHost(text, href) ? h("span", { class: "leads", dir: "ltr" }, ` (leads to ${leadsTo(href)})`) : null;
      return [link(scene, href, children, { title: href }), leads];
    },
    picture: (alt, address) => {
      const label = [icon("image", "icon small-icon"), plain(alt || "Picture")];
      return safeHref(address)?.startsWith("http") === true ? link(scene, address, label, { class: "placeholder" }) : h("span", { class: "placeholder" }, label);
    },
    table: (children) => h("div", { class: "sideways", tabindex: "0", role: "group", "aria-label": "Table, scrolls sideways" }, h("table", null, children)),
    task: (done) => [h("span", { class: done ? "task done" : "task", "aria-hidden": "true" }, done ? "✓" : ""), spoken(done ? "Done: " : "To do: ")],
  };
}
