/** Build elements. Data only ever becomes text nodes and checked attributes: there is no way to hand over markup. */

export type Child = Node | string | number | null | undefined | false | readonly Child[];

export interface Props {
  class?: string | undefined;
  /** Finds the element again after the page was redrawn, to restore the focus. */
  key?: string;
  onclick?: (event: MouseEvent) => void;
  oninput?: (event: Event) => void;
  onchange?: (event: Event) => void;
  onkeydown?: (event: KeyboardEvent) => void;
  onsubmit?: (event: Event) => void;
  [attribute: string]: unknown;
}

const SVG = "http://www.w3.org/2000/svg";
const EVENTS = ["onclick", "oninput", "onchange", "onkeydown", "onsubmit"] as const;

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props?: Props | null, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const name of EVENTS) {
    const listener = props?.[name];
    if (listener !== undefined) element.addEventListener(name.slice(2), listener as EventListener);
  }
  setAttributes(element, props ?? {});
  append(element, children);
  return element;
}

export function svg(tag: string, attributes: Record<string, unknown>, ...children: Child[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  append(element, children);
  return element;
}

/** Text of a person or a tool: it keeps its own direction and cannot turn that of its surroundings. */
export function said(content: string, className?: string): HTMLElement {
  return h("span", className === undefined || className === "" ? { dir: "auto" } : { dir: "auto", class: className }, content);
}

/** Text for those who hear the page. */
export function spoken(content: string): HTMLElement {
  return h("span", { class: "spoken" }, content);
}

function setAttributes(element: Element, props: Record<string, unknown>): void {
  for (const name of Object.keys(props)) {
    const value = props[name];
    if (value === undefined || value === null || value === false || name.startsWith("on")) continue;
    element.setAttribute(name === "key" ? "data-key" : name, value === true ? "" : String(value));
  }
}

function append(parent: Element, children: readonly Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (isChildren(child)) append(parent, child);
    else parent.append(child instanceof Node ? child : String(child));
  }
}

function isChildren(child: Child): child is readonly Child[] {
  return Array.isArray(child);
}
