/** What a tool made may be such that showing it fails. Then this part of the page says so, and the rest stays. */
import type { ComponentChildren, JSX } from "preact";
import { useErrorBoundary } from "preact/hooks";

export function Guarded({ children }: { children: ComponentChildren }): JSX.Element {
  const [error] = useErrorBoundary() as [Error | undefined, () => void];
  if (error === undefined) return <>{children}</>;
  return <p class="problem" role="alert">{`This part cannot be shown: ${String(error.message).slice(0, 200)}. The rest of the page works on.`}</p>;
}
