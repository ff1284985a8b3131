/** A divider between a form and its result: dragged, or moved by the arrow keys. Its place outlives a reload. */
import type { JSX } from "preact";
import { signal } from "@preact/signals";
import { recall, remember } from "../model/keep";

const KEY = "form width";
const LEAST = 300;
const MOST = 2000;
const STEP = 24;

/** Where it was put, in pixels; null where the page decides. */
const placed = signal<number | null>(null);

function place(width: number | null): void {
  placed.value = width;
  if (width === null) document.documentElement.style.removeProperty("--form-width");
  else document.documentElement.style.setProperty("--form-width", `${width}px`);
  remember(KEY, width === null ? null : String(width));
}

const kept = Number(recall(KEY) ?? Number.NaN);
if (kept >= LEAST) place(kept);

export function Divider(): JSX.Element {
  const moved = (divider: HTMLElement, x: number): void => {
    const row = divider.parentElement?.getBoundingClientRect();
    if (row !== undefined) place(Math.round(Math.min(row.width * 0.7, Math.max(LEAST, x - row.left))));
  };
  return (
    <div class="divider" role="separator" aria-orientation="vertical" aria-label="Resize the form" tabIndex={0}
      aria-valuemin={LEAST} aria-valuemax={MOST} aria-valuenow={placed.value ?? LEAST}
      onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
      onPointerMove={(event) => { if (event.currentTarget.hasPointerCapture(event.pointerId)) moved(event.currentTarget, event.clientX); }}
      onDblClick={() => place(null)}
      onKeyDown={(event) => {
        const step = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        moved(event.currentTarget, event.currentTarget.getBoundingClientRect().left + step);
      }} />
  );
}
