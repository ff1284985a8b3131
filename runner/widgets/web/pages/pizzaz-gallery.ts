/** Pictures as tiles; one of them large, with the ones before and after it. */

import { h, said, spoken } from "../lib/dom.ts";
import { readItems } from "../lib/items.ts";
import type { Item } from "../lib/items.ts";
import { emptyState, mount } from "../lib/page.ts";
import type { Page, Scene } from "../lib/page.ts";
import { head, iconButton, modeButton, picture } from "../lib/parts.ts";

const INLINE_TILES = 6;
const empty: Page["empty"] = { icon: "image", title: "No pictures", text: "This gallery is empty." };
let open: number | undefined;

mount({
  empty,
  draw(output, scene) {
    const { title, items, total } = readItems(output);
    if (items.length === 0) return emptyState(title === "" ? empty : { ...empty, title });
    const label = title || "Gallery";
    if (open !== undefined && open >= items.length) open = undefined;
    const at = open;
    const top = head(label, scene.format.count(total, "picture", "pictures"), modeButton(scene));
    return at === undefined ? [top, tiles(scene, items, label)] : [top, large(scene, items, at)];
  },
});

function tiles(scene: Scene, items: readonly Item[], label: string): HTMLElement {
  const shown = scene.inline ? items.slice(0, INLINE_TILES) : items;
  const hidden = items.length - shown.length;
  const tile = (item: Item, place: number): HTMLElement => {
    const last = hidden > 0 && place === shown.length - 1;
    const over = last ? h("span", { class: "tile-more" }, `+${scene.format.number(hidden)}`, spoken(" more pictures")) : null;
    const caption = item.title === "" || last ? null : h("span", { class: "tile-caption" }, said(item.title, "clamp one"));
    const enlarge = (): void => show(scene, place, "close");
    return h("li", null, h("button", { type: "button", class: "tile", onclick: enlarge, key: `tile:${place}` }, picture(item.image, `Enlarge: ${item.alt}`, item.title || item.alt), caption, over));
  };
  return h("ul", { class: "tiles", "aria-label": label }, shown.map(tile));
}

function large(scene: Scene, items: readonly Item[], at: number): HTMLElement {
  const item = items[at] as Item;
  const go = (to: number): void => show(scene, (to + items.length) % items.length);
  const onkeydown = (event: KeyboardEvent): void => {
    const forward = scene.format.direction === "rtl" ? -1 : 1;
    const by = { ArrowRight: forward, ArrowLeft: -forward }[event.key];
    if (event.key === "Escape") close(scene, at);
    else if (by !== undefined) go(at + by);
    else return;
    event.preventDefault();
  };
  return h(
    "section",
    { class: "large", onkeydown, "aria-label": "Enlarged picture" },
    h("figure", null, picture(item.image, item.alt, item.title || item.alt), h("figcaption", { "aria-live": "polite" }, said(item.title || item.alt, "large-title"), item.lines.map((line) => h("p", { class: "muted small", dir: "auto" }, line)))),
    h(
      "div",
      { class: "large-bar" },
      iconButton("previous", "Previous picture", () => go(at - 1), { key: "previous", disabled: items.length < 2 }),
      h("span", { class: "small muted" }, `${scene.format.number(at + 1)} / ${scene.format.number(items.length)}`),
      iconButton("next", "Next picture", () => go(at + 1), { key: "next", disabled: items.length < 2 }),
      iconButton("close", "Back to all pictures", () => close(scene, at), { key: "close" }),
    ),
  );
}

function show(scene: Scene, place: number, focus?: string): void {
  open = place;
  scene.redraw();
  if (focus !== undefined) focusOn(focus);
}

function close(scene: Scene, at: number): void {
  open = undefined;
  scene.redraw();
  focusOn(`tile:${at}`);
}

function focusOn(key: string): void {
  // After the redraw, which is queued as well.
  queueMicrotask(() => document.querySelector<HTMLElement>(`[data-key="${key}"]`)?.focus());
}
