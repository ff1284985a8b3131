/** Things with a picture, as carousel and gallery show them. */

import { isDict, own } from "../bridge/read.ts";
import type { Dict } from "../bridge/types.ts";
import { asRecord, field, imageAddress, listOrNone, words } from "./data.ts";

export interface Item {
  title: string;
  alt: string;
  image: string | undefined;
  lines: string[];
  badge: string;
  action: { label: string; prompt: string; href: string } | undefined;
}

const LISTS = ["items", "images", "places", "results", "cards", "photos"] as const;
const IMAGES = ["image", "imageUrl", "src", "thumbnail", "url"] as const;
const MAX_ITEMS = 500;

export function readItems(output: unknown): { title: string; items: Item[]; total: number } {
  const record = asRecord(output, "items");
  const all = listOrNone(record, LISTS);
  const items = all.slice(0, MAX_ITEMS).map((one, place) => itemOf(one, place)).filter((item) => item !== undefined);
  return { title: words(own(record, "title"), 200), items, total: all.length };
}

function itemOf(one: unknown, place: number): Item | undefined {
  if (typeof one === "string") return { title: "", alt: `Picture ${place + 1}`, image: imageAddress(one), lines: [], badge: "", action: undefined };
  if (!isDict(one)) return undefined;
  const title = field(one, ["title", "name", "caption"], 200);
  const image = imageOf(one);
  if (title === "" && image === undefined) return undefined;
  const lines = [field(one, ["subtitle", "location"], 200), field(one, ["description", "detail"], 600)].filter(Boolean);
  const alt = field(one, ["alt"], 300) || (field(own(one, "image") as Dict, ["alt"], 300) || title || `Picture ${place + 1}`);
  return { title, alt, image, lines, badge: field(one, ["badge", "rating", "price"], 40), action: actionOf(one) };
}

function imageOf(one: Dict): string | undefined {
  for (const name of IMAGES) {
    const given = own(one, name);
    const address = imageAddress(isDict(given) ? (own(given, "src") ?? own(given, "url")) : given);
    if (address !== undefined) return address;
  }
  return undefined;
}

function actionOf(one: Dict): Item["action"] {
  const action = own(one, "action") ?? own(one, "cta");
  if (!isDict(action)) return undefined;
  const [label, prompt, href] = [field(action, ["label"], 60), field(action, ["prompt"], 500), field(action, ["href", "url"], 2_000)];
  return label === "" || (prompt === "" && href === "") ? undefined : { label, prompt, href };
}
