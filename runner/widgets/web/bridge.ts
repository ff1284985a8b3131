/**
 * The bridge for pages of anyone: put the built `bridge.js` into a script element before the page's own code.
 *
 * It gives the page `window.openai` in every kind of host, and `window.widgetRuntime` with the hooks.
 *
 * Source: requirements S3-124 to S3-138.
 */

import { hooksOf } from "./bridge/hooks.ts";
import type { Hooks } from "./bridge/hooks.ts";
import { openRuntime } from "./bridge/runtime.ts";
import type { Runtime } from "./bridge/runtime.ts";

declare global {
  interface Window {
    widgetRuntime?: Runtime & Hooks;
  }
}

export function installBridge(): Runtime & Hooks {
  const installed = window.widgetRuntime;
  if (installed !== undefined) return installed;
  const runtime = openRuntime();
  // On the runtime itself: a copy would freeze what its getters say.
  const whole = Object.assign(runtime, hooksOf(runtime));
  window.widgetRuntime = whole;
  return whole;
}

installBridge();
