/** Light, dark, or as the system has it. */
import { computed, effect, signal } from "@preact/signals";
import { recall, remember } from "./keep";

export type Theme = "system" | "light" | "dark";

const kept = recall("theme");
export const theme = signal<Theme>(kept === "light" || kept === "dark" ? kept : "system");

const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
system.addEventListener("change", () => { systemIsDark.value = system.matches; });

/** What the page looks like now. */
export const shade = computed<"light" | "dark">(() => (theme.value !== "system" ? theme.value : systemIsDark.value ? "dark" : "light"));

effect(() => {
  const chosen = theme.value;
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
  remember("theme", chosen === "system" ? null : chosen);
});

export function nextTheme(): void {
  theme.value = theme.value === "system" ? "light" : theme.value === "light" ? "dark" : "system";
}
