/**
 * Three to eight things side by side, each with a picture, a few lines and at most one action.
 * Source: requirements S3-105 to S3-107.
 */

import { safeHref } from "../bridge/arguments.ts";
import { h, said, spoken } from "../lib/dom.ts";
import { readItems } from "../lib/items.ts";
import type { Item } from "../lib/items.ts";
import { emptyState, mount } from "../lib/page.ts";
import type { Page, Scene } from "../lib/page.ts";
import { button, follow, head, iconButton, modeButton, picture } from "../lib/parts.ts";

const MAX_INLINE = 8;
const empty: Page["empty"] = { icon: "image", title: "Nothing to show", text: "There are no suggestions this time." };

mount({
  empty,
  draw(output, scene) {
    const { title, items, total } = readItems(output);
    if (items.length === 0) return emptyState(title === "" ? empty : { ...empty, title });
    const shown = scene.inline ? items.slice(0, MAX_INLINE) : items;
    const count = shown.length < total ? `${scene.format.number(shown.length)} of ${scene.format.count(total, "item", "items")}` : scene.format.count(total, "item", "items");
    const label = title || "Suggestions";
    const cards = h("ul", { class: scene.inline ? "carousel" : "carousel wrapped", "aria-label": label, tabindex: scene.inline ? "0" : undefined, key: "cards" }, shown.map((item) => card(scene, item)));
    // A picture that arrives later may change what there is to scroll.
    const steps = scene.inline && shown.length > 1 ? [iconButton("previous", "Previous", () => step(cards, -1), { key: "previous" }), iconButton("next", "Next", () => step(cards, 1), { key: "next" })] : [];
    return [head(label, count, h("div", { class: "steps" }, steps), modeButton(scene)), cards];
  },
});

function step(cards: HTMLElement, by: number): void {
  const first = cards.firstElementChild;
  const width = first === null ? cards.clientWidth : first.getBoundingClientRect().width + 12;
  const forward = getComputedStyle(cards).direction === "rtl" ? -1 : 1;
  cards.scrollBy({ left: by * forward * width, behavior: calm() ? "auto" : "smooth" });
}

function calm(): boolean {
  return typeof matchMedia !== "function" || matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function card(scene: Scene, { title, alt, image, lines, badge, action }: Item): HTMLElement {
  return h(
    "li",
    { class: "card" },
    picture(image, image === undefined ? "" : alt, title || alt),
    h(
      "div",
      { class: "card-text" },
      h("h2", { class: "card-title" }, said(title || alt, "clamp one")),
      lines.map((line, place) => h("p", { class: place === 0 && lines.length > 1 ? "muted small clamp one" : "muted small clamp two", dir: "auto" }, line)),
      badge === "" ? null : h("p", { class: "badge" }, said(badge)),
    ),
    action === undefined ? null : cardAction(scene, title || alt, action),
  );
}

function cardAction(scene: Scene, title: string, { label, prompt, href }: NonNullable<Item["action"]>): HTMLElement | null {
  const address = safeHref(href);
  if (prompt === "" && address === undefined) return null;
  const act = (): void => (prompt === "" ? void scene.attempt(scene.runtime.openExternal({ href })) : follow(scene, prompt));
  return h("div", { class: "card-action" }, button([said(label), spoken(` ${title}`)], "secondary", act, { key: `act:${title}` }));
}
