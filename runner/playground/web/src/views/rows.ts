/** Which rows of a long list are in sight: only those are on the page. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { RefObject } from "preact";

// Rows above and below those in sight, so that scrolling shows no gap.
const BEYOND = 10;

export interface Rows {
  box: RefObject<HTMLDivElement | null>;
  /** The first row that is on the page, and the one behind the last. */
  from: number;
  to: number;
  /** Pixels for the rows above and below. */
  above: number;
  below: number;
  scrolled(): void;
  top(): void;
}

// Browsers know no larger boxes; of more rows than fit into it, each pixel stands for several.
const MOST_PIXELS = 8_000_000;

/** Rows of `height` pixels each, in a box that scrolls by itself. */
export function useRows(count: number, height: number): Rows {
  const box = useRef<HTMLDivElement>(null);
  const at = useSignal({ first: 0, shown: 40 });
  const pixels = Math.min(count * height, MOST_PIXELS);
  const per = count === 0 ? height : pixels / count;
  const scrolled = (): void => {
    const element = box.current;
    if (element === null) return;
    const first = Math.max(0, Math.floor(element.scrollTop / per) - BEYOND);
    const shown = Math.ceil(Math.max(element.clientHeight, height) / height) + 2 * BEYOND;
    if (first !== at.value.first || shown !== at.value.shown) at.value = { first, shown };
  };
  useEffect(() => {
    scrolled();
    const watching = new ResizeObserver(scrolled);
    if (box.current !== null) watching.observe(box.current);
    return () => watching.disconnect();
  }, [count, height]);
  const from = Math.min(at.value.first, Math.max(0, count - at.value.shown));
  const to = Math.min(count, from + at.value.shown);
  const above = Math.round(from * per);
  return { box, from, to, above, below: Math.max(0, Math.round(pixels - above - (to - from) * height)), scrolled, top: () => { box.current?.scrollTo(0, 0); } };
}
