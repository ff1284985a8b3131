/**
 * HTML that a tool made, as a document that cannot act: cleaned, in a frame without scripts, on the second origin.
 * Source: requirements S0-48, S0-62 and S0-76.
 */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import DOMPurify from "dompurify";
import { info } from "../model/info";
import { Trouble, Waiting } from "./canvas";
import { head, useLoaded } from "./content";
import { Framed } from "./framed";
import type { Item } from "./items";
import { T } from "../texts/texts";

const MOST = 20_000_000;

export function PageView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => head(item, MOST, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  return <HtmlView html={loaded.value.text} title={item.name} />;
}

/** HTML that is here already. Another document takes another frame: one that has loaded takes no second. */
export function HtmlView({ html, title }: { html: string; title: string }): JSX.Element {
  const origin = info.value?.frames ?? null;
  if (origin === null) return <Trouble problem={T.viewers.noOrigin} />;
  return <Made key={html} html={html} origin={origin} title={title} />;
}

/** Scripts are off until a person turns them on for this document; then it runs where widgets do, without network. */
function Made({ html, origin, title }: { html: string; origin: string; title: string }): JSX.Element {
  const runs = useSignal(false);
  return (
    <Framed what={T.viewers.madePage} hint={runs.value ? T.viewers.scriptsRun : T.viewers.pageHint}>
      {hasScripts(html) && (
        <p class="row small">{!runs.value && <span>{T.viewers.scriptsOff}</span>}
          <button type="button" class="button small" aria-pressed={runs.value} onClick={() => { runs.value = !runs.value; }}>{runs.value ? T.viewers.stopScripts : T.viewers.runScripts}</button></p>
      )}
      {runs.value ? <Lively html={html} origin={origin} title={title} /> : <Still html={clean(html)} origin={origin} title={title} />}
    </Framed>
  );
}

function hasScripts(html: string): boolean {
  return /<script[\s>/]|\son\w+\s*=|javascript:/i.test(html);
}

const SANDBOX = "ui/notifications/sandbox-";

/** A document with its scripts, in the frame of widgets: an opaque origin, and a policy that lets it load nothing. */
function Lively({ html, origin, title }: { html: string; origin: string; title: string }): JSX.Element {
  const frame = useRef<HTMLIFrameElement>(null);
  useEffect(() => {
    const heard = (event: MessageEvent): void => {
      if (event.source !== frame.current?.contentWindow || event.origin !== origin) return;
      if ((event.data as { method?: unknown } | null)?.method !== `${SANDBOX}proxy-ready`) return;
      // Nothing that its scripts send is looked at.
      removeEventListener("message", heard);
      frame.current?.contentWindow?.postMessage({ jsonrpc: "2.0", method: `${SANDBOX}resource-ready`, params: { html } }, origin);
    };
    addEventListener("message", heard);
    return () => removeEventListener("message", heard);
  }, [html, origin]);
  return <iframe ref={frame} class="paper" src={`${origin}/widget`} sandbox="allow-scripts allow-same-origin" title={title} referrerpolicy="no-referrer" />;
}

const FIELDS = "input,textarea,select,button,[contenteditable],[autofocus]";

/** Take out what could act or load; the frame would stop it all the same. Fields stay to be seen, and take nothing. */
export function clean(html: string): string {
  const whole = DOMPurify.sanitize(html, {
    RETURN_DOM: true,
    WHOLE_DOCUMENT: true,
    FORBID_TAGS: ["base", "meta", "link", "form", "iframe", "object", "embed", "script", "template", "dialog"],
    FORBID_ATTR: ["srcset", "ping", "action", "formaction", "background"],
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#|data:image\/(?:png|jpeg|gif|webp|svg\+xml)[;,])/i,
  }) as HTMLElement;
  for (const field of whole.querySelectorAll(FIELDS)) {
    field.removeAttribute("contenteditable");
    field.removeAttribute("autofocus");
    field.setAttribute("disabled", "");
    field.setAttribute("autocomplete", "off");
  }
  return whole.outerHTML;
}

export function Still({ html, origin, title }: { html: string; origin: string; title: string }): JSX.Element {
  const frame = useRef<HTMLIFrameElement>(null);
  useEffect(() => {
    const heard = (event: MessageEvent): void => {
      // Before the message is looked at: the browser reads it only then, and it may be large.
      if (event.source !== frame.current?.contentWindow || event.origin !== origin) return;
      if ((event.data as { still?: unknown } | null)?.still !== "ready") return;
      removeEventListener("message", heard);
      frame.current?.contentWindow?.postMessage({ html }, origin);
    };
    addEventListener("message", heard);
    return () => removeEventListener("message", heard);
  }, [html, origin]);
  return <iframe ref={frame} class="paper" src={`${origin}/still`} sandbox="allow-scripts allow-same-origin" title={title} referrerpolicy="no-referrer" />;
}
