/** Text of tools as it is written into the page. */
import { plain } from "../../../../widgets/web/lib/hidden.ts";

export { plain };

/** The same, cut where nobody would read on. */
export function brief(text: string, most: number): string {
  return text.length <= most ? plain(text) : `${plain(text.slice(0, most))}…`;
}
