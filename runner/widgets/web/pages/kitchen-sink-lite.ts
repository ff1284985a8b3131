/** Everything the bridge offers, to look at and to try: what the host says, and what each method does here. */

import { METHOD_NAMES } from "../bridge/types.ts";
import type { Methods } from "../bridge/types.ts";
import { clip } from "../lib/data.ts";
import { h, spoken } from "../lib/dom.ts";
import type { Child } from "../lib/dom.ts";
import { mount } from "../lib/page.ts";
import type { Runtime, Scene } from "../lib/page.ts";
import { button, head, modeButton } from "../lib/parts.ts";

type Method = keyof Methods;

interface Trial {
  method: Method;
  well: boolean;
  said: string;
}

const MAX_TRIALS = 5;
const ABOUT: Record<Method, string> = {
  callTool: "Calls display_demo, if the host lets widgets call tools.",
  sendFollowUpMessage: "Writes a message as you.",
  uploadFile: "Hands a small text file to the host.",
  getFileDownloadUrl: "Asks where a file can be downloaded.",
  requestDisplayMode: "Asks for the full screen.",
  requestModal: "Asks for a dialog of the host.",
  notifyIntrinsicHeight: "Tells the host how high this page is.",
  openExternal: "Opens a web page.",
  requestClose: "Asks the host to close this widget.",
  setWidgetState: "Counts your tries, and keeps the count.",
};

let chosen: Method = "sendFollowUpMessage";
const trials: Trial[] = [];

mount({
  needsNothing: true,
  empty: { icon: "tools", title: "Nothing to try", text: "" },
  draw(output, scene) {
    const options = METHOD_NAMES.map((name) => h("option", { value: name, selected: name === chosen }, name));
    const onchange = (event: Event): void => {
      chosen = (event.target as HTMLSelectElement).value as Method;
      scene.redraw();
    };
    return [
      head("Kitchen sink", kinds(scene.runtime), modeButton(scene)),
      h(
        "form",
        { class: "try", onsubmit: (event: Event) => event.preventDefault() },
        h("label", { class: "small muted", for: "method" }, "Try a method of the bridge"),
        h("div", { class: "try-row" }, h("select", { id: "method", class: "field", onchange, key: "method", "aria-describedby": "about" }, options), button("Run", "primary", () => void run(scene), { key: "run" })),
        h("p", { id: "about", class: "small muted" }, ABOUT[chosen]),
      ),
      h("div", { "aria-live": "polite" }, log()),
      h("h2", { class: "subtitle" }, "What the host says"),
      facts(scene, output),
    ];
  },
});

function kinds(runtime: Runtime): string {
  const names = { openai: "This host gives the page window.openai", "mcp-app": "This host speaks MCP Apps", none: "No host: opened by itself" };
  return names[runtime.kind];
}

async function run(scene: Scene): Promise<void> {
  const method = chosen;
  let trial: Trial;
  try {
    const result = await perform(scene.runtime, method);
    trial = { method, well: true, said: result === undefined ? "done" : clip(JSON.stringify(result) ?? "done", 300) };
  } catch (error) {
    trial = { method, well: false, said: error instanceof Error ? error.message : String(error) };
  }
  trials.unshift(trial);
  trials.length = Math.min(trials.length, MAX_TRIALS);
  scene.redraw();
}

function perform(runtime: Runtime, method: Method): Promise<unknown> {
  const acts: Record<Method, () => Promise<unknown>> = {
    callTool: () => runtime.callTool("display_demo", {}),
    sendFollowUpMessage: () => runtime.sendFollowUpMessage({ prompt: "The demo widget says hello." }),
    uploadFile: () => runtime.uploadFile(new File(["hello"], "hello.txt", { type: "text/plain" })),
    getFileDownloadUrl: () => runtime.getFileDownloadUrl({ fileId: "demo" }),
    requestDisplayMode: () => runtime.requestDisplayMode({ mode: runtime.useDisplayMode() === "fullscreen" ? "inline" : "fullscreen" }),
    requestModal: () => runtime.requestModal({ title: "Demo" }),
    notifyIntrinsicHeight: () => runtime.notifyIntrinsicHeight({ height: document.body.scrollHeight }),
    openExternal: () => runtime.openExternal({ href: "https://modelcontextprotocol.io/" }),
    requestClose: () => runtime.requestClose(),
    setWidgetState: () => {
      const tries = tried(runtime) + 1;
      return runtime.setWidgetState({ modelContent: `The demo was tried ${tries} times.`, privateContent: { tries } });
    },
  };
  return acts[method]();
}

function tried(runtime: Runtime): number {
  const state = runtime.useWidgetState() as { privateContent?: { tries?: unknown } } | null;
  const tries = state?.privateContent?.tries;
  return typeof tries === "number" ? tries : 0;
}

function log(): Child {
  const line = ({ method, well, said }: Trial): HTMLElement =>
    h("li", { class: well ? "trial well" : "trial ill" }, h("code", null, method), spoken(well ? " worked: " : " failed: "), h("span", { class: "trial-said", dir: "auto" }, said));
  return trials.length === 0 ? null : h("ol", { class: "trials", "aria-label": "Latest tries" }, trials.map(line));
}

function facts(scene: Scene, output: unknown): Child {
  const { runtime } = scene;
  const { device, capabilities } = runtime.useUserAgent();
  const height = runtime.useMaxHeight();
  const insets = Object.values(runtime.useSafeArea().insets).map((pixels) => scene.format.number(pixels));
  const rows: [string, string][] = [
    ["Theme", runtime.useTheme()],
    ["Locale", runtime.useLocale() || `${scene.format.locale} (not said)`],
    ["Display mode", runtime.useDisplayMode()],
    ["View", runtime.useView().mode],
    ["Max height", height === undefined ? "no limit" : `${scene.format.number(height)} px`],
    ["Safe area", `${insets.join(" / ")} px`],
    ["Device", `${device.type}${capabilities.hover ? ", hover" : ""}${capabilities.touch ? ", touch" : ""}`],
    ["Number", scene.format.number(1_234_567.89)],
    ["Tool input", json(runtime.useToolInput())],
    ["Tool output", json(output)],
    ["Result metadata", json(runtime.useToolResponseMetadata())],
    ["Widget state", json(runtime.useWidgetState())],
  ];
  return h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", { class: "fact" }, h("dt", null, name), h("dd", { dir: "auto" }, value))));
}

function json(value: unknown): string {
  return value === null || value === undefined ? "none" : clip(JSON.stringify(value) ?? "none", 400);
}
