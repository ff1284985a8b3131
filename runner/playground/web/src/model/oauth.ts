/**
 * A login to an MCP server, one step at a time. The page decides what is asked; its host asks, since a browser may not.
 * All that is learnt stays in this page: nothing of it is kept, and none of it is in an address.
 *
 * Source: MCP 2025-11-25, "Authorization"; RFC 9728, 8414, 7591, 7636, 8707, 9207; OpenID Connect Discovery 1.0.
 */
import { computed, signal } from "@preact/signals";
import type { Params } from "./connection";
import { isObject, parseJson, toJson, type Json } from "./json";
import { T } from "../texts/texts";

export const STEPS = ["challenge", "resource", "issuer", "register", "authorise", "token", "refresh", "call"] as const;
export type Step = (typeof STEPS)[number];

export interface Exchange {
  method: string;
  url: string;
  headers: Record<string, string>;
  body: string | null;
  status: number | null;
  answered: Record<string, string>;
  text: string;
  took: number;
}

export interface Done {
  exchanges: Exchange[];
  problem: string | null;
  at: number;
}

export interface Learnt {
  server: string;
  resource: string;
  metadataUrl: string;
  issuer: string;
  metadata: Params;
  scope: string;
  clientId: string;
  clientSecret: string;
  verifier: string;
  state: string;
  code: string;
  token: string;
  refresh: string;
}

const BLANK: Learnt = { server: "", resource: "", metadataUrl: "", issuer: "", metadata: {}, scope: "", clientId: "", clientSecret: "", verifier: "", state: "", code: "", token: "", refresh: "" };

export const learnt = signal<Learnt>(BLANK);
export const done = signal<Partial<Record<Step, Done>>>({});
export const busy = signal<Step | null>(null);
export const redirect = `${location.origin}/play/oauth/callback`;

export function learn(part: Partial<Learnt>): void {
  learnt.value = { ...learnt.value, ...part };
}

/** Begin anew with another server. */
export function aim(server: string): void {
  learnt.value = { ...BLANK, server };
  done.value = {};
}

/** Whether what a step needs is there. */
export const able = computed<Record<Step, boolean>>(() => {
  const { server, issuer, metadata, clientId, code, refresh, token } = learnt.value;
  const met = Object.keys(metadata).length > 0;
  return {
    challenge: server !== "",
    resource: server !== "",
    issuer: issuer !== "",
    register: met && typeof metadata["registration_endpoint"] === "string",
    authorise: met && clientId !== "",
    token: met && code !== "",
    refresh: met && refresh !== "",
    call: server !== "" && token !== "",
  };
});

/** Make one step. What comes of it stands in `done` and `learnt`. */
export async function make(step: Exclude<Step, "authorise">): Promise<boolean> {
  busy.value = step;
  const exchanges: Exchange[] = [];
  const ask = (method: string, url: string, headers: Record<string, string> = {}, body: string | null = null): Promise<Exchange> => exchanged(exchanges, method, url, headers, body);
  let problem: string | null = null;
  try {
    await MAKING[step](ask);
  } catch (error) {
    problem = (error as Error).message;
  }
  done.value = { ...done.value, [step]: { exchanges, problem, at: Date.now() } };
  busy.value = null;
  return problem === null;
}

/** Make all steps that come before the login. */
export async function makeAll(): Promise<void> {
  for (const step of ["challenge", "resource", "issuer"] as const) if (!(await make(step))) return;
  if (learnt.value.clientId === "" && able.value.register) await make("register");
}

type Ask = (method: string, url: string, headers?: Record<string, string>, body?: string | null) => Promise<Exchange>;

const JSON_TYPE = { "content-type": "application/json", accept: "application/json" };
const FORM = { "content-type": "application/x-www-form-urlencoded", accept: "application/json" };
const MCP = { "content-type": "application/json", accept: "application/json, text/event-stream" };
const GREETING = { jsonrpc: "2.0", id: 1, method: "initialize", params: { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "toolcell-playground", version: "1" } } };

const MAKING: Record<Exclude<Step, "authorise">, (ask: Ask) => Promise<void>> = {
  async challenge(ask) {
    const answer = await ask("POST", learnt.value.server, MCP, toJson(GREETING));
    if (answer.status !== 401) throw new Error(T.oauth.not401(String(answer.status)));
    const said = answer.answered["www-authenticate"] ?? "";
    learn({ metadataUrl: /resource_metadata="([^"]+)"/.exec(said)?.[1] ?? "", scope: /scope="([^"]+)"/.exec(said)?.[1] ?? "" });
  },
  async resource(ask) {
    const url = new URL(learnt.value.server);
    const known = `${url.origin}/.well-known/oauth-protected-resource`;
    const path = url.pathname === "/" ? "" : url.pathname;
    const found = await first(ask, [learnt.value.metadataUrl, known + path, known].filter((each) => each !== ""));
    const servers = found["authorization_servers"];
    const issuer = Array.isArray(servers) ? String(servers[0] ?? "") : "";
    if (issuer === "") throw new Error(T.oauth.noIssuer);
    const scopes = found["scopes_supported"];
    const resource = String(found["resource"] ?? learnt.value.server);
    learn({ issuer, resource, scope: learnt.value.scope || (Array.isArray(scopes) ? scopes.join(" ") : "") });
    if (!learnt.value.server.startsWith(resource)) throw new Error(T.oauth.otherResource(resource, learnt.value.server));
  },
  async issuer(ask) {
    const url = new URL(learnt.value.issuer);
    const path = url.pathname === "/" ? "" : url.pathname.replace(/\/$/, "");
    const metadata = await first(ask, [
      `${url.origin}/.well-known/oauth-authorization-server${path}`,
      `${url.origin}/.well-known/openid-configuration${path}`,
      ...(path === "" ? [] : [`${url.origin}${path}/.well-known/openid-configuration`]),
    ]);
    learn({ metadata });
    const said = String(metadata["issuer"] ?? "");
    if (said.replace(/\/$/, "") !== learnt.value.issuer.replace(/\/$/, "")) throw new Error(T.oauth.otherIssuer(said, learnt.value.issuer));
    const methods = metadata["code_challenge_methods_supported"];
    if (!Array.isArray(methods) || !methods.includes("S256")) throw new Error(T.oauth.noPkce);
  },
  async register(ask) {
    const wanted = { client_name: "toolcell Playground", redirect_uris: [redirect], grant_types: ["authorization_code", "refresh_token"], response_types: ["code"], token_endpoint_auth_method: "none", ...(learnt.value.scope === "" ? {} : { scope: learnt.value.scope }) };
    const answer = await ask("POST", String(learnt.value.metadata["registration_endpoint"]), JSON_TYPE, toJson(wanted));
    const body = bodyOf(answer);
    if (typeof body["client_id"] !== "string") throw new Error(T.oauth.notRegistered(faultOf(answer, body)));
    learn({ clientId: body["client_id"], clientSecret: String(body["client_secret"] ?? "") });
  },
  async token(ask) {
    const { code, verifier, resource } = learnt.value;
    await granted(ask, { grant_type: "authorization_code", code, redirect_uri: redirect, code_verifier: verifier, resource });
    learn({ code: "" });
  },
  async refresh(ask) {
    await granted(ask, { grant_type: "refresh_token", refresh_token: learnt.value.refresh, resource: learnt.value.resource });
  },
  async call(ask) {
    const answer = await ask("POST", learnt.value.server, { ...MCP, authorization: `Bearer ${learnt.value.token}` }, toJson(GREETING));
    if (answer.status !== 200) throw new Error(T.oauth.notTaken(faultOf(answer, bodyOf(answer))));
  },
};

async function granted(ask: Ask, what: Record<string, string>): Promise<void> {
  const { clientId, clientSecret, metadata } = learnt.value;
  const form = new URLSearchParams({ ...what, client_id: clientId });
  const basic = clientSecret === "" ? {} : { authorization: `Basic ${btoa(`${encodeURIComponent(clientId)}:${encodeURIComponent(clientSecret)}`)}` };
  const answer = await ask("POST", String(metadata["token_endpoint"]), { ...FORM, ...basic }, form.toString());
  const body = bodyOf(answer);
  if (typeof body["access_token"] !== "string") throw new Error(T.oauth.noToken(faultOf(answer, body)));
  learn({ token: body["access_token"], refresh: typeof body["refresh_token"] === "string" ? body["refresh_token"] : learnt.value.refresh });
}

/** The address to log in at; with a new secret each time. */
export async function authorisation(): Promise<string> {
  const verifier = random();
  const state = random();
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const url = new URL(String(learnt.value.metadata["authorization_endpoint"]));
  if (!["http:", "https:"].includes(url.protocol)) throw new Error(T.oauth.badProtocol(url.protocol));
  const { clientId, scope, resource } = learnt.value;
  const query: Record<string, string> = { response_type: "code", client_id: clientId, redirect_uri: redirect, code_challenge: base64url(new Uint8Array(digest)), code_challenge_method: "S256", state, resource, ...(scope === "" ? {} : { scope }) };
  for (const [key, value] of Object.entries(query)) url.searchParams.set(key, value);
  learn({ verifier, state, code: "" });
  const asked: Exchange = { method: "GET", url: url.href, headers: {}, body: null, status: null, answered: {}, text: "", took: 0 };
  done.value = { ...done.value, authorise: { exchanges: [asked], problem: null, at: Date.now() } };
  return url.href;
}

/** What the authorisation server said, from the tab that it sent back. */
const CHANNEL = "toolcell oauth";

export function awaitAnswer(): () => void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = (event: MessageEvent<unknown>) => {
    if (typeof event.data !== "string") return;
    const said = new URLSearchParams(event.data);
    // Another's login, or one that nobody began.
    if (learnt.value.state === "" || said.get("state") !== learnt.value.state) return;
    channel.postMessage({ taken: said.get("state") });
    const before = done.value.authorise?.exchanges[0];
    const iss = said.get("iss");
    const wrong = iss !== null && iss !== learnt.value.metadata["issuer"] ? T.oauth.otherAnswer(iss) : null;
    const problem = said.has("error") ? `${said.get("error")}: ${said.get("error_description") ?? T.oauth.noReason}` : wrong;
    if (before !== undefined) done.value = { ...done.value, authorise: { exchanges: [{ ...before, status: 302, text: [...said].map(([key, value]) => `${key}: ${value}`).join("\n") }], problem, at: Date.now() } };
    learn({ state: "", code: problem === null ? (said.get("code") ?? "") : "" });
  };
  return () => channel.close();
}

/** Give the answer that this tab came back with to the page that waits for it; says whether one took it. */
export function handOver(query: string): Promise<boolean> {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel(CHANNEL);
    const end = (taken: boolean): void => { channel.close(); resolve(taken); };
    const timer = setTimeout(() => end(false), 3000);
    channel.onmessage = (event: MessageEvent<unknown>) => {
      if (isObject(event.data) && event.data["taken"] === new URLSearchParams(query).get("state")) { clearTimeout(timer); end(true); }
    };
    channel.postMessage(query);
  });
}

async function first(ask: Ask, urls: string[]): Promise<Params> {
  for (const url of new Set(urls)) {
    const answer = await ask("GET", url, { accept: "application/json" });
    const body = bodyOf(answer);
    if (answer.status === 200 && Object.keys(body).length > 0) return body;
  }
  throw new Error(T.oauth.noMetadata);
}

async function exchanged(exchanges: Exchange[], method: string, url: string, headers: Record<string, string>, body: string | null): Promise<Exchange> {
  const exchange: Exchange = { method, url, headers, body, status: null, answered: {}, text: "", took: 0 };
  exchanges.push(exchange);
  const response = await fetch("/play/oauth/step", { method: "POST", headers: { "content-type": "application/json" }, body: toJson({ method, url, headers, body }) });
  const said = parseJson(await response.text());
  if (!isObject(said) || !response.ok) throw new Error(isObject(said) ? String(said["error"] ?? `HTTP ${response.status}`) : `HTTP ${response.status}`);
  exchange.status = Number(said["status"]);
  exchange.answered = isObject(said["headers"]) ? Object.fromEntries(Object.entries(said["headers"]).map(([key, value]) => [key, String(value)])) : {};
  exchange.text = String(said["body"] ?? "");
  exchange.took = Number(said["took_ms"] ?? 0);
  return exchange;
}

function bodyOf(answer: Exchange): Params {
  try {
    const value: Json = parseJson(answer.text);
    return isObject(value) ? value : {};
  } catch {
    return {};
  }
}

function faultOf(answer: Exchange, body: Params): string {
  return [`HTTP ${answer.status}`, body["error"], body["error_description"]].filter((each) => each !== undefined).map(String).join(", ");
}

function random(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
