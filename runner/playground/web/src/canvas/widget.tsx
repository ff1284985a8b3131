/** The widget of a tool, in a host like those it will meet: both dialects, any theme, language, width and mode. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { WidgetHost, type Csp, type LogEntry, type ToolResult } from "../../../../widgets/web/host.ts";
import { info } from "../model/info";
import { isObject, toJson } from "../model/json";
import { request, type Params } from "../model/mcp";
import { start, type Run } from "../model/runs";
import { serverOfTool, toolOf, uriOf } from "../model/servers";
import { byName, type Tool } from "../model/tools";
import { abandon, askFirst, asksFirst, callForWidget } from "../model/widget_calls";
import { keepState, recallState } from "../model/widget_states";
import { plain } from "../views/run";
import { WidgetCalls } from "./widget_calls";

type Dialect = "mcp-app" | "skybridge";

interface Choice {
  dialect: Dialect;
  theme: "light" | "dark";
  locale: string;
  width: "full" | "820" | "390";
  mode: "inline" | "fullscreen" | "pip";
}

const MAX_LOG = 500;

export function WidgetView({ run, tool }: { run: Run; tool: Tool }): JSX.Element {
  const origin = info.value?.frames ?? null;
  const choice = useSignal<Choice>({ dialect: "mcp-app", theme: dark() ? "dark" : "light", locale: navigator.language, width: "full", mode: "inline" });
  const log = useSignal<Line[]>([]);
  if (origin === null) return <p class="problem">This server has no second origin to show widgets on. The operator sets <code>playground_frames_url</code>.</p>;
  const set = (part: Partial<Choice>): void => { choice.value = { ...choice.value, ...part }; };
  return (
    <div class="stack">
      <div class="row" role="group" aria-label="Host">
        <Pick label="Dialect" value={choice.value.dialect} choices={{ "mcp-app": "MCP Apps", skybridge: "ChatGPT Apps" }} pick={(dialect) => set({ dialect })} />
        <Pick label="Theme" value={choice.value.theme} choices={{ light: "Light", dark: "Dark" }} pick={(theme) => set({ theme })} />
        <Pick label="Width" value={choice.value.width} choices={{ full: "Full", "820": "820 px", "390": "390 px" }} pick={(width) => set({ width })} />
        <Pick label="Mode" value={choice.value.mode} choices={{ inline: "Inline", fullscreen: "Fullscreen", pip: "Picture in picture" }} pick={(mode) => set({ mode })} />
        <Pick label="Tool calls" value={asksFirst.value ? "ask" : "run"} choices={{ run: "Run at once", ask: "Ask first" }} pick={(how) => askFirst(how === "ask")} />
        <label class="small soft">Language <input class="input compact" value={choice.value.locale} size={7} onChange={(event) => set({ locale: event.currentTarget.value })} /></label>
      </div>
      <Frame key={`${run.id} ${choice.value.dialect}`} run={run} tool={tool} origin={origin} choice={choice.value} set={set}
        log={(entry) => { log.value = [...log.value, lineOf(entry)].slice(-MAX_LOG); }} />
      <WidgetCalls run={run} />
      <details>
        <summary class="small">Messages and violations <span class="soft">{log.value.length}</span></summary>
        <ol class="logs" tabIndex={0}>{log.value.map((entry, index) => (
          <li key={index} class={entry.bad ? "error" : ""}>
            <span>{entry.direction}</span><span>{entry.dropped ? "dropped" : ""}</span>
            <span>{entry.text}</span>
          </li>
        ))}</ol>
      </details>
    </div>
  );
}

interface Line {
  direction: string;
  dropped: boolean;
  bad: boolean;
  text: string;
}

/** What of a message is shown, made once: a widget may send many long ones. */
function lineOf({ direction, message, dropped }: LogEntry): Line {
  return {
    direction: direction === "from-widget" ? "widget →" : "→ widget",
    dropped: dropped !== undefined,
    bad: dropped !== undefined || message["method"] === "toolcell/violation",
    text: plain(`${dropped ?? ""} ${toJson(message)}`.trim().slice(0, 2000)),
  };
}

function Pick<T extends string>({ label, value, choices, pick }: { label: string; value: T; choices: Record<T, string>; pick: (value: T) => void }): JSX.Element {
  return (
    <label class="small soft">{label} <select class="input compact" value={value} onChange={(event) => pick(event.currentTarget.value as T)}>
      {(Object.entries(choices) as [T, string][]).map(([each, name]) => <option key={each} value={each}>{name}</option>)}
    </select></label>
  );
}

function Frame({ run, tool, origin, choice, set, log }: {
  run: Run;
  tool: Tool;
  origin: string;
  choice: Choice;
  set: (part: Partial<Choice>) => void;
  log: (entry: LogEntry) => void;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const host = useRef<WidgetHost | null>(null);
  const problem = useSignal<string | null>(null);
  const closed = useSignal(false);
  const link = useSignal<string | null>(null);
  const server = serverOfTool(tool.name);
  useEffect(() => {
    let left = false;
    void (async () => {
      try {
        const page = await pageOf(tool, server, choice.dialect);
        if (left || box.current === null) return;
        host.current = new WidgetHost({
          container: box.current,
          proxyUrl: `${origin}/widget?csp=${encodeURIComponent(JSON.stringify(page.csp))}`,
          html: page.html,
          title: `Widget of ${tool.name}`,
          csp: page.csp,
          context: context(choice),
          widgetState: recallState(run.id),
          visibility: (name) => visibility(toolOf(server, name)),
          actions: {
            callTool: (name, args) => callForWidget(run.id, toolOf(server, name), args as Params) as Promise<ToolResult>,
            sendMessage: (prompt) => log({ direction: "from-widget", message: { said: prompt } }),
            openLink: (url) => { link.value = url; },
            setDisplayMode: (mode) => { set({ mode }); return mode; },
            updateModelContext: (given) => log({ direction: "from-widget", message: { "context for the model": given } }),
            keepState: (state) => keepState(run.id, state),
            closed: () => { closed.value = true; },
            log,
          },
        });
        await host.current.ready;
        host.current.toolInput(run.args as Record<string, unknown>);
        if (run.result !== null) await host.current.toolResult(run.result as unknown as ToolResult);
      } catch (error) {
        problem.value = (error as Error).message;
      }
    })();
    return () => {
      left = true;
      abandon(run.id);
      void host.current?.close();
    };
  }, []);
  useEffect(() => {
    host.current?.setContext(context(choice));
  }, [choice.theme, choice.locale, choice.mode]);
  const width = choice.width === "full" ? "100%" : `${choice.width}px`;
  return (
    <div class="stack">
      {problem.value !== null && <p class="problem" role="alert">The widget cannot be shown: {problem.value}</p>}
      {closed.value && <p class="notice row" role="status"><span class="grow">The widget has closed itself.</span><button class="button" onClick={() => start(run.tool, run.args)}>Run again</button></p>}
      {link.value !== null && <Leave url={link.value} end={() => { link.value = null; }} />}
      {choice.mode !== "inline" && <div><button class="button leave" onClick={() => set({ mode: "inline" })}>{choice.mode === "fullscreen" ? "Leave fullscreen" : "Put it back"}</button></div>}
      <div ref={box} class={`stage ${choice.mode} ${choice.theme}`} style={{ width, maxWidth: "100%" }} />
    </div>
  );
}

/** An address says something to whoever is there, so a person decides whether it is opened. */
function Leave({ url, end }: { url: string; end: () => void }): JSX.Element {
  return (
    <p class="notice row" role="alert">
      <span class="grow">The widget wants to open <code>{plain(url)}</code></span>
      <button class="button" onClick={() => { end(); open(url, "_blank", "noopener,noreferrer"); }}>Open</button>
      <button class="button quiet" onClick={end}>Do not open</button>
    </p>
  );
}

async function pageOf(tool: Tool, server: string, dialect: Dialect): Promise<{ html: string; csp: Csp }> {
  const declared = declaredBy(tool, dialect);
  if (declared === null) throw new Error(`this tool declares no widget for ${dialect === "mcp-app" ? "MCP Apps" : "ChatGPT Apps"}`);
  const uri = uriOf(server, declared);
  const result = await request("resources/read", { uri });
  const content = Array.isArray(result["contents"]) ? result["contents"].filter(isObject)[0] : undefined;
  const html = content?.["text"];
  if (typeof html !== "string") throw new Error(`${uri} has no text`);
  const meta = isObject(content?.["_meta"]) ? content["_meta"] : {};
  const ui = isObject(meta["ui"]) ? meta["ui"] : {};
  const csp = (isObject(ui["csp"]) ? ui["csp"] : {}) as Csp;
  if (dialect === "mcp-app") return { html, csp };
  const { default: bridge } = await import("../../../../widgets/bridge.js?raw");
  // ChatGPT Apps give their widgets `window.openai`; the bridge gives the same, in a host that speaks MCP Apps.
  return { html: `<script>${bridge.replaceAll("</script", "<\\/script")}</script>${html}`, csp };
}

/** The address of the page, as the tool's own server wrote it. */
function declaredBy(tool: Tool, dialect: Dialect): string | null {
  const ui = tool.meta["ui"];
  const uri = dialect === "skybridge" ? tool.meta["openai/outputTemplate"] : ((isObject(ui) ? ui["resourceUri"] : undefined) ?? tool.meta["ui/resourceUri"]);
  return typeof uri === "string" ? uri : null;
}

function visibility(name: string): readonly string[] | undefined {
  const tool = byName.value.get(name);
  if (tool === undefined) return undefined;
  const ui = tool.meta["ui"];
  const said = isObject(ui) ? ui["visibility"] : undefined;
  return Array.isArray(said) ? said.map(String) : ["model", "app"];
}

function context(choice: Choice): Record<string, unknown> {
  return {
    theme: choice.theme,
    locale: choice.locale,
    displayMode: choice.mode,
    availableDisplayModes: ["inline", "fullscreen", "pip"],
    platform: choice.width === "390" ? "mobile" : "web",
    deviceCapabilities: { touch: choice.width === "390", hover: choice.width !== "390" },
    containerDimensions: { maxHeight: 2000 },
  };
}

function dark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen === "dark" || (chosen === undefined && matchMedia("(prefers-color-scheme: dark)").matches);
}
