/** What a tool made may be such that showing it fails. Then this part of the page says so, and the rest stays. */
import type { ComponentChildren, JSX } from "preact";
import { useErrorBoundary } from "preact/hooks";
import { T } from "../texts/texts";

export function Guarded({ children }: { children: ComponentChildren }): JSX.Element {
  const [error] = useErrorBoundary() as [Error | undefined, () => void];
  if (error === undefined) return <>{children}</>;
  return <p class="problem" role="alert">{T.page.notShown(String(error.message).slice(0, 200))}</p>;
}
