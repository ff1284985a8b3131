/** The tools, with search and badges. */
import { Fragment, type JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { route, to } from "../model/route";
import { here as connected, problems } from "../model/connections";
import { plain } from "../model/plain";
import { inSight } from "./sight";
import { loadTools, tools, toolsLoading, toolsProblem, type Tool } from "../model/tools";

export function ToolList(): JSX.Element {
  const asked = useSignal("");
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = tools.value.filter((tool) => matches(tool, words));
  const list = useRef<HTMLUListElement>(null);
  // One stop in the order of focus: the tool that is shown, else the first of those listed.
  const stop = found.find(here) ?? found[0];
  const moved = (event: KeyboardEvent): void => {
    const links = [...(list.current?.querySelectorAll("a") ?? [])];
    const at = links.indexOf(event.target as HTMLAnchorElement);
    const next = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      if (next < 0) document.getElementById("search")?.focus();
      else links[Math.min(next, links.length - 1)]?.focus();
    } else if (event.key === "Tab" && !event.shiftKey && links[at]?.getAttribute("aria-current") === "page") {
      // Past what the server says of the tool and past the tabs, which are behind it in the other direction.
      const first = firstField();
      if (first === null) return;
      event.preventDefault();
      first.focus();
    }
  };
  const searched = (event: KeyboardEvent): void => {
    const first = found[0];
    if (event.key === "ArrowDown") {
      event.preventDefault();
      list.current?.querySelector("a")?.focus();
    } else if (event.key === "Enter" && first !== undefined) {
      event.preventDefault();
      location.hash = to("call", first.name);
      list.current?.querySelector("a")?.focus();
    }
  };
  return (
    <aside class="side" aria-label="Tools">
      <div class="inner">
        <label class="unseen" for="search">Search tools</label>
        <input id="search" class="input" type="search" placeholder={`Search tools   /`} value={asked.value}
          onInput={(event) => { asked.value = event.currentTarget.value; }} onKeyDown={searched} />
        {/* A lost server is named above every view. */}
        {toolsProblem.value !== null && connected.value.state.value !== "down" && <div class="problem" role="alert"><p>{plain(toolsProblem.value)}</p><div><button class="button" onClick={() => void loadTools()}>Try again</button></div></div>}
        {Object.entries(problems.value).map(([name, why]) => <p key={name} class="problem small" role="alert" title={plain(why)}><span><b class="mono">{plain(name)}</b> is down: {plain(why.slice(0, 200))}</span></p>)}
        {toolsLoading.value && toolsProblem.value === null && tools.value.length === 0 && <p class="soft" role="status">Loading…</p>}
        <ul class="tools strip" ref={list} onKeyDown={moved}>
          {found.map((tool) => (
            <li key={tool.name}>
              <a href={to("call", tool.name)} tabIndex={tool === stop ? 0 : -1} aria-current={here(tool) ? "page" : undefined} ref={here(tool) ? inSight : null}>
                <span class="mono"><Name text={tool.name} /></span>
                <span class="about">{firstLine(tool.description)}</span>
                {tool.badges.length > 0 && <Badges of={tool} />}
              </a>
            </li>
          ))}
        </ul>
        {!toolsLoading.value && toolsProblem.value === null && found.length === 0 && (
          <p class="soft small">{tools.value.length === 0 ? "This server offers no tools." : "No matching tools"}</p>
        )}
      </div>
    </aside>
  );
}

/** Where the form of the tool begins, or what runs it where it takes nothing. */
function firstField(): HTMLElement | null {
  const form = document.querySelector("section.arguments");
  return form?.querySelector<HTMLElement>("[role=tabpanel] :is(input, select, textarea, button):not(:disabled)") ?? form?.querySelector<HTMLElement>(".button.main") ?? null;
}

/** A name that goes on in the next line where one of its parts ends. */
function Name({ text }: { text: string }): JSX.Element {
  return <>{text.split(/(?<=[_./-])/).map((part, index) => <Fragment key={index}>{part}<wbr /></Fragment>)}</>;
}

export function Badges({ of }: { of: Tool }): JSX.Element {
  return <span class="row">{of.badges.map((badge) => <span key={badge} class={`badge ${badge}`}>{badge}</span>)}</span>;
}

function matches(tool: Tool, words: string[]): boolean {
  const text = `${tool.name} ${tool.title} ${tool.description} ${tool.badges.join(" ")}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function here(tool: Tool): boolean {
  const { view, rest } = route.value;
  return view === "call" && (rest === tool.name || (rest === "" && tools.value[0]?.name === tool.name));
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0] ?? "";
}
