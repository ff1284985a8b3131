/**
 * Characters that nobody sees, and that change what is seen: turned directions, fillers, tags of U+E0000 and after, which
 * say things to a model only. Not among them: the joiners that scripts and emoji need.
 *
 * Source: Unicode 16, Default_Ignorable_Code_Point and Bidi_Control; Unicode Technical Report 36.
 */

const UNSEEN =
  "\\u00AD\\u034F\\u061C\\u115F\\u1160\\u17B4\\u17B5\\u180B-\\u180F\\u200B\\u200E\\u200F\\u2028-\\u202E\\u2060-\\u206F\\u3164\\uFEFF\\uFFA0\\uFFF0-\\uFFFB" +
  "\\u{1BCA0}-\\u{1BCA3}\\u{1D173}-\\u{1D17A}\\u{E0000}-\\u{E0FFF}";

/** Any of them, and any control character but tab and line feed. */
const HIDDEN_OR_CONTROL = new RegExp(`[\\u0000-\\u0008\\u000B-\\u001F\\u007F-\\u009F${UNSEEN}]`, "gu");

/** Text in which control characters, escape sequences of terminals and characters that nobody sees or that turn the direction are shown, not obeyed. */
export function plain(text: string): string {
  return text.replace(HIDDEN_OR_CONTROL, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}
