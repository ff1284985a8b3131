/**
 * Characters that nobody sees, and that change what is seen: turned directions, fillers, tags of U+E0000 and after, which
 * say things to a model only. Not among them: the joiners that scripts and emoji need.
 *
 * Source: Unicode 16, Default_Ignorable_Code_Point and Bidi_Control; Unicode Technical Report 36.
 */

const UNSEEN =
  "\\u00AD\\u034F\\u061C\\u115F\\u1160\\u17B4\\u17B5\\u180B-\\u180F\\u200B\\u200E\\u200F\\u2028-\\u202E\\u2060-\\u206F\\u3164\\uFEFF\\uFFA0\\uFFF0-\\uFFFB" +
  "\\u{1BCA0}-\\u{1BCA3}\\u{1D173}-\\u{1D17A}\\u{E0000}-\\u{E0FFF}";

/** One of them, to split by. */
export const HIDDEN = new RegExp(`([${UNSEEN}])`, "u");

/** Any of them, and any control character but tab and line feed. */
export const HIDDEN_OR_CONTROL = new RegExp(`[\\u0000-\\u0008\\u000B-\\u001F\\u007F-\\u009F${UNSEEN}]`, "gu");
