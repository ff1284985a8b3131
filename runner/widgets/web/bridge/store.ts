/** The values of a widget, and who wants to hear of their changes. */

import type { Values } from "./types.ts";

export type Listener<T> = (value: T) => void;

export class Store {
  readonly #values: Values;
  readonly #listeners = new Map<keyof Values, Set<Listener<never>>>();

  constructor(values: Values) {
    this.#values = values;
  }

  get<K extends keyof Values>(key: K): Values[K] {
    return this.#values[key];
  }

  /** Call `listener` at each change of one value; the returned function ends that. */
  subscribe<K extends keyof Values>(key: K, listener: Listener<Values[K]>): () => void {
    const listeners = this.#listeners.get(key) ?? new Set<Listener<never>>();
    this.#listeners.set(key, listeners);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }

  /** Take new values over, all of them before the first listener hears of one. */
  set(patch: Partial<Values>): void {
    const changed = (Object.keys(patch) as (keyof Values)[]).filter((key) => patch[key] !== this.#values[key]);
    for (const key of changed) this.#put(key, patch[key] as Values[typeof key]);
    for (const key of changed) this.#tell(key);
  }

  #put<K extends keyof Values>(key: K, value: Values[K]): void {
    this.#values[key] = value;
  }

  #tell<K extends keyof Values>(key: K): void {
    for (const listener of [...(this.#listeners.get(key) ?? [])]) {
      try {
        (listener as Listener<Values[K]>)(this.#values[key]);
      } catch (error) {
        // One listener's fault is not the next one's.
        console.error("a listener of the widget failed", error);
      }
    }
  }
}

/** What holds before a host has said anything. */
export function firstValues(): Values {
  const matches = (query: string): boolean => typeof matchMedia === "function" && matchMedia(query).matches;
  return {
    toolInput: {},
    toolOutput: null,
    toolResponseMetadata: null,
    widgetState: null,
    theme: matches("(prefers-color-scheme: dark)") ? "dark" : "light",
    locale: "",
    displayMode: "inline",
    maxHeight: undefined,
    userAgent: {
      device: { type: "unknown" },
      capabilities: { hover: matches("(hover: hover)"), touch: matches("(pointer: coarse)") },
    },
    safeArea: { insets: { top: 0, right: 0, bottom: 0, left: 0 } },
    view: { mode: "inline" },
    call: { state: "waiting", message: "" },
  };
}
