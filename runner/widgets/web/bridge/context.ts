/** Translate the context of an MCP Apps host into the values of `window.openai`. Source: MCP Apps 2026-01-26. */

import { asDisplayMode, asInsets, asTheme, finite, isDict, own, text } from "./read.ts";
import type { Dict, Values } from "./types.ts";

/** Hosts of our own say that they show a widget above their page, and with which parameters. */
export const VIEW = "toolcell/view";
const VARIABLE = /^--(color|font|border|shadow)-[a-z0-9-]+$/;
// A value is a colour, a size, a list of fonts or a shadow: nothing that ends the declaration or loads something.
const VALUE = /^(?!.*(url|image|src)\s*\()[^;{}<>\\@]{1,200}$/i;

export function valuesOfContext(context: Dict): Partial<Values> {
  const patch: Partial<Values> = {};
  const theme = asTheme(own(context, "theme"));
  const mode = asDisplayMode(own(context, "displayMode"));
  const insets = asInsets(own(context, "safeAreaInsets"));
  const locale = text(own(context, "locale"));
  if (theme !== undefined) patch.theme = theme;
  if (locale !== "") patch.locale = locale;
  if (insets !== undefined) patch.safeArea = { insets };
  if (mode !== undefined) {
    patch.displayMode = mode;
    patch.view = { mode };
  }
  const view = own(context, VIEW);
  if (isDict(view)) patch.view = { ...view, mode: text(own(view, "mode")) || (mode ?? "inline") };
  return { ...patch, ...dimensions(context), ...device(context) };
}

/** Let the host's colours, type and radii hold in this page. */
export function applyStyles(context: Dict, root: HTMLElement): void {
  const variables = own(own(context, "styles"), "variables");
  if (!isDict(variables)) return;
  for (const name of Object.keys(variables)) {
    const value = variables[name];
    if (VARIABLE.test(name) && typeof value === "string" && VALUE.test(value)) root.style.setProperty(name, value);
  }
}

function dimensions(context: Dict): Partial<Values> {
  const box = own(context, "containerDimensions");
  return isDict(box) ? { maxHeight: finite(own(box, "maxHeight")) ?? finite(own(box, "height")) } : {};
}

function device(context: Dict): Partial<Values> {
  const platform = text(own(context, "platform"));
  const can = own(context, "deviceCapabilities");
  if (platform === "" && !isDict(can)) return {};
  const type = platform === "mobile" ? "mobile" : platform === "" ? "unknown" : "desktop";
  const capabilities = { hover: own(can, "hover") !== false, touch: own(can, "touch") === true };
  return { userAgent: { device: { type }, capabilities } };
}
