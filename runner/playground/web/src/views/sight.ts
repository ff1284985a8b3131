/** What a press brings about comes into sight, where it stands below or beside something long. */

/** Unless enough of it is seen already. */
export function bringIntoSight(place: HTMLElement | null): void {
  if (place === null) return;
  const { top, bottom } = place.getBoundingClientRect();
  const begins = top >= 0 && top < innerHeight * 0.4;
  const fills = top < 0 && bottom > innerHeight * 0.6;
  if (begins || fills) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  place.scrollIntoView({ block: "start", behavior: still ? "instant" : "smooth" });
}

/** For `ref`: a part that may lie outside of the list or page that scrolls. */
export function inSight(part: HTMLElement | null): void {
  part?.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
}
