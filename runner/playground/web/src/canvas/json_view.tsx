/** JSON: as a tree where it is small enough to be read whole, in parts where it is not. Whole numbers stay exact. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { bytes } from "../model/files";
import { isObject, parseJson, toJson, type Json } from "../model/json";
import { count, size } from "../texts/numbers";
import { plain } from "../model/plain";
import { Folded } from "../views/folded";
import { Trouble, Waiting } from "./canvas";
import { useLoaded } from "./content";
import type { Item } from "./items";

const MOST = 4_000_000;
const PART = 200_000;
const CHILDREN = 100;

export function JsonView({ item }: { item: Item }): JSX.Element {
  const lines = /\.(jsonl|ndjson)$/i.test(item.name) || /ndjson|jsonl/.test(item.mime);
  return lines || item.size > MOST ? <Parts item={item} /> : <Whole item={item} />;
}

function Whole({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, async (signal) => {
    const text = await (await bytes(item.uri, undefined, signal)).text();
    try {
      return { value: parseJson(text), text };
    } catch {
      return { value: undefined, text };
    }
  });
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  const { value, text } = loaded.value;
  if (value === undefined) return <pre class="code" tabIndex={0}><Folded text={text.slice(0, PART)} /></pre>;
  return <div class="code tree" role="tree" aria-label={item.name}><Node name={null} value={value} open /></div>;
}

export function Node({ name, value, open }: { name: string | null; value: Json; open: boolean }): JSX.Element {
  const opened = useSignal(open);
  const most = useSignal(CHILDREN);
  const children = childrenOf(value);
  const label = name === null ? null : <span class="key">{plain(name)}: </span>;
  if (children === null) return <div role="treeitem" class="leaf">{label}<span class={kind(value)}><Folded text={toJson(value)} /></span></div>;
  const summary = Array.isArray(value) ? `[${count(children.length)}]` : `{${count(children.length)}}`;
  return (
    <div role="treeitem" aria-expanded={opened.value}>
      <button class="twig" onClick={() => { opened.value = !opened.value; }} aria-expanded={opened.value}><span aria-hidden="true">{opened.value ? "▾" : "▸"}</span> {label}<span class="soft">{summary}</span></button>
      {opened.value && (
        <div role="group" class="branch">
          {children.slice(0, most.value).map(([key, child]) => <Node key={key} name={key} value={child} open={false} />)}
          {children.length > most.value && <button class="button quiet small" onClick={() => { most.value += CHILDREN * 10; }}>{`${count(children.length - most.value)} more`}</button>}
        </div>
      )}
    </div>
  );
}

function childrenOf(value: Json): [string, Json][] | null {
  if (Array.isArray(value)) return value.map((each, index) => [String(index), each]);
  return isObject(value) ? Object.entries(value) : null;
}

function kind(value: Json): string {
  return value === null ? "null" : typeof value;
}

/** Part after part of the text: nothing is parsed, so nothing takes long. */
function Parts({ item }: { item: Item }): JSX.Element {
  const at = useSignal(0);
  const parts = Math.max(1, Math.ceil(item.size / PART));
  return (
    <div class="stack">
      <div class="row">
        <button class="button" disabled={at.value === 0} onClick={() => { at.value -= 1; }}>Previous</button>
        <label class="soft small">part <input class="input compact" type="number" min={1} max={parts} value={at.value + 1}
          onChange={(event) => { at.value = Math.max(0, Math.min(parts - 1, Number(event.currentTarget.value) - 1)); }} /> {`of ${count(parts)}, ${size(item.size)} in all`}</label>
        <button class="button" disabled={at.value >= parts - 1} onClick={() => { at.value += 1; }}>Next</button>
      </div>
      <Part key={at.value} item={item} at={at.value} />
    </div>
  );
}

function Part({ item, at }: { item: Item; at: number }): JSX.Element {
  const loaded = useLoaded(item, async (signal) => {
    const to = Math.min(item.size, (at + 1) * PART);
    return new TextDecoder().decode(await (await bytes(item.uri, { from: at * PART, to }, signal)).arrayBuffer());
  });
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  return loaded.value === null ? <Waiting /> : <pre class="code" tabIndex={0}><Folded text={loaded.value} /></pre>;
}
