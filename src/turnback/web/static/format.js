// Numbers, sizes, durations and times as people read them.

export const NOTHING = "–";

let offset = 0;

/** Tells the page how far the server's clock is from the browser's. */
export function setServerTime(ms) {
  offset = ms - Date.now();
}

/** The time by the server's clock. */
export function now() {
  return Date.now() + offset;
}

const absent = (value) => value === null || value === undefined;

/** 1234567 as "1,234,567". */
export function number(value) {
  return absent(value) ? NOTHING : value.toLocaleString("en");
}

/** 1234567 as "1.23 M". */
export function compact(value) {
  if (absent(value)) return NOTHING;
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k", 1e3]];
  for (const [from, unit, divisor] of steps) {
    if (Math.abs(value) >= from) return `${digits(value / (divisor ?? from))} ${unit}`;
  }
  return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0 });
}

function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** 1536 as "1.50 KiB". */
export function bytes(value) {
  if (absent(value)) return NOTHING;
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1023.5 || unit === "TiB") {
      return unit === "B" ? `${Math.round(size)} B` : `${digits(size)} ${unit}`;
    }
    size /= 1024;
  }
  return NOTHING;
}

/** 90061000 as "1 d 1 h", 1500 as "1.5 s". */
export function duration(ms) {
  if (absent(ms)) return NOTHING;
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 1000) return `${ms < 10 && !Number.isInteger(ms) ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 59.5) return `${s < 9.95 ? s.toFixed(1).replace(/\.0$/, "") : Math.round(s)} s`;
  const seconds = Math.round(s);
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

/** "5 s ago", in one unit: who wants to know exactly looks at the title. */
export function ago(ms) {
  if (absent(ms)) return NOTHING;
  const passed = now() - ms;
  if (passed < -2000) return `in ${duration(-passed)}`;
  if (passed < 1500) return "just now";
  const unit = [86_400_000, 3_600_000, 60_000, 1000].find((ms) => passed >= ms);
  const coarse = Math.floor(passed / unit) * unit;
  return `${duration(coarse)} ago`;
}

/** 7 as "07". */
export const pad = (value, width = 2) => String(value).padStart(width, "0");

/** "2025-11-15 13:04:05" in the browser's time zone; without the date if it is today's. */
export function time(ms) {
  if (absent(ms)) return NOTHING;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return NOTHING;
  return at.toDateString() === new Date(now()).toDateString() ? clock(at) : `${day(at)} ${clock(at)}`;
}

const day = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
const clock = (at) => `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;

/** Everything about a time, for a title. */
export function exactTime(ms) {
  if (absent(ms)) return null;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${ms} ms`;
  return `${day(at)} ${clock(at)}.${pad(at.getMilliseconds(), 3)} (${at.toISOString()})`;
}

/** The exact number of bytes, for a title. */
export function exactBytes(value) {
  return absent(value) ? null : `${number(value)} bytes`;
}

/** The exact number of milliseconds, for a title. */
export function exactDuration(ms) {
  return absent(ms) ? null : `${number(Math.round(ms * 1000) / 1000)} ms`;
}

/** Ends a text that is too long with an ellipsis. */
export function shorten(value, most) {
  const chars = Array.from(String(value));
  return chars.length <= most ? String(value) : `${chars.slice(0, most - 1).join("")}…`;
}

/** A word as a shell takes it. */
export function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** "1 job", "2 jobs". */
export function plural(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}
