/** What a search found, to scan: title, where it is, what it is about. */

import { safeHref } from "../bridge/arguments.ts";
import { own } from "../bridge/read.ts";
import type { Dict } from "../bridge/types.ts";
import { asRecord, dicts, field, listAt, listOrNone, words } from "../lib/data.ts";
import { h, said } from "../lib/dom.ts";
import { emptyState, mount } from "../lib/page.ts";
import type { Page, Scene } from "../lib/page.ts";
import { button, chips, follow, head, link, modeButton } from "../lib/parts.ts";

const STEP = 5;
const WIDE_STEP = 20;
const empty: Page["empty"] = { icon: "search", title: "No results", text: "Try other words, or fewer of them." };
let steps = 1;

mount({
  empty,
  draw(output, scene) {
    const record = asRecord(output, "results");
    const query = words(own(record, "query"), 300);
    const results = dicts(listOrNone(record, ["results", "items"]));
    if (results.length === 0) return emptyState(query === "" ? empty : { ...empty, title: `No results for “${query}”` });
    const shown = results.slice(0, steps * (scene.inline ? STEP : WIDE_STEP));
    const hidden = results.length - shown.length;
    const count = scene.format.count(results.length, "result", "results");
    const title = query === "" ? "Search results" : `“${query}”`;
    return [
      head(title, count, modeButton(scene)),
      h("ol", { class: "results" }, shown.map((result, place) => entry(scene, result, place))),
      h(
        "div",
        { class: "actions" },
        hidden > 0 ? button(`Show ${scene.format.number(Math.min(hidden, scene.inline ? STEP : WIDE_STEP))} more`, "primary", () => widen(scene, shown.length), { key: "more" }) : null,
        button("Compare these", "secondary", () => follow(scene, prompt(query)), { key: "compare" }),
      ),
    ];
  },
});

/** Show more, and go on reading at the first new one. */
function widen(scene: Scene, next: number): void {
  steps += 1;
  scene.redraw();
  queueMicrotask(() => document.querySelector<HTMLElement>(`[data-key="result:${next}"]`)?.focus());
}

function prompt(query: string): string {
  return query === "" ? "Compare the search results shown, and recommend one." : `Compare the results for “${query}”, and recommend one.`;
}

function entry(scene: Scene, result: Dict, place: number): HTMLElement {
  const title = field(result, ["title", "name", "id"], 300) || "Untitled";
  const url = own(result, "url");
  const tags = (listAt(result, ["tags"]) ?? []).map((tag) => words(tag, 60)).filter(Boolean);
  const description = field(result, ["description", "snippet"], 1_000);
  return h(
    "li",
    { class: "result" },
    h("h2", { class: "result-title" }, link(scene, url, title, { key: `result:${place}`, tabindex: safeHref(url) === undefined ? "-1" : undefined })),
    whereabouts(url),
    description === "" ? null : h("p", { class: "result-text clamp", dir: "auto" }, description),
    chips(tags, 6),
  );
}

/** Where a link leads, as people read it; its text if it is not a link. */
function whereabouts(url: unknown): HTMLElement | null {
  const href = safeHref(url);
  if (href === undefined) return words(url) === "" ? null : h("p", { class: "muted small" }, "No link: ", said(words(url, 120)));
  const { host, pathname } = new URL(href);
  const path = decoded(pathname).replace(/\/$/, "");
  return h("p", { class: "muted small address", dir: "ltr" }, host + (path.length > 40 ? `${path.slice(0, 39)}…` : path));
}

function decoded(path: string): string {
  try {
    return decodeURI(path);
  } catch {
    return path;
  }
}
