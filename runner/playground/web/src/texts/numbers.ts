/** Numbers, sizes and times in the English of the browser. */

/** The browser's own English, such as en-GB. */
export const LOCALE = navigator.languages.find((each) => each.split("-")[0]?.toLowerCase() === "en") ?? "en";

const SIZES = ["B", "kB", "MB", "GB", "TB"];
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat(LOCALE, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const away = new Intl.RelativeTimeFormat(LOCALE, { numeric: "auto" });
const clock = new Intl.DateTimeFormat(LOCALE, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const count = (value: number): string => whole.format(value);
/** A form by the count that it names. */
export const plural = (value: number, forms: { one: string; other: string }): string => (value === 1 ? forms.one : forms.other);
export const percent = (part: number): string => `${whole.format(part * 100)} %`;
/** The time of day of a moment in milliseconds since the epoch. */
export const time = (at: number): string => clock.format(at);

export function size(bytes: number): string {
  let value = bytes;
  let at = 0;
  while (value >= 1000 && at < SIZES.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${(at === 0 || value >= 100 ? whole : tenth).format(value)} ${SIZES[at]}`;
}

export function seconds(value: number): string {
  const all = Math.round(value);
  return value < 10 ? `${tenth.format(value)} s` : all < 120 ? `${whole.format(all)} s` : `${whole.format(Math.floor(all / 60))} min ${all % 60} s`;
}

export const duration = (ms: number): string => (ms < 1000 ? `${(ms < 10 ? tenth : whole).format(ms)} ms` : seconds(ms / 1000));

/** A length in characters, in short: thousands as k, millions as M. */
export function length(characters: number): string {
  return characters < 1000 ? whole.format(characters) : characters < 1e6 ? `${tenth.format(characters / 1000)} k` : `${tenth.format(characters / 1e6)} M`;
}

/** How long ago or ahead an ISO time is. */
export function ago(iso: string): string {
  const distance = (Date.parse(iso) - Date.now()) / 1000;
  if (Number.isNaN(distance)) return iso;
  const [unit, length] = UNITS.find(([, each]) => Math.abs(distance) >= each) ?? ["second", 1];
  return away.format(Math.round(distance / length), unit);
}
