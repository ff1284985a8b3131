/**
 * Buttons of views, pressed from elsewhere: what is asked for by name is done by the view's own button, which then has
 * the focus and says what came of it.
 */
import { go, route } from "./route";

/** Buttons that can be asked for, as their `data-press` has them. */
export type Pressed =
  | "run" | "reset" | "save" | "copy-link" | "upload" | "ping" | "compose" | "clear"
  | "saved-file" | "saved-pytest" | "saved-run" | "forget" | "export";

const LOADS_MS = 5000;

/** Go to a view, if one is not there, and press its button as soon as it can be pressed. A field gets the focus. */
export function press(button: Pressed, view: string, rest = ""): void {
  if (route.value.view !== view || (rest !== "" && route.value.rest !== rest)) go(view, rest);
  if (pressed(button)) return;
  // Views are loaded when somebody looks at them.
  const watching = new MutationObserver(() => { if (pressed(button)) watching.disconnect(); });
  watching.observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["disabled"] });
  setTimeout(() => watching.disconnect(), LOADS_MS);
}

function pressed(button: Pressed): boolean {
  const found = document.querySelector<HTMLElement>(`main [data-press="${button}"]`);
  if (found === null || found.matches(":disabled")) return false;
  found.focus();
  if (found.matches("button") || found.matches("input[type=file]")) found.click();
  return true;
}
