/**
 * The frame of every page: finds the host, follows theme, language, direction and display mode, draws the page
 * from `toolOutput` and tells the host its height. A page is a function from data to elements.
 *
 * Source: requirements S3-101, S3-103, S3-104, S3-108 to S3-111 and S3-123.
 */

import { installBridge } from "../bridge.ts";
import { own } from "../bridge/read.ts";
import type { DisplayMode, Values } from "../bridge/types.ts";
import { h, spoken } from "./dom.ts";
import type { Child } from "./dom.ts";
import { BadData, clip } from "./data.ts";
import { Format } from "./format.ts";
import { icon } from "./icons.ts";
import type { IconName } from "./icons.ts";

export type Runtime = ReturnType<typeof installBridge>;

/** What a page may use while it is drawn. */
export interface Scene {
  readonly runtime: Runtime;
  readonly format: Format;
  readonly mode: DisplayMode;
  readonly inline: boolean;
  /** Draw again; whatever had the focus keeps it. */
  redraw(): void;
  /** Ask the host, and tell the reader if it cannot. */
  attempt(wish: Promise<unknown>, done?: string): Promise<boolean>;
  /** Say something to everyone, also to those who hear the page. */
  tell(message: string): void;
}

export interface Page {
  /** Draw from the data; `null` means no data. Throws `BadData` for what cannot be shown. */
  draw(output: unknown, scene: Scene): Child;
  /** Whether the page has something to show before the tool has answered. */
  needsNothing?: boolean;
  empty: { icon: IconName; title: string; text: string };
}

const DRAWN_ON = ["toolOutput", "locale", "displayMode", "call", "widgetState", "maxHeight"] as const satisfies readonly (keyof Values)[];
const TOAST_MS = 6_000;

export function mount(page: Page): void {
  const runtime = installBridge();
  const main = h("main", { class: "page" });
  const toast = h("div", { class: "toast", role: "status" });
  let planned = false;
  let toastEnds: ReturnType<typeof setTimeout> | undefined;

  const scene = (): Scene => {
    const mode = runtime.useDisplayMode();
    const told = own(runtime.useToolOutput(), "locale");
    const wanted = [runtime.useLocale(), typeof told === "string" ? told : "", navigator.language || ""];
    return { runtime, format: new Format(wanted), mode, inline: mode !== "fullscreen", redraw: plan, attempt, tell };
  };
  const tell = (message: string): void => {
    clearTimeout(toastEnds);
    toast.textContent = clip(message, 300);
    toastEnds = setTimeout(() => (toast.textContent = ""), TOAST_MS);
  };
  const attempt = async (wish: Promise<unknown>, done?: string): Promise<boolean> => {
    try {
      await wish;
    } catch (error) {
      tell(error instanceof Error ? error.message : String(error));
      return false;
    }
    if (done !== undefined) tell(done);
    return true;
  };
  const draw = (): void => {
    planned = false;
    const now = scene();
    follow(now);
    const focused = remember();
    main.replaceChildren(...children(page, now));
    main.setAttribute("aria-busy", String(waiting(page, runtime)));
    focused();
  };
  function plan(): void {
    if (planned) return;
    planned = true;
    queueMicrotask(draw);
  }

  document.body.append(main, toast);
  for (const key of DRAWN_ON) runtime.subscribe(key, plan);
  for (const key of ["theme", "safeArea"] as const) runtime.subscribe(key, () => follow(scene()));
  runtime.subscribe("call", (call) => {
    // Picture in picture is for something that goes on; it has just ended.
    if (call.state === "cancelled" && runtime.useDisplayMode() === "pip") runtime.requestClose().catch(() => undefined);
  });
  draw();
  reportHeight(runtime, main);
  runtime.ready.then(plan, plan);
}

function children(page: Page, scene: Scene): Node[] {
  const wrap = (child: Child): Node[] => [...h("div", null, child).childNodes];
  const call = scene.runtime.get("call");
  const output = scene.runtime.useToolOutput();
  if (call.state === "failed") return wrap(notice("The tool could not do this", call.message || "It gave no reason."));
  if (call.state === "cancelled") return wrap(notice("The call was cancelled", call.message));
  if (waiting(page, scene.runtime)) return wrap(skeleton());
  try {
    const drawn = output === null && page.needsNothing !== true ? null : page.draw(output, scene);
    return wrap(drawn === null ? emptyState(page.empty) : drawn);
  } catch (error) {
    if (!(error instanceof BadData)) console.error(error);
    const reason = error instanceof BadData ? error.message : "The data has a shape this page does not know.";
    return wrap(notice("This data cannot be shown", reason));
  }
}

function waiting(page: Page, runtime: Runtime): boolean {
  return page.needsNothing !== true && runtime.kind !== "none" && runtime.get("call").state === "waiting";
}

function follow({ runtime, format, mode }: Scene): void {
  const root = document.documentElement;
  root.dataset["theme"] = runtime.useTheme();
  root.dataset["mode"] = mode;
  root.style.colorScheme = runtime.useTheme();
  root.dir = format.direction;
  for (const [side, pixels] of Object.entries(runtime.useSafeArea().insets)) {
    root.style.setProperty(`--safe-${side}`, `${Number(pixels) || 0}px`);
  }
}

/** Keep what has the focus, to give it back to the element of the same key. */
function remember(): () => void {
  const active = document.activeElement;
  const key = active instanceof HTMLElement ? active.dataset["key"] : undefined;
  const caret = active instanceof HTMLInputElement ? active.selectionStart : null;
  return () => {
    if (key === undefined) return;
    const same = [...document.querySelectorAll<HTMLElement>("[data-key]")].find((element) => element.dataset["key"] === key);
    same?.focus({ preventScroll: true });
    if (same instanceof HTMLInputElement && caret !== null) same.setSelectionRange(caret, caret);
  };
}

function reportHeight(runtime: Runtime, main: HTMLElement): void {
  let last = 0;
  const report = (): void => {
    const height = Math.ceil(main.getBoundingClientRect().height);
    if (height === 0 || height === last || runtime.useDisplayMode() === "fullscreen") return;
    last = height;
    runtime.notifyIntrinsicHeight({ height }).catch(() => undefined);
  };
  if (typeof ResizeObserver === "function") new ResizeObserver(report).observe(main);
  else {
    window.addEventListener("resize", report);
    if (typeof MutationObserver === "function") new MutationObserver(report).observe(main, { childList: true, subtree: true });
    report();
  }
}

export function emptyState({ icon: name, title, text }: Page["empty"]): Child {
  return h("section", { class: "empty" }, icon(name, "empty-icon"), h("h1", { class: "empty-title" }, title), h("p", { class: "muted" }, text));
}

export function notice(title: string, text: string): Child {
  return h(
    "section",
    { class: "notice", role: "alert" },
    icon("warning"),
    h("div", null, h("h1", { class: "notice-title" }, title), text === "" ? null : h("p", { dir: "auto", class: "notice-text" }, clip(text, 1_000))),
  );
}

function skeleton(): Child {
  const bar = (size: string): HTMLElement => h("div", { class: `bar ${size}` });
  return h("div", { class: "skeleton" }, spoken("Waiting for the data"), bar("short"), bar("long"), bar("long"), bar("middle"));
}
