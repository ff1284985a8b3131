/**
 * The loudest moments of a WAV file, for a picture of it. Counted while it is read, so that no more than a piece of it is
 * held. Compressed sound is not unpacked for a picture: a browser unpacks all of it at once, and a small file can hold days.
 *
 * Source: Multimedia Programming Interface and Data Specifications 1.0, "WAVE".
 */
import { bytes } from "../model/files";
import type { Item } from "./items";

const MOST_BYTES = 100_000_000;
const HEAD_BYTES = 65_536;
const INTEGERS = 1;
const FLOATS = 3;
const EXTENDED = 0xfffe;
// Samples looked at in all; of a long sound every so many.
const MOST_SAMPLES = 4_000_000;

interface Form {
  at: number;
  length: number;
  /** Bytes of one moment, and of one sample of it. */
  frame: number;
  sample: number;
  floats: boolean;
}

/** Return `columns` parts of the sound, each with its loudest moment between 0 and 1; null where it is no such file. */
export async function peaks(item: Item, columns: number, signal: AbortSignal): Promise<number[] | null> {
  if (item.size > MOST_BYTES || item.size < 44) return null;
  const form = formOf(new DataView(await (await bytes(item.uri, { from: 0, to: Math.min(HEAD_BYTES, item.size) }, signal)).arrayBuffer()), item.size);
  if (form === null) return null;
  const frames = Math.floor(form.length / form.frame);
  if (frames === 0) return null;
  const found = new Array<number>(Math.min(columns, frames)).fill(0);
  const step = Math.max(1, Math.floor(frames / MOST_SAMPLES));
  const { body } = await bytes(item.uri, { from: form.at, to: form.at + frames * form.frame }, signal);
  const reader = body?.getReader();
  let rest = new Uint8Array();
  let frame = 0;
  for (let next = await reader?.read(); next !== undefined && !next.done; next = await reader?.read()) {
    const piece = new Uint8Array(rest.length + next.value.length);
    piece.set(rest);
    piece.set(next.value, rest.length);
    const whole = Math.floor(piece.length / form.frame);
    const view = new DataView(piece.buffer);
    for (let at = (step - (frame % step)) % step; at < whole; at += step) {
      const column = Math.min(found.length - 1, Math.floor(((frame + at) / frames) * found.length));
      const loud = Math.abs(sampleAt(view, at * form.frame, form));
      if (loud > (found[column] ?? 0)) found[column] = Math.min(1, loud);
    }
    frame += whole;
    rest = piece.slice(whole * form.frame);
  }
  return found;
}

function formOf(head: DataView, size: number): Form | null {
  if (head.byteLength < 12 || head.getUint32(0) !== 0x52494646 || head.getUint32(8) !== 0x57415645) return null;
  let form: Pick<Form, "frame" | "sample" | "floats"> | null = null;
  for (let at = 12; at + 8 <= head.byteLength;) {
    const [name, length] = [head.getUint32(at), head.getUint32(at + 4, true)];
    if (name === 0x666d7420 && at + 24 <= head.byteLength) {
      const kind = head.getUint16(at + 8, true);
      const format = kind === EXTENDED && at + 34 <= head.byteLength ? head.getUint16(at + 32, true) : kind;
      const [channels, frame, bits] = [head.getUint16(at + 10, true), head.getUint16(at + 20, true), head.getUint16(at + 22, true)];
      const known = format === FLOATS ? bits === 32 : format === INTEGERS && [8, 16, 24, 32].includes(bits);
      if (!known || frame !== channels * (bits / 8) || frame === 0) return null;
      form = { frame, sample: bits / 8, floats: format === FLOATS };
    }
    if (name === 0x64617461) return form === null ? null : { ...form, at: at + 8, length: Math.min(length, size - at - 8) };
    at += 8 + length + (length % 2);
  }
  return null;
}

/** The first channel of a moment, between -1 and 1. */
function sampleAt(view: DataView, at: number, { sample, floats }: Form): number {
  if (floats) return view.getFloat32(at, true) || 0;
  switch (sample) {
    case 1: return (view.getUint8(at) - 128) / 128;
    case 2: return view.getInt16(at, true) / 32_768;
    case 3: return (view.getUint16(at, true) + view.getInt8(at + 2) * 65_536) / 8_388_608;
    default: return view.getInt32(at, true) / 2_147_483_648;
  }
}
