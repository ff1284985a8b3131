/**
 * Dashboards: pages of origins that the operator named. A tab is known by the dashboard's id, and stays as long as its
 * persistence says: `ephemeral` with the result, `session` with the page, `pinned` across reloads.
 *
 * Source: requirements S0-42 and S0-44.
 */
import type { JSX } from "preact";
import { effect, signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { user } from "../model/info";
import { isObject, toJson, tryJson } from "../model/json";
import { byUser, recall, remember } from "../model/keep";
import { plain } from "../model/plain";
import type { Tab } from "../views/tabs";
import { Framed } from "./framed";
import { panelOf, type Panel } from "./items";

const PINNED = "dashboards";

export const dashboards = signal<Panel[]>([]);

effect(() => {
  dashboards.value = user.value === null ? [] : pinned();
});

function pinned(): Panel[] {
  const kept = tryJson(recall(byUser(PINNED)));
  return (Array.isArray(kept) ? kept : []).map(panelOf).filter((panel): panel is Panel => panel !== null);
}

export function idOf(panel: Panel): string {
  // The server takes names of at most 200 characters.
  return (panel.id ?? panel.url).slice(0, 200);
}

/** Open a dashboard, or bring the one of the same id to its new address. */
export function openDashboard(panel: Panel): void {
  dashboards.value = [...dashboards.value.filter((each) => idOf(each) !== idOf(panel) && each.persistence !== "ephemeral"), panel];
  keep();
}

export function closeDashboard(panel: Panel): void {
  dashboards.value = dashboards.value.filter((each) => idOf(each) !== idOf(panel));
  keep();
  void act(panel, "closed");
}

/** Tabs of the dashboards that are open. */
export function boardTabs(): Tab[] {
  return dashboards.value.map((panel) => ({ id: boardTab(panel), title: plain(panel.title), body: () => <DashboardView key={`${idOf(panel)} ${panel.url}`} panel={panel} /> }));
}

export function boardTab(panel: Panel): string {
  return `dashboard ${idOf(panel)}`;
}

/** The result that opened them is gone. */
export function endEphemeral(): void {
  if (dashboards.value.some((each) => each.persistence === "ephemeral")) dashboards.value = dashboards.value.filter((each) => each.persistence !== "ephemeral");
}

function keep(): void {
  const lasting = dashboards.value.filter((each) => each.persistence === "pinned");
  remember(byUser(PINNED), lasting.length === 0 ? null : toJson(lasting));
}

export function DashboardView({ panel }: { panel: Panel }): JSX.Element {
  const frame = useRef<HTMLIFrameElement>(null);
  const problem = useRef(signal<string | null>(null)).current;
  const origin = originOf(panel.url);
  useLayoutEffect(() => {
    let left = false;
    const heard = (event: MessageEvent): void => {
      if (event.source !== frame.current?.contentWindow) return;
      const said: unknown = event.data;
      if (!isObject(said)) return;
      // A sandboxed page without its own origin says `null`; the window is what proves it is this one.
      if (said["type"] === "toolcell/dashboard-ready") void hand();
      else if (said["type"] === "toolcell/dashboard-action" && typeof said["action"] === "string") void act(panel, said["action"].slice(0, 500));
    };
    const hand = async (): Promise<void> => {
      const response = await asked("/play/dashboards", { id: idOf(panel), url: panel.url });
      const body = (await response.json()) as { token?: string; error?: string; ttl_s?: number };
      if (left) return;
      if (!response.ok) problem.value = body.error ?? `HTTP ${response.status}`;
      else frame.current?.contentWindow?.postMessage({ type: "toolcell/dashboard-token", id: idOf(panel), token: body.token ?? "", ttl_s: body.ttl_s ?? 0 }, panel.sandbox.includes("allow-same-origin") ? (origin ?? "*") : "*");
    };
    addEventListener("message", heard);
    return () => {
      left = true;
      removeEventListener("message", heard);
    };
  }, [panel.url]);
  if (origin === null) return <p class="problem" role="alert">The address of this dashboard cannot be read.</p>;
  return (
    <div class="stack">
      <div class="row"><b class="grow">{plain(panel.title)}</b><span class="badge">{panel.persistence}</span>
        <button class="button quiet" onClick={() => closeDashboard(panel)}>Close</button></div>
      {problem.value !== null && <p class="problem" role="alert">{problem.value}</p>}
      <Framed what="A page of another server." hint={`It comes from ${origin}, and is not part of this one.`}>
        <iframe ref={frame} class="paper" src={panel.url} sandbox={sandbox(panel)} title={panel.title} referrerpolicy="no-referrer" />
      </Framed>
    </div>
  );
}

const ALLOWED = ["allow-scripts", "allow-forms", "allow-downloads", "allow-modals", "allow-popups", "allow-same-origin"];

function sandbox(panel: Panel): string {
  const asked = panel.sandbox.filter((word) => ALLOWED.includes(word));
  // With scripts and its own origin a page of this origin could lift its sandbox.
  return (asked.includes("allow-scripts") ? asked.filter((word) => word !== "allow-same-origin") : asked).join(" ");
}

async function act(panel: Panel, action: string): Promise<void> {
  await asked("/play/dashboards/actions", { id: idOf(panel), action }).catch(() => undefined);
}

function asked(path: string, body: object): Promise<Response> {
  return fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

function originOf(url: string): string | null {
  return URL.canParse(url) ? new URL(url).origin : null;
}
