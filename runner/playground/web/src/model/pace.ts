/** What a tool or a widget may make happen at any rate, the page does at its own. */

/** Ten times a second is as often as anyone can follow. */
export const PAINT_MS = 100;

/** Return what has `act` done soon: at once after a silence, and then not before `ms` milliseconds have passed. */
export function paced(act: () => void, ms: number = PAINT_MS): { soon: () => void; now: () => void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let wanted = false;
  const now = (): void => {
    wanted = false;
    act();
  };
  const soon = (): void => {
    wanted = true;
    if (timer !== undefined) return;
    now();
    timer = setTimeout(() => {
      timer = undefined;
      if (wanted) soon();
    }, ms);
  };
  return { soon, now };
}
