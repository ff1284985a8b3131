/** The solar system in motion: choose a planet, read about it, ask about it. */

import { own } from "../bridge/read.ts";
import { asRecord, field, words } from "../lib/data.ts";
import { h, said, svg } from "../lib/dom.ts";
import type { Child } from "../lib/dom.ts";
import { mount } from "../lib/page.ts";
import type { Scene } from "../lib/page.ts";
import { button, follow, head, iconButton, modeButton } from "../lib/parts.ts";
import { PLANETS } from "../lib/planets.ts";
import type { Planet } from "../lib/planets.ts";

const [WIDTH, HEIGHT] = [400, 232];
const FLAT = 0.52;
const SECONDS_OF_EARTH = 12;

let chosen: Planet | undefined;
let wished = "";
let moving = typeof matchMedia === "function" && !matchMedia("(prefers-reduced-motion: reduce)").matches;
let clock = 3;
let before: number | undefined;
let dots: [Planet, SVGElement][] = [];

mount({
  needsNothing: true,
  empty: { icon: "planet", title: "Solar system", text: "" },
  draw(output, scene) {
    const record = output === null ? {} : asRecord(output, "planets");
    const wish = field(record, ["planet", "planet_name", "focus"], 80);
    if (wish !== wished) {
      wished = wish;
      chosen = named(wish);
    }
    const unknown = wish !== "" && named(wish) === undefined ? h("p", { class: "muted small" }, "There is no planet named ", said(`“${wish}”.`)) : null;
    const motion = iconButton(moving ? "pause" : "play", moving ? "Pause" : "Play", () => turn(scene), { key: "motion" });
    const sky = orrery(scene);
    place();
    if (scene.mode === "pip") return h("div", { class: "pip" }, h("h1", { class: "spoken" }, "Solar system"), sky, h("div", { class: "pip-bar" }, h("span", { class: "small" }, chosen?.name ?? "Solar system"), motion));
    const title = words(own(record, "title"), 200) || "Solar system";
    const about = h("div", { class: "planet-about", "aria-live": "polite" }, chosen === undefined ? overview(scene) : details(scene, chosen));
    return [head(title, "", motion, modeButton(scene)), unknown, h("div", { class: "solar" }, sky, h("div", { class: "solar-side" }, choice(scene), about, action(scene)))];
  },
});

requestAnimationFrame(tick);

function named(name: string): Planet | undefined {
  const wanted = name.trim().toLowerCase();
  return PLANETS.find((planet) => planet.name.toLowerCase() === wanted);
}

function turn(scene: Scene): void {
  moving = !moving;
  scene.redraw();
}

function tick(now: number): void {
  if (moving && before !== undefined) {
    clock += Math.min(now - before, 100) / 1000;
    place();
  }
  before = now;
  requestAnimationFrame(tick);
}

// ---- the picture; distances and speeds are drawn by their roots, else nothing inside Jupiter's way could be seen

function orbit(planet: Planet): number {
  return 20 + 29 * Math.cbrt(planet.distance * 6.4);
}

function size(planet: Planet): number {
  return 2.4 + Math.sqrt(planet.radius) / 42;
}

function place(): void {
  for (const [planet, group] of dots) {
    const angle = (-2 * Math.PI * clock) / (SECONDS_OF_EARTH * Math.sqrt(planet.year / 365.2)) + planet.distance * 2;
    const [x, y] = [WIDTH / 2 + orbit(planet) * Math.cos(angle), HEIGHT / 2 + orbit(planet) * FLAT * Math.sin(angle)];
    group.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
  }
}

function orrery(scene: Scene): SVGElement {
  const centre = { cx: WIDTH / 2, cy: HEIGHT / 2 };
  const ways = PLANETS.map((planet) => svg("ellipse", { ...centre, rx: orbit(planet), ry: orbit(planet) * FLAT, class: planet === chosen ? "way chosen" : "way" }));
  dots = PLANETS.map((planet) => [planet, dot(scene, planet)]);
  const sun = [svg("circle", { ...centre, r: 17, class: "glow" }), svg("circle", { ...centre, r: 10, class: "sun" })];
  return svg("svg", { class: "sky", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "The Sun and the ways of the eight planets around it" }, ways, sun, dots.map(([, group]) => group));
}

/** A pointer may choose in the picture; the keyboard has the buttons below. */
function dot(scene: Scene, planet: Planet): SVGElement {
  const r = size(planet);
  const ring = planet.name === "Saturn" ? svg("ellipse", { rx: r * 1.7, ry: r * 0.5, class: "ring" }) : null;
  const halo = planet === chosen ? svg("circle", { r: r + 4, class: "halo" }) : null;
  const group = svg("g", { class: "planet" }, svg("circle", { r: Math.max(r, 11), class: "reach" }), halo, svg("circle", { r, fill: planet.colour }), ring);
  group.addEventListener("click", () => choose(scene, planet));
  return group;
}

function choose(scene: Scene, planet: Planet): void {
  chosen = chosen === planet ? undefined : planet;
  scene.runtime.setWidgetState({ modelContent: chosen === undefined ? null : { planet: chosen.name } }).catch(() => undefined);
  scene.redraw();
}

// ---- the words

function choice(scene: Scene): HTMLElement {
  const one = (planet: Planet): HTMLElement => {
    const mark = h("span", { class: "planet-mark", "aria-hidden": "true" });
    mark.style.backgroundColor = planet.colour;
    return button([mark, planet.name], "quiet", () => choose(scene, planet), { class: "button quiet pill", "aria-pressed": String(planet === chosen), key: planet.name });
  };
  return h("div", { class: "pills", role: "group", "aria-label": "Planets" }, PLANETS.map(one));
}

function overview(scene: Scene): Child {
  return h("p", { class: "muted" }, `${scene.format.count(PLANETS.length, "planet", "planets")} go around one star. Choose one to read about it. Sizes and distances are not to scale.`);
}

function details(scene: Scene, planet: Planet): Child {
  const { format } = scene;
  const rows: [string, string][] = [
    ["Radius", `${format.number(planet.radius)} km`],
    ["From the Sun", `${format.number(planet.distance)} AU`],
    ["Year", planet.year < 1000 ? format.count(planet.year, "day", "days") : `${format.number(Math.round(planet.year / 36.52) / 10)} years`],
    ["Day", format.count(planet.day, "hour", "hours")],
    ["Temperature", `${format.number(planet.temperature)} °C`],
    ["Known moons", format.number(planet.moons)],
  ];
  return [
    h("h2", { class: "subtitle" }, planet.name),
    h("p", null, planet.about),
    h("dl", { class: "facts tight" }, rows.map(([name, value]) => h("div", { class: "fact" }, h("dt", null, name), h("dd", null, h("bdi", null, value))))),
  ];
}

function action(scene: Scene): HTMLElement {
  const planet = chosen;
  const prompt = planet === undefined ? "Tell me something surprising about the solar system." : `Tell me more about ${planet.name}.`;
  return h("div", { class: "actions" }, button(planet === undefined ? "Surprise me" : `Ask about ${planet.name}`, "primary", () => follow(scene, prompt), { key: "ask" }));
}
