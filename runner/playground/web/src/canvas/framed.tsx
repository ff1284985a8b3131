/** A frame around what a tool made, so that nobody takes it for the page itself. */
import type { ComponentChildren, JSX } from "preact";

export function Framed({ what, hint, children }: { what: string; hint: string; children: ComponentChildren }): JSX.Element {
  return (
    <div class="framed">
      <p class="framed-head"><b>{what}</b> <span>{hint}</span></p>
      {children}
    </div>
  );
}
