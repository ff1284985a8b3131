/** Monochrome outline icons of 24 × 24, drawn with the colour of the text around them. */

import { svg } from "./dom.ts";

const PATHS = {
  chat: "M4 5.5h16v11H9.5L5 20v-3.5H4z",
  send: "M4 12 20 4l-5 16-3.5-6.5zM11.5 13.5 20 4",
  expand: "M14 4h6v6M20 4l-7 7M10 20H4v-6M4 20l7-7",
  collapse: "M20 10h-6V4M14 10l7-7M4 14h6v6M10 14l-7 7",
  search: "M10.5 4a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13zM15.5 15.5 20 20",
  link: "M10 5H5v14h14v-5M13 4h7v7M20 4l-9 9",
  table: "M4 5h16v14H4zM4 10h16M10 5v14",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  text: "M5 6h14M5 10h14M5 14h14M5 18h8",
  chart: "M4 20h16M7 20v-6M12 20V6M17 20v-9",
  up: "M6 15l6-6 6 6",
  down: "M6 9l6 6 6-6",
  flat: "M5 12h14",
  previous: "M15 5l-7 7 7 7",
  next: "M9 5l7 7-7 7",
  close: "M6 6l12 12M18 6 6 18",
  play: "M8 5l11 7-11 7z",
  pause: "M8 5v14M16 5v14",
  warning: "M12 4 2.5 20h19zM12 10v4.5M12 17.4h.01",
  tools: "M5 7h14M5 12h14M5 17h14M9 5v4M15 10v4M8 15v4",
  planet: "M12 6a6 6 0 1 1 0 12 6 6 0 0 1 0-12zM3 15.5c3 2.5 15-2.5 18-7",
  sort: "M8 10l4-4 4 4M8 14l4 4 4-4",
} as const;

export type IconName = keyof typeof PATHS;

/** An icon beside a text that says the same; alone, its button needs a name. */
export function icon(name: IconName, className = "icon"): SVGElement {
  const flip = name === "previous" || name === "next" || name === "send";
  return svg(
    "svg",
    { class: flip ? `${className} flips` : className, viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name] }),
  );
}
