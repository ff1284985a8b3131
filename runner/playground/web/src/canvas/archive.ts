/**
 * The ZIP archive that a workbook is. Read by ranges: of a large archive only its list and what somebody
 * looks at is fetched. What the list says of sizes is not believed: unpacking ends at the bound that the caller gives.
 *
 * Source: PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.
 */
import { bytes } from "../model/files";
import type { Item } from "./items";
import { T } from "../texts/texts";

interface Entry {
  name: string;
  packed: number;
  at: number;
  method: number;
  locked: boolean;
}

export interface Archive {
  item: Item;
  entries: Entry[];
}

const END_BYTES = 22;
const MOST_COMMENT = 65_535;
const MOST_LIST_BYTES = 8_000_000;
const MOST_ENTRIES = 20_000;
const STORED = 0;
const DEFLATED = 8;

async function part(item: Item, from: number, to: number, signal?: AbortSignal): Promise<DataView> {
  return new DataView(await (await bytes(item.uri, { from, to: Math.min(to, item.size) }, signal)).arrayBuffer());
}

/** Read the list of an archive. Throws an Error where it is none. */
export async function opened(item: Item, signal: AbortSignal): Promise<Archive> {
  const begin = Math.max(0, item.size - END_BYTES - MOST_COMMENT);
  const tail = item.size < END_BYTES ? new DataView(new ArrayBuffer(0)) : await part(item, begin, item.size, signal);
  let end = tail.byteLength - END_BYTES;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw new Error(T.viewers.noArchive);
  const [length, at] = [tail.getUint32(end + 12, true), tail.getUint32(end + 16, true)];
  if (at === 0xffff_ffff || length > MOST_LIST_BYTES) throw new Error(T.viewers.archiveTooLarge);
  if (length === 0) return { item, entries: [] };
  if (at + length > item.size) throw new Error(T.viewers.archiveDamaged);
  return { item, entries: listed(await part(item, at, at + length, signal)) };
}

function listed(list: DataView): Entry[] {
  const entries: Entry[] = [];
  let at = 0;
  while (at + 46 <= list.byteLength && list.getUint32(at, true) === 0x02014b50 && entries.length < MOST_ENTRIES) {
    const [name, extra, comment] = [list.getUint16(at + 28, true), list.getUint16(at + 30, true), list.getUint16(at + 32, true)];
    if (at + 46 + name > list.byteLength) break;
    entries.push({
      name: new TextDecoder().decode(new Uint8Array(list.buffer, list.byteOffset + at + 46, name)),
      packed: list.getUint32(at + 20, true),
      at: list.getUint32(at + 42, true),
      method: list.getUint16(at + 10, true),
      locked: (list.getUint16(at + 8, true) & 1) === 1,
    });
    at += 46 + name + extra + comment;
  }
  return entries;
}

/** Unpack an entry. Throws an Error as soon as it has more than `most` bytes, whatever the list says. */
async function unpacked(archive: Archive, entry: Entry, most: number, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
  if (entry.locked) throw new Error(T.viewers.isEncrypted);
  if (entry.method !== STORED && entry.method !== DEFLATED) throw new Error(T.viewers.unknownPacking);
  const head = await part(archive.item, entry.at, entry.at + 30, signal);
  if (head.byteLength < 30 || head.getUint32(0, true) !== 0x04034b50) throw new Error(T.viewers.damagedArchive);
  const from = entry.at + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  if (entry.packed > most) throw new Error(T.viewers.tooLarge);
  if (entry.packed === 0) return new Uint8Array();
  const { body } = await bytes(archive.item.uri, { from, to: Math.min(from + entry.packed, archive.item.size) }, signal);
  if (body === null) return new Uint8Array();
  const stream = entry.method === STORED ? body : body.pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader();
  const pieces: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read().catch(() => { throw new Error(T.viewers.damaged); });
    if (done) break;
    size += value.length;
    if (size > most) {
      void reader.cancel().catch(() => undefined);
      throw new Error(T.viewers.tooLargeUnpacked);
    }
    pieces.push(value);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** The text of an entry; null where there is none of that name. */
export async function readPart(archive: Archive, name: string, most: number, signal: AbortSignal): Promise<string | null> {
  const entry = archive.entries.find((each) => each.name === name);
  return entry === undefined ? null : new TextDecoder().decode(await unpacked(archive, entry, most, signal));
}
