/** Text of a tool, line by line; a line that is too long to be read is folded, and opens on a click. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { plain } from "../model/plain";
import { count } from "../texts/numbers";

const LONG = 4_000;
const SHOWN = 1_000;
const MOST_FOLDS = 200;

type Piece = string | { rest: string };

export function Folded({ text }: { text: string }): JSX.Element {
  const pieces = useMemo(() => piecesOf(text), [text]);
  return <>{pieces.map((piece, index) => (typeof piece === "string" ? plain(piece) : <Fold key={index} text={piece.rest} />))}</>;
}

/** Whether a text has a line that would be folded. */
export function hasLongLine(text: string): boolean {
  return text.length > LONG && new RegExp(`[^\\n]{${LONG + 1}}`).test(text);
}

function piecesOf(text: string): Piece[] {
  if (!hasLongLine(text)) return [text];
  const pieces: Piece[] = [];
  let folds = 0;
  for (const line of text.split(/(?<=\n)/)) {
    const last = pieces.at(-1);
    if (line.length > LONG && folds < MOST_FOLDS) {
      const end = line.endsWith("\n") ? "\n" : "";
      pieces.push(line.slice(0, SHOWN), { rest: line.slice(SHOWN, line.length - end.length) }, end);
      folds += 1;
    } else if (typeof last === "string") pieces[pieces.length - 1] = last + line;
    else pieces.push(line);
  }
  return pieces;
}

function Fold({ text }: { text: string }): JSX.Element {
  const open = useSignal(false);
  if (open.value) return <>{plain(text)}</>;
  return <button type="button" class="fold" onClick={() => { open.value = true; }}>{`… ${count(text.length)} more characters in this line`}</button>;
}
