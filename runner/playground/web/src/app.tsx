/** The frame of the page: who and where one is, the views, and the door where one is outside. */
import type { FunctionComponent, JSX } from "preact";
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { begin } from "./model/begin";
import { LOGIN, door, info, leaves, login, logout } from "./model/info";
import { recall, remember } from "./model/keep";
import { elsewhere, reload } from "./model/news";
import { route, to } from "./model/route";
import { nextTheme, theme } from "./model/theme";
import { plain } from "./model/plain";
import { tools } from "./model/tools";
import { messages, wireChanges } from "./model/wire";
import { Asks } from "./views/asks";
import { CallView } from "./views/call";
import { Down } from "./views/down";
import { useDialog } from "./views/escape";
import { Guarded } from "./views/guarded";
import { later } from "./views/later";
import { Palette, paletteOpen, usePalette } from "./views/palette";
import { ToolList } from "./views/tool_list";
import { count } from "./texts/numbers";

const TITLES = {
  call: "Tools", prompts: "Prompts", resources: "Resources", files: "Files", saved: "Saved", history: "History",
  messages: "Messages", session: "Connection", show: "File",
};

type ViewId = keyof typeof TITLES;

interface View {
  id: ViewId;
  body: FunctionComponent;
}

/** A view that is loaded when somebody looks at it. */
function viewOf(id: ViewId, load: () => Promise<FunctionComponent>): View {
  return { id, body: later(load, TITLES[id]) };
}

/** Views in the navigation, and the entry that leads to those that are not in it or in the menu. */
const NAVIGATION: ViewId[] = ["call", "prompts", "resources", "files", "history"];
const PART_OF: Partial<Record<ViewId, ViewId>> = { show: "files", saved: "history" };

const VIEWS: View[] = [
  { id: "call", body: CallView },
  viewOf("prompts", () => import("./views/prompts").then((module) => module.PromptsView)),
  viewOf("resources", () => import("./views/resources").then((module) => module.ResourcesView)),
  viewOf("files", () => import("./views/files").then((module) => module.FilesView)),
  viewOf("saved", () => import("./views/saved").then((module) => module.SavedView)),
  viewOf("history", () => import("./views/history").then((module) => module.HistoryView)),
  viewOf("messages", () => import("./views/messages").then((module) => module.MessagesView)),
  viewOf("session", () => import("./views/session").then((module) => module.SessionView)),
  viewOf("show", () => import("./views/show").then((module) => module.ShowView)),
];

export function App(): JSX.Element {
  usePalette();
  if (door.value.state === "opening") return <div class="empty" role="status">Connecting…</div>;
  if (door.value.state === "closed") return <Door why={door.value.why} login={door.value.login} provider={door.value.provider} />;
  const view = VIEWS.find((each) => each.id === route.value.view) ?? VIEWS[0];
  const Body = view?.body;
  useTitle(view?.id);
  return (
    <>
      <a class="unseen" href="#main">Skip to the content</a>
      <Top here={view === undefined ? "" : (PART_OF[view.id] ?? view.id)} />
      {paletteOpen.value && <Palette views={VIEWS.filter(({ id }) => id !== "show").map(({ id }) => ({ id, title: TITLES[id] }))} />}
      {leaves.value && <LogOutDialog />}
      <Reloaded />
      <FromElsewhere />
      <div class="page" style={view?.id === "call" ? undefined : { gridTemplateColumns: "minmax(0, 1fr)" }}>
        {view?.id === "call" && <ToolList />}
        <main class="content" id="main" tabIndex={-1}><Down /><Asks /><Guarded key={`${view?.id} ${route.value.rest}`}>{Body !== undefined && <Body />}</Guarded></main>
      </div>
      {view?.id !== "messages" && <Dock />}
    </>
  );
}

/** On narrow screens the navigation is longer than the screen is wide: where one is stays in sight, also in longer words or on a turned screen. Only the menu is moved, and shows a few pixels of the next entry: the page stays where it is. */
const BESIDE = 24;

function inSight(link: HTMLElement | null): void {
  const row = link?.closest("ul");
  if (!link || !row) return;
  const [one, all] = [link.getBoundingClientRect(), row.getBoundingClientRect()];
  if (one.left < all.left) row.scrollLeft -= all.left - one.left + BESIDE;
  else if (one.right > all.right) row.scrollLeft += one.right - all.right + BESIDE;
}

function Top({ here }: { here: string }): JSX.Element {
  const known = info.value;
  return (
    <header class="top">
      <span class="name" title={known?.name ?? ""}>{known?.name ?? ""}</span>
      <nav aria-label="Views" class="grow">
        <ul>
          {NAVIGATION.map((id) => (
            <li key={id}>
              <Entry id={id} isHere={id === here} />
            </li>
          ))}
        </ul>
      </nav>
      <button class="button quiet goto" title="Go to" onClick={() => { paletteOpen.value = true; }}><Icon path="M7 2a5 5 0 1 0 0 10A5 5 0 0 0 7 2m3.6 8.6L14.5 14.5" /><span class="word">Go to</span> <kbd>Ctrl K</kbd></button>
      <Menu />
    </header>
  );
}

/** The gear: who and where one is, and what is seldom changed. */
function Menu(): JSX.Element {
  const known = info.value;
  const menu = useRef<HTMLDetailsElement>(null);
  const close = (): void => { if (menu.current !== null) menu.current.open = false; };
  useEffect(() => {
    const elsewhere = (event: Event): void => {
      if (event instanceof KeyboardEvent ? event.key === "Escape" : !menu.current?.contains(event.target as Node)) close();
    };
    for (const kind of ["pointerdown", "keydown", "focusin"]) addEventListener(kind, elsewhere);
    return () => { for (const kind of ["pointerdown", "keydown", "focusin"]) removeEventListener(kind, elsewhere); };
  }, []);
  return (
    <details class="menu" ref={menu}>
      <summary class="button quiet" title="Menu" aria-label="Menu"><Icon path="M8 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5M8 1.5v2M8 12.5v2M1.5 8h2M12.5 8h2M3.4 3.4l1.4 1.4M11.2 11.2l1.4 1.4M3.4 12.6l1.4-1.4M11.2 4.8l1.4-1.4" /></summary>
      <div class="card stack">
        <p class="small"><span title="Whose files and calls these are">{known?.user}</span> <span class="soft" title="Isolation tier in force">tier <b>{known?.tier}</b></span></p>
        <a class="button quiet" href={to("session")} onClick={close}>{TITLES.session}</a>
        <a class="button quiet" href={to("messages")} onClick={close}>{TITLES.messages}</a>
        <button class="button quiet" onClick={nextTheme} title="Change the colours">{`Theme: ${theme.value === "system" ? "auto" : theme.value}`}</button>
        <button class="button quiet" title="End this browser's session" onClick={() => { close(); leaves.value = true; }}>Log out</button>
      </div>
    </details>
  );
}

/** The title of the tab: the tool or view, and the server. */
function useTitle(view: ViewId | undefined): void {
  const tool = view === "call" ? (route.value.rest || tools.value[0]?.name) : undefined;
  const title = [tool ?? (view === undefined ? "" : TITLES[view]), info.value?.name ?? ""].filter((part) => part !== "").map(plain).join(" · ");
  useEffect(() => { document.title = title; }, [title]);
}

/** A view in the navigation. */
function Entry({ id, isHere }: { id: ViewId; isHere: boolean }): JSX.Element {
  const link = useRef<HTMLAnchorElement>(null);
  useLayoutEffect(() => {
    if (!isHere) return undefined;
    const look = (): void => inSight(link.current);
    look();
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, [isHere]);
  return <a href={to(id)} aria-current={isHere ? "page" : undefined} ref={link} onFocus={(event) => inSight(event.currentTarget)}>{TITLES[id]}</a>;
}

/** What stands for the words of a button where the screen is too narrow for them. */
function Icon({ path }: { path: string }): JSX.Element {
  return <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round"><path d={path} /></svg>;
}

/** Asks before it logs out, and deletes what the browser keeps only where that is chosen. */
function LogOutDialog(): JSX.Element {
  const [problem, setProblem] = useState<string | null>(null);
  const [deletes, setDeletes] = useState(false);
  const close = (): void => { leaves.value = false; };
  const dialog = useDialog(close);
  return (
    <dialog ref={dialog} class="asking stack" aria-label="Log out" onClose={close}>
      <h2>{`Log out ${info.value?.user ?? ""}?`}</h2>
      <p>History, drafts and saved requests stay in this browser for the next login.</p>
      <label class="row"><input type="checkbox" checked={deletes} onChange={(event) => setDeletes(event.currentTarget.checked)} /> Delete them from this browser</label>
      {problem !== null && <p class="problem" role="alert">{plain(problem)}</p>}
      <div class="row">
        <button class="button main" autofocus onClick={() => void logout(deletes).then(setProblem)}>Log out</button>
        <button class="button" onClick={() => { dialog.current?.close(); close(); }}>Cancel</button>
      </div>
    </dialog>
  );
}

/** The messages of this page, below it, as they come. */
function Dock(): JSX.Element {
  void wireChanges.value;
  return (
    <details class="dock" open={recall("dock") !== null} onToggle={(event) => {
      remember("dock", event.currentTarget.open ? "open" : null);
      docked.value = event.currentTarget.open;
    }}>
      <summary class="small soft">{`Messages ${count(messages().length)}`}</summary>
      {docked.value && <div class="docked"><Docked /></div>}
    </details>
  );
}

const docked = signal(false);
const Docked = later(() => import("./views/messages").then((module) => module.MessageList));

/** Said by `runner dev`: the files changed, and whether they are served. */
function Reloaded(): JSX.Element | null {
  const told = reload.value;
  if (told === null) return null;
  const files = told.changed.map(plain).join(", ");
  return (
    <div class={told.error === null ? "news" : "news bad"} role={told.error === null ? "status" : "alert"}>
      <div class="grow">
        <span>{told.error === null ? "Reloaded" : "Could not reload"} <b class="mono">{files}</b>{told.error !== null && "; the previous tools are still served."}</span>
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
        ))}{told.files.length > MOST_NAMED && <li class="soft">{`and ${count(told.files.length - MOST_NAMED)} more`}</li>}</ul>}
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
        <p class="soft">It looks like <code>http://127.0.0.1:8000/?key=…</code>. <code>runner serve</code> and <code>runner dev</code> print it; the last one printed opens this page.</p>
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
