/** What is in a ZIP archive, and each of its files in the viewer of its kind. Nothing is unpacked before somebody looks at it. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { holdBytes, letGo } from "../model/files";
import { plain } from "../model/plain";
import { size } from "../texts/numbers";
import { useRows } from "../views/rows";
import { MOST_ENTRIES, opened, unpacked, type Archive, type Entry } from "./archive";
import { ItemView, Trouble, Waiting } from "./canvas";
import { useLoaded } from "./content";
import { viewerOf, type Item } from "./items";
import { T } from "../texts/texts";

const MOST_BYTES = 20_000_000;
const HEIGHT = 34;

export function ArchiveView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => opened(item, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  return loaded.value === null ? <Waiting /> : <Listed archive={loaded.value} />;
}

function Listed({ archive }: { archive: Archive }): JSX.Element {
  const asked = useSignal("");
  const looked = useSignal<Entry | null>(null);
  const shown = useMemo(() => archive.entries.filter((each) => each.name.toLowerCase().includes(asked.value.toLowerCase())), [archive, asked.value]);
  const rows = useRows(shown.length, HEIGHT);
  const said = archive.entries.reduce((sum, each) => sum + each.size, 0);
  return (
    <div class="stack">
      <div class="row">
        <input class="input compact" type="search" placeholder={T.viewers.searchArchive} aria-label={T.viewers.searchArchive} value={asked.value} onInput={(event) => { asked.value = event.currentTarget.value; rows.top(); }} />
        <span class="soft small" role="status">{T.viewers.entries(shown.length, archive.entries.length >= MOST_ENTRIES, said)}</span>
      </div>
      <div class="sheet" ref={rows.box} tabIndex={0} role="region" aria-label={T.viewers.entriesTitle} onScroll={rows.scrolled}>
        <table class="grid" aria-rowcount={shown.length + 1}>
          <thead><tr><th scope="col">{T.common.name}</th><th scope="col" class="number">{T.viewers.size}</th><th scope="col" class="number">{T.viewers.packed}</th></tr></thead>
          <tbody>
            <tr aria-hidden="true" class="gap" style={{ height: `${rows.above}px` }} />
            {shown.slice(rows.from, rows.to).map((entry, index) => (
              <tr key={rows.from + index} aria-rowindex={rows.from + index + 2} style={{ height: `${HEIGHT}px` }}>
                <td class="clip">{entry.name.endsWith("/") ? plain(entry.name) : <button class="sort" aria-expanded={looked.value === entry} onClick={() => { looked.value = looked.value === entry ? null : entry; }}>{plain(entry.name.slice(0, 500))}</button>}
                  {leadsOut(entry.name) && <> <span class="badge destructive" title={T.viewers.leadsOutHint}>{T.viewers.leadsOut}</span></>}
                  {entry.locked && <> <span class="badge">{T.viewers.encrypted}</span></>}</td>
                <td class="number">{size(entry.size)}</td><td class="number">{size(entry.packed)}</td>
              </tr>
            ))}
            <tr aria-hidden="true" class="gap" style={{ height: `${rows.below}px` }} />
          </tbody>
        </table>
      </div>
      {looked.value !== null && <Look key={archive.entries.indexOf(looked.value)} archive={archive} entry={looked.value} />}
    </div>
  );
}

function leadsOut(name: string): boolean {
  return /^([\\/]|[A-Za-z]:)/.test(name) || name.split(/[\\/]/).includes("..");
}

function Look({ archive, entry }: { archive: Archive; entry: Entry }): JSX.Element {
  const loaded = useLoaded(archive.item, async (signal): Promise<Item> => {
    const data = await unpacked(archive, entry, MOST_BYTES, signal);
    const name = /[^\\/]*$/.exec(entry.name)?.[0] || "file";
    const mime = "application/octet-stream";
    return { name, mime, ...holdBytes(data), description: entry.name, expires: null, viewer: viewerOf(name, mime, null) };
  });
  useEffect(() => () => { if (loaded.value !== null) letGo(loaded.value.uri); }, [loaded.value]);
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  return loaded.value === null ? <Waiting /> : <ItemView item={loaded.value} />;
}
