/** A text in Markdown: its beginning in the conversation, all of it on the full screen. */

import { own } from "../bridge/read.ts";
import { BadData, asRecord, clip, field, kindOf, words } from "../lib/data.ts";
import { h, spoken } from "../lib/dom.ts";
import { emptyState, mount } from "../lib/page.ts";
import type { Page, Scene } from "../lib/page.ts";
import { button, head, modeButton } from "../lib/parts.ts";
import { blocks } from "../markdown/blocks.ts";
import type { Block } from "../markdown/blocks.ts";
import { Renderer } from "../markdown/render.ts";

const MAX_CHARS = 200_000;
const INLINE_CHARS = 1_400;
const empty: Page["empty"] = { icon: "text", title: "Nothing written", text: "The document is empty." };
let expanded = false;

mount({
  empty,
  draw(output, scene) {
    const record = typeof output === "string" ? { markdown: output } : asRecord(output, "markdown");
    const source = field(record, ["markdown", "text", "content"], MAX_CHARS);
    const wrong = ["markdown", "text", "content"].find((name) => typeof own(record, name) === "object" && own(record, name) !== null);
    if (source === "" && wrong !== undefined) throw new BadData(`“${wrong}” should be a text; the tool returned ${kindOf(own(record, wrong))}.`);
    const title = words(own(record, "title"), 200);
    if (source === "") return emptyState(title === "" ? empty : { ...empty, title });
    const all = blocks(source);
    const { shown, cut } = scene.inline && !expanded ? beginning(all) : { shown: all, cut: false };
    const titled = all[0]?.kind === "heading";
    const top = title !== "" ? head(title, "", modeButton(scene)) : h("div", { class: "corner" }, titled ? null : h("h1", { class: "spoken" }, "Document"), modeButton(scene));
    const renderer = new Renderer(scene, title !== "" || !titled ? 1 : 0);
    const drawn = h("article", { class: "prose" }, renderer.draw(shown));
    const left = renderer.cut ? h("p", { class: "muted small" }, "This document is too long to show all of it here.") : null;
    return [top, drawn, left, cut ? more(scene) : null];
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
function beginning(all: readonly Block[]): { shown: Block[]; cut: boolean } {
  const shown: Block[] = [];
  let cut = false;
  let room = INLINE_CHARS;
  for (const block of all) {
    const size = JSON.stringify(block).length;
    if (shown.length > 0 && size > room) break;
    const short = size > 2 * INLINE_CHARS ? shortened(block) : block;
    cut ||= short !== block;
    shown.push(short);
    room -= size;
  }
  // A heading without its text says nothing.
  while (shown.length > 1 && shown.length < all.length && shown.at(-1)?.kind === "heading") shown.pop();
  return { shown, cut: cut || shown.length < all.length };
}

function shortened(block: Block): Block {
  if (block.kind === "paragraph" || block.kind === "code") return { ...block, text: clip(block.text, INLINE_CHARS) };
  if (block.kind === "list") return { ...block, items: block.items.slice(0, 8) };
  return block.kind === "table" ? { ...block, rows: block.rows.slice(0, 8) } : block;
}
