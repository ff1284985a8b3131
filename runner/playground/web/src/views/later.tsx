/** Parts of the page that are loaded when somebody looks at them. One that failed says so, and can be retried. */
import type { ComponentType, JSX } from "preact";
import { signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import { plain } from "../model/plain";

/** A component that is loaded once, when it is first shown; `title` stands above the error where nothing else does. */
export function later<P extends object>(load: () => Promise<ComponentType<P>>, title?: string): (props: P) => JSX.Element {
  const loaded = signal<ComponentType<P> | null>(null);
  const problem = signal<string | null>(null);
  let isAsked = false;
  const ask = async (): Promise<void> => {
    if (isAsked) return;
    isAsked = true;
    problem.value = null;
    try {
      loaded.value = await load();
    } catch (error) {
      problem.value = (error as Error).message;
    } finally {
      isAsked = false;
    }
  };
  return function Later(props: P): JSX.Element {
    const Part = loaded.value;
    // Coming back to one that failed retries it, too.
    useLayoutEffect(() => { if (Part === null) void ask(); }, []);
    if (Part !== null) return <Part {...props} />;
    if (problem.value !== null) return <div class="stack">{title !== undefined && <h1>{title}</h1>}<NotLoaded why={problem.value} again={() => void ask()} /></div>;
    return <p class="soft" role="status">Loading…</p>;
  };
}

/** Also where the page is older than its server, and the part is there no more: then the page itself is reloaded. */
function NotLoaded({ why, again }: { why: string; again: () => void }): JSX.Element {
  return (
    <div class="problem" role="alert">
      <p>{`This part of the page could not be loaded: ${plain(why)}.`}</p>
      <div class="row"><button class="button" onClick={again}>Try again</button><button class="button quiet" onClick={() => location.reload()}>Reload the page</button></div>
    </div>
  );
}
