/** Acts that a tool or a widget may cause at any rate, done at the pace of the page. */

/** Return a function that has `act` done soon: at once after a silence, and then not before `ms` milliseconds have passed. */
export function paced(act: () => void, ms = 100): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let wanted = false;
  return function soon(): void {
    wanted = true;
    if (timer !== undefined) return;
    wanted = false;
    act();
    timer = setTimeout(() => {
      timer = undefined;
      if (wanted) soon();
    }, ms);
  };
}
