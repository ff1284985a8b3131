/** The frame of the page: who and where one is, the views, and the door where one is outside. */
import type { FunctionComponent, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { begin } from "./model/begin";
import { LOGIN, door, info, login, logout } from "./model/info";
import { elsewhere, reload } from "./model/news";
import { route, to } from "./model/route";
import { nextTheme, theme } from "./model/theme";
import { plain } from "./model/plain";
import { waitingIn } from "./model/waiting";
import { Asks } from "./views/asks";
import { CallView } from "./views/call";
import { Down } from "./views/down";
import { Guarded } from "./views/guarded";
import { later } from "./views/later";
import { Palette, paletteOpen, usePalette } from "./views/palette";
import { ToolList } from "./views/tool_list";
import { Waits } from "./views/waits";
import { inserted } from "./texts/inserted";
import { T } from "./texts/texts";

type ViewId = keyof typeof T.page.titles;

interface View {
  id: ViewId;
  side: boolean;
  body: FunctionComponent;
}

/** A view that is loaded when somebody looks at it. */
function viewOf(id: ViewId, load: () => Promise<FunctionComponent>): View {
  return { id, side: false, body: later(load, { title: () => T.page.titles[id] }) };
}

/** Views that have an address and no place in the menu. */
const OTHERS: View[] = [
  viewOf("show", () => import("./views/show").then((module) => module.ShowView)),
];

/** Which entry of the menu leads to views that have none of their own. */
const PART_OF: Partial<Record<ViewId, ViewId>> = { show: "files" };

export const VIEWS: View[] = [
  { id: "call", side: true, body: () => <CallView /> },
  viewOf("prompts", () => import("./views/prompts").then((module) => module.PromptsView)),
  viewOf("resources", () => import("./views/resources").then((module) => module.ResourcesView)),
  viewOf("files", () => import("./views/files").then((module) => module.FilesView)),
  viewOf("saved", () => import("./views/saved").then((module) => module.SavedView)),
  viewOf("history", () => import("./views/history").then((module) => module.HistoryView)),
  viewOf("messages", () => import("./views/messages").then((module) => module.MessagesView)),
  viewOf("session", () => import("./views/session").then((module) => module.SessionView)),
];

export function App(): JSX.Element {
  usePalette();
  if (door.value.state === "opening") return <div class="empty" role="status">{T.page.connecting}</div>;
  if (door.value.state === "closed") return <Door why={door.value.why} login={door.value.login} provider={door.value.provider} />;
  const view = [...VIEWS, ...OTHERS].find((each) => each.id === route.value.view) ?? VIEWS[0];
  const Body = view?.body;
  return (
    <>
      <a class="unseen" href="#main">{T.page.skip}</a>
      <Top here={view === undefined ? "" : (PART_OF[view.id] ?? view.id)} />
      <Palette views={VIEWS.map(({ id }) => ({ id, title: T.page.titles[id] }))} />
      <Reloaded />
      <FromElsewhere />
      <div class="page" style={view?.side ? undefined : { gridTemplateColumns: "minmax(0, 1fr)" }}>
        {view?.side && <ToolList />}
        <main class="content" id="main" tabIndex={-1}><Down /><Asks /><Guarded key={`${view?.id} ${route.value.rest}`}>{Body !== undefined && <Body />}</Guarded></main>
      </div>
    </>
  );
}

/** On narrow screens the menu is longer than the screen is wide: where one is stays in sight, also in longer words or on a turned screen. Only the menu is moved: the page stays where it is. */
function inSight(link: HTMLElement | null): void {
  const row = link?.closest("ul");
  if (!link || !row) return;
  const [one, all] = [link.getBoundingClientRect(), row.getBoundingClientRect()];
  if (one.left < all.left) row.scrollLeft -= all.left - one.left + BESIDE;
  else if (one.right > all.right) row.scrollLeft += one.right - all.right + BESIDE;
}

/** Pixels of the next entry, so that one sees that there is one. */
const BESIDE = 24;

function Top({ here }: { here: string }): JSX.Element {
  const known = info.value;
  return (
    <header class="top">
      <span class="name">{known?.name ?? ""}</span>
      <nav aria-label={T.page.views} class="grow">
        <ul>
          {VIEWS.map((view) => (
            <li key={view.id}>
              <Entry id={view.id} isHere={view.id === here} />
            </li>
          ))}
        </ul>
      </nav>
      <span class="unseen" aria-live="polite">{VIEWS.filter((view) => waitingIn(view.id) !== null).map((view) => `${T.page.titles[view.id]} ${T.page.waits}`).join(", ")}</span>
      <button class="button quiet goto" title={T.page.goTo} onClick={() => { paletteOpen.value = true; }}><Icon path="M7 2a5 5 0 1 0 0 10A5 5 0 0 0 7 2m3.6 8.6L14.5 14.5" /><span class="word">{T.page.goTo}</span> <kbd>Ctrl K</kbd></button>
      <span class="small soft fact" title={T.page.tierHint}>{inserted(T.page.tier, { tier: <b>{known?.tier}</b> })}</span>
      <span class="small soft fact" title={T.page.userHint}>{known?.user}</span>
      <button class="button quiet" onClick={nextTheme} title={T.page.themeHint}><Icon path="M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2v12M8 4.5h2.5M8 8h5M8 11.5h2.5" /><span class="word">{T.page.theme(T.page.themes[theme.value])}</span></button>
      <Leave />
    </header>
  );
}

/** A view in the menu. Where something waits in it unseen, it says so and leads there. */
function Entry({ id, isHere }: { id: ViewId; isHere: boolean }): JSX.Element {
  const rest = waitingIn(id);
  const link = useRef<HTMLAnchorElement>(null);
  useLayoutEffect(() => {
    if (!isHere) return undefined;
    const look = (): void => inSight(link.current);
    look();
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, [isHere]);
  return <a href={to(id, rest ?? "")} aria-current={isHere ? "page" : undefined} ref={link} onFocus={(event) => inSight(event.currentTarget)}>{T.page.titles[id]}{rest !== null && <Waits />}</a>;
}

/** What stands for the words of a button where the screen is too narrow for them. */
function Icon({ path }: { path: string }): JSX.Element {
  return <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round"><path d={path} /></svg>;
}

/** The way out. What is wrong with it is said beside it. */
function Leave(): JSX.Element {
  const [problem, setProblem] = useState<string | null>(null);
  return (
    <>
      {problem !== null && <span class="small problem" role="alert">{plain(problem)}</span>}
      <button class="button quiet" title={T.page.logOutHint}
        onClick={() => void logout().then(setProblem)}><Icon path="M6.5 2.5h-3v11h3M6.5 8H14m-3-3 3 3-3 3" /><span class="word">{T.page.logOut}</span></button>
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
        <span>{inserted(told.error === null ? T.page.reloaded : T.page.notReloaded, { files: <b class="mono">{files}</b> })}</span>
        {told.error !== null && <pre>{plain(told.error)}</pre>}
      </div>
      <button class="button quiet" onClick={() => { reload.value = null; }}>{T.common.dismiss}</button>
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
        <span>{inserted(T.page.elsewhere, { tool: <b class="mono">{plain(told.tool)}</b> })}{told.notification !== null && <>: {plain(told.notification)}</>}</span>
        {told.files.length > 0 && <ul class="row">{told.files.slice(0, MOST_NAMED).map((file) => (
          <li key={String(file["uri"])}><a class="mono" href={to("show", String(file["uri"]), { name: String(file["name"]) })}>{plain(String(file["name"]))}</a></li>
        ))}{told.files.length > MOST_NAMED && <li class="soft">{T.common.more(told.files.length - MOST_NAMED)}</li>}</ul>}
      </div>
      <button class="button quiet" onClick={() => { elsewhere.value = null; }}>{T.common.dismiss}</button>
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
      <h1>{asks ? T.door.logIn : T.door.needsKey}</h1>
      <p>{provider ? T.door.byProvider : asks ? T.door.byToken : T.door.goOn(why)}</p>
      {provider && <div><a class="button main" href={LOGIN}>{T.door.logIn}</a></div>}
      {!asks && (
        <p class="soft">{inserted(T.door.where, { address: <code>http://127.0.0.1:8000/?key=…</code>, serve: <code>runner serve</code>, dev: <code>runner dev</code> })}</p>
      )}
      {asks && !provider && (
        <form class="stack" onSubmit={(event) => void send(event)}>
          <div class="field">
            <label class="label" for="token">{T.door.token}</label>
            <input id="token" ref={field} class="input" type="password" autocomplete="off" required value={token}
              onInput={(event) => setToken(event.currentTarget.value)} aria-describedby="token-hint" />
            <span class="hint" id="token-hint">{T.door.tokenHint}</span>
          </div>
          {problem !== null && <p class="problem" role="alert">{problem}</p>}
          <div><button class="button main">{T.door.logIn}</button></div>
        </form>
      )}
    </main>
  );
}
