/**
 * Files as one ZIP archive, made in the browser: stored as they are, since most are packed already. Each is read as a
 * stream, so that no more than one piece of it is looked at at a time; the browser keeps the pieces where it has room.
 *
 * Source: PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16; no ZIP64, which archives up to 4 GiB do without.
 */
import { T } from "../texts/texts";

export interface Entry {
  name: string;
  open(): Promise<Response>;
}

const MOST_BYTES = 0xffff_ffff;
const UTF8 = 0x0800;
const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value >>> 0;
});

/** Throws an Error that says which file cannot be had, or that all are more than an archive takes. */
export async function zip(entries: Entry[]): Promise<Blob> {
  const parts: BlobPart[] = [];
  const listed: Uint8Array<ArrayBuffer>[] = [];
  let at = 0;
  for (const { name, open } of distinct(entries)) {
    const { pieces, size, sum } = await read(name, open);
    const path = new TextEncoder().encode(name);
    const shared = [20, UTF8, 0, 0, 0x21] as const;
    const local = fields([[4, 0x04034b50], ...shared.map((value): Field => [2, value]), [4, sum], [4, size], [4, size], [2, path.length], [2, 0]]);
    listed.push(fields([[4, 0x02014b50], [2, 20], ...shared.map((value): Field => [2, value]), [4, sum], [4, size], [4, size], [2, path.length], [2, 0], [2, 0], [2, 0], [2, 0], [4, 0], [4, at]]), path);
    parts.push(local, path, ...pieces);
    at += local.length + path.length + size;
    if (at > MOST_BYTES) throw new Error(T.download.tooLargeTogether);
  }
  const length = listed.reduce((sum, each) => sum + each.length, 0);
  const end = fields([[4, 0x06054b50], [2, 0], [2, 0], [2, entries.length], [2, entries.length], [4, length], [4, at], [2, 0]]);
  return new Blob([...parts, ...listed, end], { type: "application/zip" });
}

/** Give files of one name different ones, as a file system would want them. */
function distinct(entries: Entry[]): Entry[] {
  const taken = new Set<string>();
  return entries.map((entry) => {
    const dot = entry.name.lastIndexOf(".");
    const [stem, ending] = dot > 0 ? [entry.name.slice(0, dot), entry.name.slice(dot)] : [entry.name, ""];
    let name = entry.name;
    for (let count = 2; taken.has(name); count += 1) name = `${stem}_${count}${ending}`;
    taken.add(name);
    return { ...entry, name };
  });
}

async function read(name: string, open: Entry["open"]): Promise<{ pieces: Blob[]; size: number; sum: number }> {
  let response: Response;
  try {
    response = await open();
  } catch (error) {
    throw new Error(`${name}: ${(error as Error).message}`);
  }
  const pieces: Blob[] = [];
  let size = 0;
  let sum = 0xffff_ffff;
  const reader = response.body?.getReader();
  for (let next = await reader?.read(); next !== undefined && !next.done; next = await reader?.read()) {
    for (const byte of next.value) sum = (TABLE[(sum ^ byte) & 0xff] ?? 0) ^ (sum >>> 8);
    size += next.value.length;
    pieces.push(new Blob([next.value as Uint8Array<ArrayBuffer>]));
  }
  return { pieces, size, sum: (sum ^ 0xffff_ffff) >>> 0 };
}

type Field = readonly [bytes: 2 | 4, value: number];

function fields(values: readonly Field[]): Uint8Array<ArrayBuffer> {
  const view = new DataView(new ArrayBuffer(values.reduce((sum, [bytes]) => sum + bytes, 0)));
  let at = 0;
  for (const [bytes, value] of values) {
    if (bytes === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += bytes;
  }
  return new Uint8Array(view.buffer);
}
