/** Numbers as people read them. */

export function seconds(value: number): string {
  const whole = Math.round(value);
  return value < 10 ? `${value.toFixed(1)} s` : whole < 120 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

export function duration(ms: number): string {
  return ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : seconds(ms / 1000);
}

export function size(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export function count(value: number): string {
  return value.toLocaleString();
}

const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

/** How long ago or ahead an ISO time is. */
export function ago(iso: string): string {
  const away = (Date.parse(iso) - Date.now()) / 1000;
  if (Number.isNaN(away)) return iso;
  const [unit, length] = UNITS.find(([, each]) => Math.abs(away) >= each) ?? ["second", 1];
  return new Intl.RelativeTimeFormat(undefined, { numeric: "auto" }).format(Math.round(away / length), unit);
}

export const until = ago;
