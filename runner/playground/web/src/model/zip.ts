/** Files as one ZIP archive, made in the browser: stored as they are, since most are packed already. */
import { Zip, ZipPassThrough } from "fflate";

export interface Entry {
  name: string;
  open(): Promise<Response>;
}

const MOST_BYTES = 0xffff_ffff;

/** Throws an Error that says which file cannot be had, or that all are more than an archive takes. */
export async function zip(entries: Entry[]): Promise<Blob> {
  // The browser keeps the pieces where it has room.
  const pieces: Blob[] = [];
  const archive = new Zip((error, data) => {
    if (error !== null) throw error;
    pieces.push(new Blob([data as Uint8Array<ArrayBuffer>]));
  });
  const taken = new Set<string>();
  let size = 0;
  for (const entry of entries) {
    // Files of one name get different ones, as a file system would want them.
    const [stem = "", ending = ""] = entry.name.split(/(?=\.[^.]*$)(?!^)/);
    let { name } = entry;
    for (let count = 2; taken.has(name); count += 1) name = `${stem}_${count}${ending}`;
    taken.add(name);
    const response = await entry.open().catch((error: Error) => { throw new Error(`${entry.name}: ${error.message}`); });
    const file = new ZipPassThrough(name);
    archive.add(file);
    const reader = response.body?.getReader();
    for (let next = await reader?.read(); next !== undefined && !next.done; next = await reader?.read()) {
      size += next.value.length;
      if (size > MOST_BYTES) throw new Error("together the files are more than 4 GB, which no archive of this kind takes; download them one by one");
      file.push(next.value);
    }
    file.push(new Uint8Array(), true);
  }
  archive.end();
  return new Blob(pieces, { type: "application/zip" });
}
