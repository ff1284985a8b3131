/**
 * The documented hooks as plain functions: `useTheme()` is the value now, `useTheme.subscribe(listener)` hears
 * of its changes and returns the function that ends that.
 */

import type { Runtime } from "./runtime.ts";
import type { Listener } from "./store.ts";
import type { Values } from "./types.ts";

export interface Hook<T> {
  (): T;
  subscribe(listener: Listener<T>): () => void;
}

export interface Hooks {
  useToolInput: Hook<Values["toolInput"]>;
  useToolOutput: Hook<Values["toolOutput"]>;
  useToolResponseMetadata: Hook<Values["toolResponseMetadata"]>;
  useWidgetState: Hook<Values["widgetState"]>;
  useTheme: Hook<Values["theme"]>;
  useDisplayMode: Hook<Values["displayMode"]>;
  useMaxHeight: Hook<Values["maxHeight"]>;
  useLocale: Hook<Values["locale"]>;
  useUserAgent: Hook<Values["userAgent"]>;
  useSafeArea: Hook<Values["safeArea"]>;
  useView: Hook<Values["view"]>;
}

export function hooksOf(runtime: Runtime): Hooks {
  const hook = <K extends keyof Values>(key: K): Hook<Values[K]> =>
    Object.assign(() => runtime.get(key), { subscribe: (listener: Listener<Values[K]>) => runtime.subscribe(key, listener) });
  return {
    useToolInput: hook("toolInput"),
    useToolOutput: hook("toolOutput"),
    useToolResponseMetadata: hook("toolResponseMetadata"),
    useWidgetState: hook("widgetState"),
    useTheme: hook("theme"),
    useDisplayMode: hook("displayMode"),
    useMaxHeight: hook("maxHeight"),
    useLocale: hook("locale"),
    useUserAgent: hook("userAgent"),
    useSafeArea: hook("safeArea"),
    useView: hook("view"),
  };
}
