/** What a result names and does not carry: references to what is kept, and links to resources. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { plain } from "../model/plain";
import { size } from "../texts/numbers";
import { Download } from "../views/download";
import { ResourceContent } from "../views/contents";
import { Viewed } from "./canvas";
import type { Item, Link } from "./items";

/** What is named by reference, each with a way to save it and to look at it. */
export function References({ items }: { items: Item[] }): JSX.Element {
  const opened = useSignal<string | null>(null);
  const problem = useSignal<string | null>(null);
  return (
    <section class="stack" aria-label="Taken out of the result">
      <h2 class="part">Taken out of the result</h2>
      {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
      <ul class="stack">
        {items.map((item) => (
          <li key={item.uri} class="stack">
            <span class="row"><span class="grow"><b class="mono">{plain(item.name)}</b> <span class="soft small">{item.mime}, {size(item.size)}</span></span>
              <button class="button quiet" aria-expanded={opened.value === item.uri} onClick={() => { opened.value = opened.value === item.uri ? null : item.uri; }}>{opened.value === item.uri ? "Hide" : "Show"}</button>
              <Download uri={item.uri} name={item.name} failed={(why) => { problem.value = `${item.name} cannot be downloaded: ${why}.`; }} /></span>
            {opened.value === item.uri && <Viewed item={item} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Resources that a result names. Nothing is read before somebody opens it. */
export function Links({ links }: { links: Link[] }): JSX.Element {
  return (
    <section class="stack" aria-label="Linked resources">
      <h2 class="part">Linked resources</h2>
      <ul class="stack">
        {links.map((link) => <li key={link.uri}><Linked link={link} /></li>)}
      </ul>
    </section>
  );
}

function Linked({ link }: { link: Link }): JSX.Element {
  const open = useSignal(false);
  return (
    <details onToggle={(event) => { open.value = event.currentTarget.open; }}>
      <summary><span class="mono">{plain(link.name)}</span> <span class="soft small">{plain([link.about, link.uri].filter((part) => part !== "").join(", "))}</span></summary>
      {open.value && <ResourceContent uri={link.uri} />}
    </details>
  );
}
