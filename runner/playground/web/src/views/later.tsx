/** Parts of the page that are loaded when somebody looks at them. One that could not be says so, and is asked for anew. */
import type { ComponentType, JSX } from "preact";
import { signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import { plain } from "../model/plain";
import { T } from "../texts/texts";

interface Said {
  /** Meanwhile; "" for nothing. */
  waiting?: () => string;
  /** Above the sentence that it could not be loaded, where it is all that is on the page. */
  title?: () => string;
}

/** A component that is loaded once, when it is first shown. */
export function later<P extends object>(load: () => Promise<ComponentType<P>>, { waiting = () => T.common.loading, title }: Said = {}): (props: P) => JSX.Element | null {
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
  return function Later(props: P): JSX.Element | null {
    const Part = loaded.value;
    // Whoever comes back to one that failed asks for it, too.
    useLayoutEffect(() => { if (Part === null) void ask(); }, []);
    if (Part !== null) return <Part {...props} />;
    if (problem.value !== null) return <div class="stack">{title !== undefined && <h1>{title()}</h1>}<NotLoaded why={problem.value} again={() => void ask()} /></div>;
    const said = waiting();
    return said === "" ? null : <p class="soft" role="status">{said}</p>;
  };
}

/** Also where the page is older than its server, and the part is there no more: then the page itself is loaded anew. */
function NotLoaded({ why, again }: { why: string; again: () => void }): JSX.Element {
  return (
    <div class="problem" role="alert">
      <p>{T.page.notLoaded(plain(why))}</p>
      <div class="row"><button class="button" onClick={again}>{T.common.tryAgain}</button><button class="button quiet" onClick={() => location.reload()}>{T.page.loadAnew}</button></div>
    </div>
  );
}
