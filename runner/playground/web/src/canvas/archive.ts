/**
 * The ZIP archive that a workbook is, read part by part. What it declares of sizes is not believed: unpacking ends at the
 * bound that the caller gives, and pauses so that the page stays usable.
 */
import { Unzip, UnzipInflate } from "fflate";
import { bytes } from "../model/files";
import type { Item } from "./items";

export interface Archive {
  data: Uint8Array;
  names: string[];
}

const MOST_BYTES = 100_000_000;
const STEP_BYTES = 65_536;
const STEPS_AT_ONCE = 64;

/** Read an archive. Throws an Error where it is not one. */
export async function opened(item: Item, signal: AbortSignal): Promise<Archive> {
  if (item.size > MOST_BYTES) throw new Error("it is too large to be shown here; download it");
  const data = new Uint8Array(await (await bytes(item.uri, undefined, signal)).arrayBuffer());
  const names: string[] = [];
  await passed(data, signal, new Unzip((file) => { names.push(file.name); }));
  if (names.length === 0) throw new Error("it is not a ZIP archive, or only a part of one");
  return { data, names };
}

/** The text of an entry; null where there is none of that name. Throws an Error as soon as it has more than `most` bytes. */
export async function readPart({ data, names }: Archive, name: string, most: number, signal: AbortSignal): Promise<string | null> {
  if (!names.includes(name)) return null;
  const decoder = new TextDecoder();
  let size = 0;
  let text = "";
  const unzip = new Unzip((file) => {
    if (file.name !== name) return;
    file.ondata = (error, piece, final) => {
      if (error !== null) throw error;
      size += piece.length;
      if (size > most) throw new Error("unpacked it is too large to be shown here; download it");
      text += decoder.decode(piece, { stream: !final });
    };
    file.start();
  });
  unzip.register(UnzipInflate);
  await passed(data, signal, unzip);
  return text;
}

/** Push an archive through a reader of it, in steps that nobody notices. */
async function passed(data: Uint8Array, signal: AbortSignal, unzip: Unzip): Promise<void> {
  for (let step = 0; step * STEP_BYTES < data.length; step += 1) {
    try {
      unzip.push(data.subarray(step * STEP_BYTES, (step + 1) * STEP_BYTES), (step + 1) * STEP_BYTES >= data.length);
    } catch (error) {
      // Errors of the library have a code.
      throw typeof (error as { code?: unknown }).code === "number" ? new Error("it is damaged") : error;
    }
    if (step % STEPS_AT_ONCE === STEPS_AT_ONCE - 1) await new Promise((done) => setTimeout(done));
    signal.throwIfAborted();
  }
}
