/** Numbers, dates and directions in the reader's language. */

const RIGHT_TO_LEFT = new Set(["ar", "arc", "ckb", "dv", "fa", "he", "iw", "ks", "ku", "nqo", "ps", "sd", "syr", "ug", "ur", "yi"]);
const DATE = /^\d{4}-\d{2}-\d{2}$/;
const MOMENT = /^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?$/;

export class Format {
  readonly locale: string;

  constructor(wanted: readonly string[]) {
    this.locale = wanted.map(known).find((tag) => tag !== undefined) ?? "en";
  }

  get direction(): "ltr" | "rtl" {
    return RIGHT_TO_LEFT.has(this.locale.split("-")[0] ?? "") ? "rtl" : "ltr";
  }

  /** A number as people write it; `decimals` of them at least, so that a column lines up. */
  number(value: number, decimals = 0): string {
    const extreme = Math.abs(value) >= 1e15 || (value !== 0 && Math.abs(value) < 1e-6);
    const style: Intl.NumberFormatOptions = extreme
      ? { notation: "scientific", maximumSignificantDigits: 6 }
      : { minimumFractionDigits: decimals, maximumFractionDigits: Math.max(decimals, 6) };
    return numberFormat(this.locale, style).format(value);
  }

  /** `3 rows`: a count and its noun. */
  count(value: number, one: string, many: string): string {
    return `${this.number(value)} ${value === 1 ? one : many}`;
  }

  /** A date or moment that was written the ISO way; any other text as it is. */
  moment(value: string): string {
    if (!this.isMoment(value)) return value;
    const time = DATE.test(value) ? new Date(`${value}T12:00:00Z`) : new Date(value.replace(" ", "T"));
    if (Number.isNaN(time.getTime())) return value;
    const style: Intl.DateTimeFormatOptions = DATE.test(value)
      ? { dateStyle: "medium", timeZone: "UTC" }
      : { dateStyle: "medium", timeStyle: "short" };
    return new Intl.DateTimeFormat(this.locale, style).format(time);
  }

  isMoment(value: unknown): boolean {
    return typeof value === "string" && (DATE.test(value) || MOMENT.test(value));
  }

  compare(): (left: string, right: string) => number {
    return new Intl.Collator(this.locale, { numeric: true, sensitivity: "base" }).compare;
  }
}

// Making one costs more than a thousand uses of it.
const made = new Map<string, Intl.NumberFormat>();

function numberFormat(locale: string, style: Intl.NumberFormatOptions): Intl.NumberFormat {
  const key = `${locale} ${style.notation ?? style.minimumFractionDigits}`;
  const format = made.get(key) ?? new Intl.NumberFormat(locale, style);
  made.set(key, format);
  return format;
}

function known(tag: string): string | undefined {
  try {
    return tag === "" ? undefined : Intl.getCanonicalLocales(tag.replace(/_/g, "-"))[0];
  } catch {
    return undefined;
  }
}
