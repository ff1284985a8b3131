/**
 * HTML that a tool made, as a document that cannot act: cleaned, in a frame without scripts, on the second origin.
 * Source: requirements S0-48, S0-62 and S0-76.
 */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import DOMPurify from "dompurify";
import { info } from "../model/info";
import { Trouble, Waiting } from "./canvas";
import { head, useLoaded } from "./content";
import { Framed } from "./framed";
import type { Item } from "./items";

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
  if (origin === null) return <Trouble problem="this server has no second origin to show pages on; the operator sets playground_frames_url" />;
  return <Made key={html} html={html} origin={origin} title={title} />;
}

/** Scripts are off until a person turns them on for this document; then it runs where widgets do, without network. */
function Made({ html, origin, title }: { html: string; origin: string; title: string }): JSX.Element {
  const runs = useSignal(false);
  return (
    <Framed what="A page that a tool made." hint={runs.value ? "Its scripts run in a sandbox without network. Enter nothing secret." : "It is not part of this one: its fields and links do nothing, and nothing you are asked for in it is needed."}>
      {hasScripts(html) && (
        <p class="row small">{!runs.value && <span>Scripts are off.</span>}
          <button type="button" class="button small" aria-pressed={runs.value} onClick={() => { runs.value = !runs.value; }}>{runs.value ? "Turn scripts off" : "Run scripts in a sandbox"}</button></p>
      )}
      <Frame key={String(runs.value)} page={runs.value ? "widget" : "still"} html={runs.value ? html : clean(html)} origin={origin} title={title} />
    </Framed>
  );
}

function hasScripts(html: string): boolean {
  return /<script[\s>/]|\son\w+\s*=|javascript:/i.test(html);
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

/** Pages of the second origin, each with the message that it sends when it is ready and the one that hands it a document. */
const PAGES = {
  /** Cleaned, without scripts. */
  still: { isReady: (sent: Sent) => sent.still === "ready", handing: (html: string): object => ({ html }) },
  /** With its scripts, in the frame of widgets: an opaque origin, and a policy that lets it load nothing. */
  widget: {
    isReady: (sent: Sent) => sent.method === "ui/notifications/sandbox-proxy-ready",
    handing: (html: string): object => ({ jsonrpc: "2.0", method: "ui/notifications/sandbox-resource-ready", params: { html } }),
  },
};

type Sent = { still?: unknown; method?: unknown };

function Frame({ page, html, origin, title }: { page: keyof typeof PAGES; html: string; origin: string; title: string }): JSX.Element {
  const frame = useRef<HTMLIFrameElement>(null);
  // Not an effect after the paint: on a busy machine, the frame may be ready before that.
  useLayoutEffect(() => {
    const heard = (event: MessageEvent): void => {
      // Before the message is looked at: the browser reads it only then, and it may be large.
      if (event.source !== frame.current?.contentWindow || event.origin !== origin) return;
      if (!PAGES[page].isReady((event.data ?? {}) as Sent)) return;
      // Nothing that it sends later is looked at.
      removeEventListener("message", heard);
      frame.current?.contentWindow?.postMessage(PAGES[page].handing(html), origin);
    };
    addEventListener("message", heard);
    return () => removeEventListener("message", heard);
  }, [html, origin]);
  return <iframe ref={frame} class="paper" src={`${origin}/${page}`} sandbox="allow-scripts allow-same-origin" title={title} referrerpolicy="no-referrer" />;
}
