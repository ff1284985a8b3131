/** Numbers, sizes and times as people of a language read them. */

export type Forms = { other: string } & Partial<Record<Intl.LDMLPluralRule, string>>;

export interface Numbers {
  count: (value: number) => string;
  /** A form by the count that it names. */
  plural: (value: number, forms: Forms) => string;
  size: (bytes: number) => string;
  seconds: (value: number) => string;
  duration: (ms: number) => string;
  /** A length in characters, in short: thousands as k, millions as M. */
  length: (characters: number) => string;
  percent: (part: number) => string;
  /** How long ago or ahead an ISO time is. */
  ago: (iso: string) => string;
  /** The time of day of a moment in milliseconds since the epoch. */
  time: (at: number) => string;
}

const SIZES = ["B", "kB", "MB", "GB", "TB"];
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

/** How a browser's own variant of a language, such as en-GB, writes numbers; the language's where it has none. */
export function localeOf(language: string): string {
  return navigator.languages.find((each) => each.split("-")[0]?.toLowerCase() === language) ?? language;
}

export function numbersOf(language: string): Numbers {
  const locale = localeOf(language);
  const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
  const tenth = new Intl.NumberFormat(locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const away = new Intl.RelativeTimeFormat(locale, { numeric: "auto" });
  const clock = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const rules = new Intl.PluralRules(locale);
  const seconds = (value: number): string => {
    const all = Math.round(value);
    return value < 10 ? `${tenth.format(value)} s` : all < 120 ? `${whole.format(all)} s` : `${whole.format(Math.floor(all / 60))} min ${all % 60} s`;
  };
  return {
    count: (value) => whole.format(value),
    plural: (value, forms) => forms[rules.select(value)] ?? forms.other,
    size: (bytes) => {
      let value = bytes;
      let at = 0;
      while (value >= 1000 && at < SIZES.length - 1) {
        value /= 1000;
        at += 1;
      }
      return `${(at === 0 || value >= 100 ? whole : tenth).format(value)} ${SIZES[at]}`;
    },
    seconds,
    duration: (ms) => (ms < 1000 ? `${(ms < 10 ? tenth : whole).format(ms)} ms` : seconds(ms / 1000)),
    length: (characters) => (characters < 1000 ? whole.format(characters) : characters < 1e6 ? `${tenth.format(characters / 1000)} k` : `${tenth.format(characters / 1e6)} M`),
    percent: (value) => `${whole.format(value * 100)} %`,
    ago: (iso) => {
      const distance = (Date.parse(iso) - Date.now()) / 1000;
      if (Number.isNaN(distance)) return iso;
      const [unit, length] = UNITS.find(([, each]) => Math.abs(distance) >= each) ?? ["second", 1];
      return away.format(Math.round(distance / length), unit);
    },
    time: (at) => clock.format(at),
  };
}
