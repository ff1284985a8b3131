/** Which language the page speaks: the browser's, or the one that a person chose. Its messages are `T`. */
import { signal } from "@preact/signals";
import { recall, remember } from "../model/keep";
import { en, type Messages } from "./en";

/** Each language by its own name, and where its messages are. English is there at once; others are loaded when needed. */
export const LANGUAGES = {
  en: { name: "English", load: () => Promise.resolve(en) },
  de: { name: "Deutsch", load: () => import("./de").then((module) => module.de) },
} satisfies Record<string, { name: string; load: () => Promise<Messages> }>;

export type Language = keyof typeof LANGUAGES;

const KEY = "language";
const spoken = signal<Messages>(en);

/** The language that is spoken now. */
export const language = signal<Language>("en");
/** The one that a person chose; null where the browser chooses. */
export const chosenLanguage = signal<Language | null>(known(recall(KEY)));

/** The one that is wanted, and whose messages could not be loaded. */
export const missingLanguage = signal<Language | null>(null);

/** The messages of the language that is spoken. Whoever reads one while drawing is drawn anew when the language changes. */
export const T: Messages = new Proxy(en, { get: (_en, group) => spoken.value[group as keyof Messages] });

function known(name: string | null): Language | null {
  return name !== null && Object.hasOwn(LANGUAGES, name) ? (name as Language) : null;
}

function ofBrowser(): Language {
  for (const each of navigator.languages) {
    const found = known(each.split("-")[0]?.toLowerCase() ?? "");
    if (found !== null) return found;
  }
  return "en";
}

/** Speak the language that is chosen. Where its messages cannot be loaded, the language stays as it is. */
export async function speak(): Promise<void> {
  const wanted = chosenLanguage.value ?? ofBrowser();
  const messages = await LANGUAGES[wanted].load().catch(() => null);
  // Somebody may have chosen another meanwhile.
  if (wanted !== (chosenLanguage.value ?? ofBrowser())) return;
  missingLanguage.value = messages === null ? wanted : null;
  if (messages === null) return;
  spoken.value = messages;
  language.value = wanted;
  document.documentElement.lang = wanted;
}

/** Choose a language for this browser; null leaves it to the browser. */
export function chooseLanguage(wanted: Language | null): void {
  chosenLanguage.value = wanted;
  remember(KEY, wanted);
  void speak();
}
