/** The pieces pages are made of: heads, buttons, links, pictures. Source: requirements S3-102 and S3-115. */

import { safeHref } from "../bridge/arguments.ts";
import { h, said, spoken } from "./dom.ts";
import type { Child, Props } from "./dom.ts";
import { icon } from "./icons.ts";
import type { IconName } from "./icons.ts";
import type { Scene } from "./page.ts";

export function head(title: string, sub: string, ...more: Child[]): HTMLElement {
  const titled = h("h1", { class: "title" }, said(title, "clamp"));
  return h("header", { class: "head" }, h("div", { class: "head-text" }, titled, sub === "" ? null : h("p", { class: "muted sub" }, said(sub))), more);
}

export type Rank = "primary" | "secondary" | "quiet";

export function button(label: Child, rank: Rank, onclick: () => void, props: Props = {}): HTMLButtonElement {
  return h("button", { type: "button", class: `button ${rank}`, onclick, ...props }, label);
}

export function iconButton(name: IconName, label: string, onclick: () => void, props: Props = {}): HTMLButtonElement {
  return h("button", { type: "button", class: "button quiet round", "aria-label": label, title: label, onclick, ...props }, icon(name));
}

/** Wider view and back, where the host has one. */
export function modeButton(scene: Scene): HTMLElement {
  const wide = scene.mode === "fullscreen";
  const ask = (): void => void scene.attempt(scene.runtime.requestDisplayMode({ mode: wide ? "inline" : "fullscreen" }));
  return iconButton(wide ? "collapse" : "expand", wide ? "Back to the conversation" : "Open full screen", ask, { key: "mode", class: "button quiet round expands" });
}

/** A link that the host opens; a text where it may not open the address. */
export function link(scene: Scene, address: unknown, label: Child, props: Props = {}): HTMLElement {
  const href = safeHref(address);
  if (href === undefined) return h("span", { dir: "auto", ...props }, label);
  const onclick = (event: MouseEvent): void => {
    event.preventDefault();
    void scene.attempt(scene.runtime.openExternal({ href }));
  };
  return h("a", { href, target: "_blank", rel: "noopener noreferrer", dir: "auto", onclick, ...props }, label);
}

/** Send a message as the reader. */
export function follow(scene: Scene, prompt: string): void {
  void scene.attempt(scene.runtime.sendFollowUpMessage({ prompt }), "Sent to the conversation");
}

/** A picture that keeps its proportions; its first letter where it cannot load. */
export function picture(address: string | undefined, alt: string, fallback: string): HTMLElement {
  const letter = h("span", { class: "picture-letter", "aria-hidden": "true" }, [...fallback.trim()][0]?.toUpperCase() ?? "·");
  const frame = h("span", { class: "picture" }, letter);
  frame.style.setProperty("--hue", String(hue(fallback)));
  if (address === undefined) {
    frame.append(spoken(alt));
    return frame;
  }
  const image = h("img", { src: address, alt, loading: "lazy", decoding: "async", referrerpolicy: "no-referrer" });
  image.addEventListener("load", () => frame.classList.add("loaded"));
  image.addEventListener("error", () => image.replaceWith(spoken(alt)));
  frame.append(image);
  return frame;
}

export function chips(values: readonly string[], max: number): HTMLElement | null {
  if (values.length === 0) return null;
  const shown = values.slice(0, max).map((value) => h("li", { class: "chip" }, said(value)));
  const rest = values.length - shown.length;
  return h("ul", { class: "chips" }, shown, rest > 0 ? h("li", { class: "chip" }, `+${rest}`, spoken(" more")) : null);
}

function hue(source: string): number {
  let sum = 0;
  for (const character of source.slice(0, 64)) sum = (sum * 31 + (character.codePointAt(0) ?? 0)) % 360;
  return sum;
}
