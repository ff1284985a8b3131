/** The frame of the page: who and where one is, the views, and the door where one is outside. */
import type { JSX } from "preact";
import { lazy, Suspense } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { begin } from "./model/begin";
import { LOGIN, door, info, login, logout } from "./model/info";
import { elsewhere, reload } from "./model/news";
import { route, to } from "./model/route";
import { nextTheme, theme } from "./model/theme";
import { connections, here, look } from "./model/connections";
import { plain } from "./model/plain";
import { Asks } from "./views/asks";
import { CallView } from "./views/call";
import { Down } from "./views/down";
import { Guarded } from "./views/guarded";
import { Palette, paletteOpen, usePalette } from "./views/palette";
import { ToolList } from "./views/tool_list";

interface View {
  id: string;
  title: string;
  side: boolean;
  body: () => JSX.Element;
}

/** Views that have an address and no place in the menu. */
const OTHERS: View[] = [
  { id: "show", title: "File", side: false, body: later(() => import("./views/show").then((module) => module.ShowView)) },
  { id: "oauth", title: "OAuth", side: false, body: later(() => import("./views/oauth").then((module) => module.OAuthView)) },
  { id: "oauth-answer", title: "Login", side: false, body: later(() => import("./views/oauth").then((module) => module.OAuthAnswer)) },
];

export const VIEWS: View[] = [
  { id: "call", title: "Call", side: true, body: () => <CallView /> },
  { id: "chat", title: "Chat", side: false, body: later(() => import("./views/chat").then((module) => module.ChatView)) },
  { id: "prompts", title: "Prompts", side: false, body: later(() => import("./views/prompts").then((module) => module.PromptsView)) },
  { id: "resources", title: "Resources", side: false, body: later(() => import("./views/resources").then((module) => module.ResourcesView)) },
  { id: "files", title: "My Files", side: false, body: later(() => import("./views/files").then((module) => module.FilesView)) },
  { id: "saved", title: "Saved", side: false, body: later(() => import("./views/saved").then((module) => module.SavedView)) },
  { id: "history", title: "History", side: false, body: later(() => import("./views/history").then((module) => module.HistoryView)) },
  { id: "messages", title: "Messages", side: false, body: later(() => import("./views/messages").then((module) => module.MessagesView)) },
  { id: "session", title: "Session", side: false, body: later(() => import("./views/session").then((module) => module.SessionView)) },
  { id: "servers", title: "Servers", side: false, body: later(() => import("./views/servers").then((module) => module.ServersView)) },
];

/** The views that this server has: a chat only where its operator configured a model. */
function viewsHere(): View[] {
  return VIEWS.filter((view) => view.id !== "chat" || info.value?.chat);
}

/** A view that is loaded when somebody looks at it. */
function later(load: () => Promise<() => JSX.Element>): () => JSX.Element {
  const Loaded = lazy(load);
  return () => <Suspense fallback={<p class="soft" role="status">Loading…</p>}><Loaded /></Suspense>;
}

export function App(): JSX.Element {
  usePalette();
  if (door.value.state === "opening") return <div class="empty" role="status">Connecting…</div>;
  if (door.value.state === "closed") return <Door why={door.value.why} login={door.value.login} provider={door.value.provider} />;
  const view = [...viewsHere(), ...OTHERS].find((each) => each.id === route.value.view) ?? VIEWS[0];
  return (
    <>
      <a class="unseen" href="#main">Skip to the content</a>
      <Top here={view?.id ?? ""} />
      <Palette views={viewsHere()} />
      <Reloaded />
      <FromElsewhere />
      <div class="page" style={view?.side ? undefined : { gridTemplateColumns: "minmax(0, 1fr)" }}>
        {view?.side && <ToolList />}
        <main class="content" id="main" tabIndex={-1}>{view?.id !== "servers" && <Down />}<Asks /><Guarded key={`${view?.id} ${route.value.rest}`}>{view?.body()}</Guarded></main>
      </div>
    </>
  );
}

/** On narrow screens the menu is longer than the screen is wide. */
function inSight(link: HTMLElement | null): void {
  link?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function Top({ here }: { here: string }): JSX.Element {
  const known = info.value;
  return (
    <header class="top">
      <Looked name={known?.name ?? ""} />
      <nav aria-label="Views" class="grow">
        <ul>
          {viewsHere().map((view) => (
            <li key={view.id}>
              <a href={to(view.id)} aria-current={view.id === here ? "page" : undefined} ref={view.id === here ? inSight : null}>{view.title}</a>
            </li>
          ))}
        </ul>
      </nav>
      <button class="button quiet goto" onClick={() => { paletteOpen.value = true; }}>Go to <kbd>Ctrl K</kbd></button>
      <span class="small soft fact" title="Isolation tier in force">tier <b>{known?.tier}</b></span>
      <span class="small soft fact" title="Whose files and calls these are">{known?.user}</span>
      <button class="button quiet" onClick={nextTheme} title="Change the colours">
        Theme: {theme.value === "system" ? "auto" : theme.value}
      </button>
      <Leave />
    </header>
  );
}

/** Which server is looked at; a choice where there are several. */
function Looked({ name }: { name: string }): JSX.Element {
  if (connections.value.length < 2) return <span class="name">{name}</span>;
  return (
    <select class="input compact name" aria-label="Server" value={here.value.id} onChange={(event) => look(event.currentTarget.value)}>
      {connections.value.map((each) => <option key={each.id} value={each.id}>{plain(each.name)}{each.state.value === "down" ? " (down)" : ""}</option>)}
    </select>
  );
}

/** The way out. What is wrong with it is said beside it. */
function Leave(): JSX.Element {
  const [problem, setProblem] = useState<string | null>(null);
  return (
    <>
      {problem !== null && <span class="small problem" role="alert">{plain(problem)}</span>}
      <button class="button quiet" title="End this browser's session; history and drafts are forgotten"
        onClick={() => void logout().then(setProblem)}>Log out</button>
    </>
  );
}

/** Said by `runner dev`: the files changed, and whether they are served. */
function Reloaded(): JSX.Element | null {
  const told = reload.value;
  if (told === null) return null;
  const files = told.changed.map(plain).join(", ");
  return (
    <div class={told.error === null ? "news" : "news bad"} role={told.error === null ? "status" : "alert"}>
      <div class="grow">
        {told.error === null
          ? <span><b class="mono">{files}</b> changed: the tools are loaded anew.</span>
          : <span><b class="mono">{files}</b> changed and cannot be loaded; the tools of before are still served.</span>}
        {told.error !== null && <pre>{plain(told.error)}</pre>}
      </div>
      <button class="button quiet" onClick={() => { reload.value = null; }}>Dismiss</button>
    </div>
  );
}

/** Files that appear because another client of this user called a tool. */
function FromElsewhere(): JSX.Element | null {
  const told = elsewhere.value;
  if (told === null) return null;
  return (
    <div class="news" role="status">
      <div class="grow">
        <span>Another client called <b class="mono">{plain(told.tool)}</b>{told.notification !== null && <>: {plain(told.notification)}</>}</span>
        {told.files.length > 0 && <ul class="row">{told.files.slice(0, MOST_NAMED).map((file) => (
          <li key={String(file["uri"])}><a class="mono" href={to("show", String(file["uri"]), { name: String(file["name"]) })}>{plain(String(file["name"]))}</a></li>
        ))}{told.files.length > MOST_NAMED && <li class="soft">and {told.files.length - MOST_NAMED} more</li>}</ul>}
      </div>
      <button class="button quiet" onClick={() => { elsewhere.value = null; }}>Dismiss</button>
    </div>
  );
}

const MOST_NAMED = 5;

function Door({ why, login: asks, provider }: { why: string; login: boolean; provider: boolean }): JSX.Element {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), [problem]);
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    setProblem(await login(token.trim()));
    setToken("");
    await begin();
  };
  return (
    <main class="door card">
      <h1>{asks ? "Log in" : "This page needs its key"}</h1>
      <p>{provider ? "This server's users log in at their provider." : asks ? "This server knows its users by a token." : `To go on, ${why}.`}</p>
      {provider && <div><a class="button main" href={LOGIN}>Log in</a></div>}
      {!asks && (
        <p class="soft">
          It looks like <code>http://127.0.0.1:8000/?key=…</code> and stands in the terminal in which <code>runner serve</code> or{" "}
          <code>runner dev</code> was started; the last one there is the one that opens.
        </p>
      )}
      {asks && !provider && (
        <form class="stack" onSubmit={(event) => void send(event)}>
          <div class="field">
            <label class="label" for="token">Token</label>
            <input id="token" ref={field} class="input" type="password" autocomplete="off" required value={token}
              onInput={(event) => setToken(event.currentTarget.value)} aria-describedby="token-hint" />
            <span class="hint" id="token-hint">It is exchanged for a session of this browser and kept nowhere.</span>
          </div>
          {problem !== null && <p class="problem" role="alert">{problem}</p>}
          <div><button class="button main">Log in</button></div>
        </form>
      )}
    </main>
  );
}
