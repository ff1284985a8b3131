/** A widget a second time, above the page, where it asked for a modal: it learns so from its view. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { WidgetHost, type HostActions, type HostOptions, type ToolResult } from "../../../../widgets/web/host.ts";
import { plain } from "../model/plain";
import type { Run } from "../model/runs";
import { useDialog } from "../views/escape";
import { Framed } from "./framed";
import { AskedCall } from "./widget_calls";

export interface Modal {
  title: string;
  params: Record<string, unknown>;
}

/** What a widget asked for, as far as it is what can be asked for. */
export function modalOf(args: Record<string, unknown>): Modal {
  const { title, params } = args;
  return {
    title: typeof title === "string" ? title.slice(0, 200) : "",
    params: typeof params === "object" && params !== null && !Array.isArray(params) ? (params as Record<string, unknown>) : {},
  };
}

export function WidgetModal({ run, what, modal, options, close }: {
  run: Run;
  what: string;
  modal: Modal;
  /** Of the widget in the page; its actions that are about its own place are left out. */
  options: Omit<HostOptions, "container">;
  close: () => void;
}): JSX.Element {
  const dialog = useDialog(close);
  const box = useRef<HTMLDivElement>(null);
  const host = useRef<WidgetHost | null>(null);
  const problem = useSignal<string | null>(null);
  const theme = options.context?.["theme"];
  // Before the next one: what it begins with needs no change.
  useEffect(() => {
    host.current?.setContext({ theme });
  }, [theme]);
  useEffect(() => {
    if (box.current === null) return undefined;
    const { callTool, sendMessage, updateModelContext, keepState, log } = options.actions ?? {};
    const actions = { callTool, sendMessage, updateModelContext, keepState, log, closed: close } as HostActions;
    const context = { ...options.context, "toolcell/view": { mode: "modal", params: modal.params }, availableDisplayModes: ["inline"], displayMode: "inline" };
    const shown = new WidgetHost({ ...options, container: box.current, context, actions });
    host.current = shown;
    shown.ready.then(async () => {
      shown.toolInput(run.args as Record<string, unknown>);
      if (run.result !== null) await shown.toolResult(run.result as unknown as ToolResult);
    }).catch((error: Error) => { problem.value = error.message; });
    return () => shown.stop();
  }, []);
  return (
    <dialog ref={dialog} class={`modal ${String(theme)}`} aria-label={modal.title || what} onClose={close}>
      <header class="row"><h2 class="part grow">{plain(modal.title) || "Widget"}</h2><button class="button" onClick={close}>Close</button></header>
      {problem.value !== null && <p class="problem" role="alert">The widget cannot be shown: {problem.value}</p>}
      <AskedCall run={run} />
      <Framed what={what} hint="It is not part of this page."><div ref={box} class="box" /></Framed>
    </dialog>
  );
}
