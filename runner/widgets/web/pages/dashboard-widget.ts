/** An overview: figures with their trend, and recent conversations. */

import { own } from "../bridge/read.ts";
import type { Dict } from "../bridge/types.ts";
import { asRecord, dicts, field, listOrNone, words } from "../lib/data.ts";
import { h, said, spoken } from "../lib/dom.ts";
import type { Child } from "../lib/dom.ts";
import { icon } from "../lib/icons.ts";
import type { IconName } from "../lib/icons.ts";
import { emptyState, mount } from "../lib/page.ts";
import type { Page, Scene } from "../lib/page.ts";
import { button, follow, head, modeButton } from "../lib/parts.ts";

const INLINE = { stats: 6, chats: 4 };
const WIDE = { stats: 60, chats: 200 };
const empty: Page["empty"] = {
  icon: "chart",
  title: "Nothing to report yet",
  text: "Figures and recent conversations appear here once there are some.",
};

mount({
  empty,
  draw(output, scene) {
    const record = asRecord(output, "stats");
    const title = words(own(record, "headerText"), 200);
    const stats = dicts(listOrNone(record, ["stats"])).filter((stat) => field(stat, ["label", "value"]) !== "");
    const chats = dicts(listOrNone(record, ["recentChats"])).filter((chat) => field(chat, ["title", "id"]) !== "");
    if (stats.length === 0 && chats.length === 0) {
      return emptyState(title === "" ? empty : { ...empty, title });
    }
    return [head(title || "Dashboard", "", modeButton(scene)), figures(scene, stats), recent(scene, chats), summary(scene, stats)];
  },
});

function figures(scene: Scene, stats: readonly Dict[]): Child {
  if (stats.length === 0) return null;
  const shown = stats.slice(0, (scene.inline ? INLINE : WIDE).stats);
  return [h("ul", { class: "stats", "aria-label": "Figures" }, shown.map((stat) => figure(scene, stat))), more(scene, stats.length - shown.length, "figure", "figures")];
}

function figure(scene: Scene, stat: Dict): HTMLElement {
  const given = own(stat, "value");
  const value = typeof given === "number" ? scene.format.number(given) : words(given, 60);
  const change = words(own(stat, "change"), 60);
  const [way, name, sounds] = trend(change);
  return h(
    "li",
    { class: "stat" },
    h("p", { class: "muted small stat-label" }, said(field(stat, ["label"], 120))),
    h("p", { class: "stat-value" }, said(value || "–")),
    change === "" ? null : h("p", { class: `small change ${way}` }, icon(name, "icon small-icon"), spoken(sounds), said(change)),
  );
}

/** The sign says it, and a shape beside the colour. */
function trend(change: string): [string, IconName, string] {
  if (/^[(]?\s*[+▲↑]/.test(change)) return ["rises", "up", "up: "];
  if (/^[(]?\s*[-−–▼↓]/.test(change)) return ["falls", "down", "down: "];
  return ["stays", "flat", ""];
}

function recent(scene: Scene, chats: readonly Dict[]): Child {
  if (chats.length === 0) return null;
  const shown = chats.slice(0, (scene.inline ? INLINE : WIDE).chats);
  return [
    h("h2", { class: "subtitle" }, "Recent conversations"),
    h("ul", { class: "rows" }, shown.map((chat) => conversation(scene, chat))),
    more(scene, chats.length - shown.length, "conversation", "conversations"),
  ];
}

function conversation(scene: Scene, chat: Dict): HTMLElement {
  const title = field(chat, ["title", "id"], 200);
  const about = [field(chat, ["model"], 80), scene.format.moment(field(chat, ["time"], 80))].filter(Boolean);
  const facts = about.map((fact, place) => [place > 0 ? " · " : null, said(fact)]);
  return h("li", { class: "row" }, icon("chat"), h("div", { class: "row-text" }, h("p", { class: "row-title" }, said(title)), h("p", { class: "muted small" }, facts)));
}

function more(scene: Scene, hidden: number, one: string, many: string): Child {
  return hidden > 0 ? h("p", { class: "muted small" }, `${scene.format.count(hidden, `more ${one}`, `more ${many}`)}${scene.inline ? " in the full view" : ""}`) : null;
}

function summary(scene: Scene, stats: readonly Dict[]): Child {
  if (stats.length === 0) return null;
  const ask = (): void => follow(scene, "Explain the figures of this dashboard, and what stands out.");
  return h("div", { class: "actions" }, button("Explain these figures", "secondary", ask, { key: "explain" }));
}
