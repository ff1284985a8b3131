/** How much of the page a widget may take: its height, and how often it may speak. */

export interface Limits {
  minHeight: number;
  maxHeight: number;
  /** Messages a second, and how many at once after a silence. */
  messagesPerSecond: number;
  burst: number;
  /** Requests that wait for an answer at the same time. */
  open: number;
  /** Characters of JSON in one message. */
  messageChars: number;
  /** Milliseconds a widget has to clean up before its frame goes. */
  teardownMs: number;
}

export const LIMITS: Limits = {
  minHeight: 48,
  maxHeight: 2_000,
  messagesPerSecond: 50,
  burst: 100,
  open: 16,
  messageChars: 1_000_000,
  teardownMs: 500,
};

/** A height that may be used, or nothing where none was given. */
export function clampHeight(given: unknown, { minHeight, maxHeight }: Limits): number | undefined {
  if (typeof given !== "number" || !Number.isFinite(given)) return undefined;
  return Math.round(Math.min(Math.max(given, minHeight), maxHeight));
}

/** Tells whether one more message may pass. Time is an argument, in milliseconds. */
export class Rate {
  readonly #limits: Limits;
  #left: number;
  #at: number | undefined;

  constructor(limits: Limits) {
    this.#limits = limits;
    this.#left = limits.burst;
  }

  admits(now: number): boolean {
    const passed = now - (this.#at ?? now);
    this.#at = now;
    this.#left = Math.min(this.#limits.burst, this.#left + (passed / 1000) * this.#limits.messagesPerSecond);
    if (this.#left < 1) return false;
    this.#left -= 1;
    return true;
  }
}
