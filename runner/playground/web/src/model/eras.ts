/** Versions of the protocol that this page speaks. The last without sessions, the others with a handshake. */

export const ERAS = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"] as const;
export type Era = (typeof ERAS)[number];

export const NEWEST: Era = "2026-07-28";
/** The version the page begins with: in the newest, FastMCP refuses `ctx.elicit`, sampling and roots of a running tool. */
export const USUAL: Era = "2025-11-25";

export function hasSessions(era: Era): boolean {
  return era !== NEWEST;
}

export function isEra(text: string | null | undefined): text is Era {
  return ERAS.some((era) => era === text);
}
