/**
 * The runtime of a widget: one set of values and methods in every kind of host.
 *
 * - `window.openai` is there: it is used as it is and never overwritten.
 * - The page is in a frame: MCP Apps messages with the parent, and `window.openai` is made of them.
 * - Otherwise there is no host: values keep their defaults, every method is rejected.
 */

import { noHost } from "./host.ts";
import type { Host, HostKind } from "./host.ts";
import { McpHost } from "./mcp.ts";
import { NativeHost } from "./native.ts";
import { asksToClose, isDict } from "./read.ts";
import { Store, firstValues } from "./store.ts";
import type { Listener } from "./store.ts";
import type { Dict, Globals, Methods, Values } from "./types.ts";
import { GLOBAL_NAMES, METHOD_NAMES } from "./types.ts";

const CHANGED = "openai:set_globals";

export interface Runtime extends Methods {
  readonly kind: HostKind;
  readonly ready: Promise<void>;
  get<K extends keyof Values>(key: K): Values[K];
  subscribe<K extends keyof Values>(key: K, listener: Listener<Values[K]>): () => void;
}

/** Find the host of this page and start to speak with it. */
export function openRuntime(): Runtime {
  const store = new Store(firstValues());
  let host: Host = noHost;
  let surface: Dict | undefined;

  const publish = (patch: Partial<Values>): void => {
    store.set(patch);
    const globals = pick(patch);
    if (surface !== undefined && Object.keys(globals).length > 0) {
      window.dispatchEvent(new CustomEvent(CHANGED, { detail: { globals } }));
    }
  };
  const methods = {} as Dict;
  for (const name of METHOD_NAMES) {
    // Late: the host may be found after the first call was written down.
    methods[name] = async (...args: unknown[]) => (host[name] as (...given: unknown[]) => Promise<unknown>)(...args);
  }

  const adopt = (): boolean => {
    const api = given();
    if (api === undefined || api === surface) return false;
    surface = undefined;
    host = new NativeHost(api, (patch) => store.set(patch));
    if (asksToClose({ _meta: store.get("toolResponseMetadata") })) host.requestClose().catch(() => undefined);
    return true;
  };
  window.addEventListener(CHANGED, () => void adopt());
  if (!adopt()) {
    surface = openaiSurface(store, methods);
    Object.defineProperty(window, "openai", { value: surface, configurable: true, writable: true });
    if (window.parent !== window) host = new McpHost(window.parent, document.title || "widget", publish);
  }
  return Object.assign(
    {
      get: store.get.bind(store),
      subscribe: store.subscribe.bind(store),
      get kind() {
        return host.kind;
      },
      get ready() {
        return host.ready;
      },
    } as Omit<Runtime, keyof Methods>,
    methods as unknown as Methods,
  );
}

function given(): Dict | undefined {
  const api = (window as unknown as Dict)["openai"];
  return isDict(api) ? api : undefined;
}

function openaiSurface(store: Store, methods: Dict): Dict {
  const surface: Dict = { ...methods };
  for (const name of GLOBAL_NAMES) {
    Object.defineProperty(surface, name, { get: () => store.get(name), enumerable: true });
  }
  return surface;
}

function pick(patch: Partial<Values>): Partial<Globals> {
  const names = GLOBAL_NAMES.filter((name) => name in patch);
  return Object.fromEntries(names.map((name) => [name, patch[name]])) as Partial<Globals>;
}
