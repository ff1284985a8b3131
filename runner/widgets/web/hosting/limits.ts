/** How much of the page a widget may take: its height, its time, and how often it may speak. */

export const LIMITS = {
  minHeight: 48,
  maxHeight: 2_000,
  /** Messages a second, and how many at once after a silence. */
  messagesPerSecond: 50,
  burst: 100,
  /** Milliseconds of the page's time that messages may take in a second, and at once after a silence. */
  busyMsPerSecond: 100,
  busyBurstMs: 200,
  /** Tool calls a second, and at once after a silence. */
  callsPerSecond: 5,
  callsBurst: 20,
  /** Requests that wait for an answer at the same time. */
  open: 16,
  /** Characters of JSON in one message. */
  messageChars: 1_000_000,
  /** Milliseconds a widget has to clean up before its frame goes. */
  teardownMs: 500,
  /** Milliseconds between two questions whether the widget is alive, and of silence until it counts as hanging. */
  pingMs: 1_000,
  hangMs: 5_000,
  /** Milliseconds between two changes of its height. */
  resizeMs: 100,
};

export type Limits = typeof LIMITS;

/** A height that may be used, or nothing where none was given. */
export function clampHeight(given: unknown, { minHeight, maxHeight }: Limits): number | undefined {
  if (typeof given !== "number" || !Number.isFinite(given)) return undefined;
  return Math.round(Math.min(Math.max(given, minHeight), maxHeight));
}

/** So much a second, and more at once after a silence. Time is an argument, in milliseconds. */
export class Budget {
  readonly #perSecond: number;
  readonly #most: number;
  #left: number;
  #at: number | undefined;

  constructor(perSecond: number, most: number) {
    this.#perSecond = perSecond;
    this.#most = most;
    this.#left = most;
  }

  /** Whether there is something left; looking costs nothing. */
  left(now: number): boolean {
    const passed = now - (this.#at ?? now);
    this.#at = now;
    this.#left = Math.min(this.#most, this.#left + (passed / 1000) * this.#perSecond);
    return this.#left > 0;
  }

  /** Take something that was used, whether or not it was left: what is owed is waited for. */
  charge(amount: number): void {
    this.#left -= amount;
  }

  /** Take one, if there is one. */
  admits(now: number): boolean {
    this.left(now);
    if (this.#left < 1) return false;
    this.#left -= 1;
    return true;
  }
}
