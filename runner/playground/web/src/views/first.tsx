/** A first visit: what this page is, shown by one call that a person makes. */
import type { JSX } from "preact";
import { toJson, type Json } from "../model/json";
import { start } from "../model/runs";
import type { Tool } from "../model/tools";
import { info } from "../model/info";
import { plain } from "../model/plain";

export function First({ tool, sample, fill }: { tool: Tool; sample: { [key: string]: Json }; fill: (value: { [key: string]: Json }) => void }): JSX.Element {
  // Anything else may do something that cannot be taken back: the arguments are shown, and a person presses Run.
  const harmless = tool.annotations["readOnlyHint"] === true;
  const given = Object.keys(sample).length > 0;
  return (
    <section class="card" aria-label="What this page is">
      <div class="body stack">
        <h2>Call a tool and see what it does</h2>
        <p>A tool is a function of this server that a model can call. Here you call it yourself{info.value?.kind === "tools" ? ", in the same sandbox and with the same limits" : ""}.</p>
        <p>A sample call of this tool:</p>
        <pre class="code" tabIndex={0}><b>{plain(tool.name)}</b> {plain(toJson(sample, 2).slice(0, MOST))}</pre>
        <div class="row">
          {harmless
            ? <button class="button" onClick={() => { fill(sample); start(tool.name, sample); }}>Make this sample call</button>
            : given
              ? <button class="button" onClick={() => { fill(sample); document.querySelector<HTMLElement>("section[aria-label=Arguments] .button.main")?.focus(); }}>Fill in the sample</button>
              : <span class="soft">Press Run: this tool takes no arguments.</span>}
        </div>
        <ol class="soft small steps">
          <li><b>Result</b>: what the tool returned, with its files and pictures.</li>
          <li><b>As a model sees it</b>: the text that a model would read, and its length.</li>
          <li><b>Timing, Sandbox, Log, Messages</b>: what each step took, what was denied and what would allow it, and what was said on the way.</li>
        </ol>
        {!harmless && given && <p class="soft small">Filling in runs nothing. The server does not say that this tool only reads, so you press Run yourself.</p>}
      </div>
    </section>
  );
}

const MOST = 2000;
