/** The widget of a tool, in a host like those it will meet: both dialects, any theme and width. */
import type { JSX } from "preact";
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { WidgetHost, type Csp, type HostOptions, type LogEntry, type ToolResult, type Trouble } from "../../../../widgets/web/host.ts";
import { info } from "../model/info";
import { isObject, toJson } from "../model/json";
import type { Params } from "../model/connection";
import { here } from "../model/connections";
import { start, type Run } from "../model/runs";
import { serverOfTool, toolOf } from "../model/servers";
import { shade as pageShade } from "../model/theme";
import type { Tool } from "../model/tools";
import { abandon, askFirst, asksFirst, callForWidget, visibilityOf } from "../model/widget_calls";
import { keepState, recallState } from "../model/widget_states";
import { brief, plain } from "../model/plain";
import { leadsTo } from "../../../../widgets/web/markdown/links.ts";
import { paced } from "../model/pace";
import { Consent } from "../views/consent";
import { useEscape } from "../views/escape";
import { Framed } from "./framed";
import { AskedCall, WidgetCalls } from "./widget_calls";
import { addressForWidget, forgetOffers, keepForWidget, OfferedFile } from "./widget_files";
import { modalOf, WidgetModal, type Modal } from "./widget_modal";
import { LOCALE } from "../texts/numbers";

type Dialect = "mcp-app" | "skybridge";

interface Choice {
  dialect: Dialect;
  /** As the page has it, until somebody chooses for this widget. */
  theme: "page" | "light" | "dark";
  width: "full" | "820" | "390";
  mode: "inline" | "fullscreen" | "pip";
}

const MAX_LOG = 500;
const NOTES_MS = 400;
const MOST_REFUSED_LINKS = 3;

export function WidgetView({ run, tool }: { run: Run; tool: Tool }): JSX.Element {
  const origin = info.value?.frames ?? null;
  const choice = useSignal<Choice>({ dialect: "mcp-app", theme: "page", width: "full", mode: "inline" });
  const log = useSignal<Line[]>([]);
  const watched = useSignal(false);
  const life = useSignal(0);
  const note = useNotes(log);
  if (origin === null) return <p class="problem">This server has no second origin to show widgets on. The operator sets <code>playground_frames_url</code>.</p>;
  const set = (part: Partial<Choice>): void => { choice.value = { ...choice.value, ...part }; };
  return (
    <div class="stack">
      <div class="filters host" role="group" aria-label="Host">
        <Pick label="Dialect" value={choice.value.dialect} choices={{ "mcp-app": "MCP Apps", skybridge: "ChatGPT Apps" }} pick={(dialect) => set({ dialect })} />
        <Pick label="Theme" value={choice.value.theme} choices={{ page: "As the page", light: "Light", dark: "Dark" }} pick={(theme) => set({ theme })} />
        <Pick label="Width" value={choice.value.width} choices={{ full: "Full", "820": "820 px", "390": "390 px" }} pick={(width) => set({ width })} />
        <Pick label="Tool calls" value={asksFirst.value ? "ask" : "run"} choices={{ run: "Run at once", ask: "Ask first" }} pick={(how) => askFirst(how === "ask")} />
      </div>
      <Frame key={`${run.id} ${choice.value.dialect} ${life.value}`} run={run} tool={tool} origin={origin} choice={choice.value} set={set} log={note} again={() => { life.value += 1; }} />
      <WidgetCalls run={run} />
      <details onToggle={(event) => { watched.value = event.currentTarget.open; }}>
        <summary class="small">Messages and violations <span class="soft">{log.value.length}</span></summary>
        <ol class="logs" tabIndex={0}>{watched.value && log.value.map((entry) => (
          <li key={entry.number} class={entry.bad ? "error" : ""}>
            <span>{entry.direction}</span><span>{entry.dropped ? "dropped" : ""}</span>
            <span>{entry.text}</span>
          </li>
        ))}</ol>
      </details>
    </div>
  );
}

/** Write messages down, and show them at a pace at which they can be followed. */
function useNotes(log: Signal<Line[]>): (entry: LogEntry) => void {
  const notes = useRef({ waiting: [] as Line[], count: 0 }).current;
  const shown = useRef(paced(() => {
    log.value = [...log.value, ...notes.waiting].slice(-MAX_LOG);
    notes.waiting = [];
  }, NOTES_MS)).current;
  return (entry) => {
    notes.count += 1;
    notes.waiting = [...notes.waiting.slice(1 - MAX_LOG), lineOf(entry, notes.count)];
    shown();
  };
}

interface Line {
  number: number;
  direction: string;
  dropped: boolean;
  bad: boolean;
  text: string;
}

/** What of a message is shown, made once: a widget may send many long ones. */
function lineOf({ direction, message, dropped }: LogEntry, number: number): Line {
  return {
    number,
    direction: direction === "from-widget" ? "widget →" : "→ widget",
    dropped: dropped !== undefined,
    bad: dropped !== undefined || message["method"] === "toolcell/violation",
    text: plain(`${dropped ?? ""} ${toJson(message)}`.trim().slice(0, 500)),
  };
}

function Pick<T extends string>({ label, value, choices, pick }: { label: string; value: T; choices: Record<T, string>; pick: (value: T) => void }): JSX.Element {
  return (
    <label class="small soft">{label} <select class="input compact" value={value} onChange={(event) => pick(event.currentTarget.value as T)}>
      {(Object.entries(choices) as [T, string][]).map(([each, name]) => <option key={each} value={each}>{name}</option>)}
    </select></label>
  );
}

function Frame({ run, tool, origin, choice, set, log, again }: {
  run: Run;
  tool: Tool;
  origin: string;
  choice: Choice;
  set: (part: Partial<Choice>) => void;
  log: (entry: LogEntry) => void;
  again: () => void;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const host = useRef<WidgetHost | null>(null);
  const problem = useSignal<string | null>(null);
  const closed = useSignal(false);
  const trouble = useSignal<Trouble | "stopped" | undefined>(undefined);
  const link = useSignal<string | null>(null);
  const modal = useSignal<Modal | null>(null);
  const options = useRef<Omit<HostOptions, "container"> | null>(null);
  const refusedLinks = useRef(0);
  const server = serverOfTool(tool.name);
  const shade = shadeOf(choice);
  useEffect(() => {
    let left = false;
    void (async () => {
      try {
        const page = await pageOf(tool, choice.dialect);
        if (left || box.current === null) return;
        const told: Omit<HostOptions, "container"> = {
          proxyUrl: `${origin}/widget?csp=${encodeURIComponent(JSON.stringify(page.csp))}`,
          html: page.html,
          title: `Widget of ${tool.name}`,
          csp: page.csp,
          context: context(choice),
          widgetState: recallState(run.id),
          visibility: (name) => visibilityOf(toolOf(server, name)),
          actions: {
            callTool: (name, args) => callForWidget(run.id, toolOf(server, name), args as Params) as Promise<ToolResult>,
            sendMessage: (prompt) => log({ direction: "from-widget", message: { said: prompt } }),
            openLink: (url) => {
              // The address under a button that somebody is about to press stays what it is.
              if (link.value !== null) throw new Error("a person is being asked about another address");
              if (refusedLinks.current >= MOST_REFUSED_LINKS) throw new Error("the person at the page does not want this widget to open addresses");
              link.value = url;
            },
            setDisplayMode: (mode) => { set({ mode }); return mode; },
            updateModelContext: (given) => log({ direction: "from-widget", message: { "context for the model": given } }),
            keepState: (state) => keepState(run.id, state),
            uploadFile: (file) => keepForWidget(run.id, file),
            fileDownloadUrl: (fileId) => addressForWidget(run, fileId),
            openModal: (args) => {
              if (modal.value !== null) throw new Error("a modal of this widget is open already");
              modal.value = modalOf(args);
            },
            closed: () => { closed.value = true; },
            troubled: (what) => { trouble.value = what; },
            log,
          },
        };
        options.current = told;
        host.current = new WidgetHost({ ...told, container: box.current });
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
      forgetOffers(run.id);
      void host.current?.close();
    };
  }, []);
  useEffect(() => {
    host.current?.setContext(context(choice));
  }, [shade, choice.mode]);
  useEscape(() => set({ mode: "inline" }), choice.mode === "fullscreen");
  const width = choice.width === "full" ? "100%" : `${choice.width}px`;
  return (
    <div class="stack">
      {problem.value !== null && <p class="problem" role="alert">The widget cannot be shown: {problem.value}</p>}
      {closed.value && <p class="notice row" role="status"><span class="grow">The widget has closed itself.</span><button class="button" onClick={() => start(run.tool, run.args)}>Run again</button></p>}
      <div class={`consents ${choice.mode}`}>
        {trouble.value !== undefined && <Troubled trouble={trouble.value} again={again} stop={() => { host.current?.stop(); abandon(run.id); trouble.value = "stopped"; }} />}
        {link.value !== null && <Leave url={link.value} decide={(allowed) => {
          const url = link.value;
          link.value = null;
          if (!allowed) refusedLinks.current += 1;
          else if (url !== null) open(url, "_blank", "noopener,noreferrer");
        }} />}
        {link.value === null && modal.value === null && <AskedCall run={run} />}
        {link.value === null && <OfferedFile run={run} />}
      </div>
      {modal.value !== null && options.current !== null && (
        <WidgetModal run={run} what={`The widget of ${plain(tool.name)}.`} modal={modal.value} close={() => { modal.value = null; }}
          options={{ ...options.current, context: context(choice), ...widgetStateOf(run.id) }} />
      )}
      {choice.mode !== "inline" && <div><button class="button leave" onClick={() => set({ mode: "inline" })}>{choice.mode === "fullscreen" ? "Leave fullscreen" : "Put it back"}</button></div>}
      <div class={`stage ${choice.mode} ${shade}`} style={{ width, maxWidth: "100%" }}>
        <Framed what={`The widget of ${plain(tool.name)}.`} hint="It is not part of this page."><div ref={box} class="box" /></Framed>
      </div>
    </div>
  );
}

const TROUBLES = {
  hangs: "The widget has not answered for some seconds: it hangs, or it has left its page.",
  left: "The widget sent its own frame elsewhere, and was stopped.",
  flooded: "The widget sent more messages than can be read, and was stopped.",
  stopped: "You stopped the widget.",
};

function Troubled({ trouble, stop, again }: { trouble: Trouble | "stopped"; stop: () => void; again: () => void }): JSX.Element {
  return (
    <p class="notice row" role="status">
      <span class="grow">{TROUBLES[trouble]}</span>
      {trouble === "hangs" && <button class="button" onClick={stop}>Stop it</button>}
      <button class="button" onClick={again}>Start it again</button>
    </p>
  );
}

/** Opening an address sends data to its server, so a person decides. */
function Leave({ url, decide }: { url: string; decide: (allowed: boolean) => void }): JSX.Element {
  return (
    <Consent yes="Open" no="Do not open" decide={decide}>
      <p>The widget wants to open {url.startsWith("mailto:") ? "a mail to" : "a page of"} <b class="mono">{plain(leadsTo(url))}</b></p>
      <pre class="code">{brief(url, 1_000)}</pre>
    </Consent>
  );
}

async function pageOf(tool: Tool, dialect: Dialect): Promise<{ html: string; csp: Csp }> {
  const uri = declaredBy(tool, dialect);
  if (uri === null) throw new Error(`this tool declares no widget for ${dialect === "mcp-app" ? "MCP Apps" : "ChatGPT Apps"}`);
  const result = await here.value.request("resources/read", { uri });
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

/** The address of the page, as the server lists it: a proxy of several has renamed it already. */
function declaredBy(tool: Tool, dialect: Dialect): string | null {
  const ui = tool.meta["ui"];
  const uri = dialect === "skybridge" ? tool.meta["openai/outputTemplate"] : ((isObject(ui) ? ui["resourceUri"] : undefined) ?? tool.meta["ui/resourceUri"]);
  return typeof uri === "string" ? uri : null;
}

function widgetStateOf(run: string): { widgetState?: unknown } {
  const state = recallState(run);
  return state === undefined ? {} : { widgetState: state };
}

function shadeOf(choice: Choice): "light" | "dark" {
  return choice.theme === "page" ? pageShade.value : choice.theme;
}

function context(choice: Choice): Record<string, unknown> {
  return {
    theme: shadeOf(choice),
    locale: LOCALE,
    displayMode: choice.mode,
    availableDisplayModes: ["inline", "fullscreen", "pip"],
    platform: choice.width === "390" ? "mobile" : "web",
    deviceCapabilities: { touch: choice.width === "390", hover: choice.width !== "390" },
    containerDimensions: { maxHeight: 2000 },
  };
}
