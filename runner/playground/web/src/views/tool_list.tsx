/** The tools, with search and badges. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { route, to } from "../model/route";
import { here as looked, ownProblems } from "../model/connections";
import { plain } from "../model/plain";
import { loadTools, tools, toolsLoading, toolsProblem, type Tool } from "../model/tools";

export function ToolList(): JSX.Element {
  const asked = useSignal("");
  const words = asked.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = tools.value.filter((tool) => matches(tool, words));
  return (
    <aside class="side" aria-label="Tools">
      <div class="inner">
        <label class="unseen" for="search">Search tools</label>
        <input id="search" class="input" type="search" placeholder="Search tools   /" value={asked.value}
          onInput={(event) => { asked.value = event.currentTarget.value; }} />
        {toolsProblem.value !== null && <div class="problem" role="alert"><p>{plain(toolsProblem.value)}</p><div><button class="button" onClick={() => void loadTools()}>Try again</button></div></div>}
        {looked.value.isOwn && Object.entries(ownProblems.value).map(([name, why]) => <p key={name} class="problem small" role="alert" title={plain(why)}><span><b class="mono">{plain(name)}</b> is down: {plain(why.slice(0, 200))}</span></p>)}
        {toolsLoading.value && toolsProblem.value === null && tools.value.length === 0 && <p class="soft" role="status">Loading…</p>}
        <ul class="tools strip">
          {found.map((tool) => (
            <li key={tool.name}>
              <a href={to("call", tool.name)} aria-current={here(tool) ? "page" : undefined} ref={here(tool) ? inSight : null}>
                <span class="mono">{tool.name}</span>
                <span class="about">{firstLine(tool.description)}</span>
                {tool.badges.length > 0 && <Badges of={tool} />}
              </a>
            </li>
          ))}
        </ul>
        {!toolsLoading.value && toolsProblem.value === null && found.length === 0 && (
          <p class="soft small">{tools.value.length === 0 ? "This server offers no tools." : "No tool has these words."}</p>
        )}
      </div>
    </aside>
  );
}

export function Badges({ of }: { of: Tool }): JSX.Element {
  return <span class="row">{of.badges.map((badge) => <span key={badge} class={`badge ${badge}`}>{badge}</span>)}</span>;
}

function inSight(link: HTMLElement | null): void {
  link?.scrollIntoView({ block: "nearest", inline: "nearest" });
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
