/** The mark of what waits for a person in another place: a dot, which has words for those who do not see it. */
import type { JSX } from "preact";
import { T } from "../texts/texts";

export function Waits(): JSX.Element {
  return <span class="dot" role="img" aria-label={T.page.waits} title={T.page.waits} />;
}
