/** Text of tools as it is written into the page. */
import { HIDDEN_OR_CONTROL } from "../../../../widgets/web/lib/hidden.ts";

/** Control characters, escape sequences of terminals and characters that nobody sees or that turn the direction are shown, not obeyed. */
export function plain(text: string): string {
  return text.replace(HIDDEN_OR_CONTROL, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

/** The same, cut where nobody would read on. */
export function brief(text: string, most: number): string {
  return text.length <= most ? plain(text) : `${plain(text.slice(0, most))}…`;
}
