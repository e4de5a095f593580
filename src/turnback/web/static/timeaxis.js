// Where the marks of a time axis go, and what they say.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 7, 14, 30, 90, 180, 365, 730, 1825, 3650].map((n) => n * DAY),
];

const pad = (value, width = 2) => String(value).padStart(width, "0");

/** Marks `{at, label}` between two times, at most `most` of them. */
export function timeTicks(from, to, most) {
  const step = STEPS.find((each) => (to - from) / each <= most) ?? STEPS.at(-1);
  const zone = new Date(from).getTimezoneOffset() * MINUTE;
  const first = Math.ceil((from - zone) / step) * step + zone;
  const ticks = [];
  let before = null;
  for (let at = first; at <= to; at += step) {
    ticks.push({ at, label: words(new Date(at), step, before) });
    before = new Date(at);
  }
  return ticks;
}

function words(at, step, before) {
  const date = `${at.toLocaleString("en", { month: "short" })} ${at.getDate()}`;
  if (step >= DAY) return step >= 365 * DAY ? `${date}, ${at.getFullYear()}` : date;
  let clock = `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  if (step < MINUTE) clock += `:${pad(at.getSeconds())}`;
  if (step < SECOND) clock += `.${pad(at.getMilliseconds(), 3)}`;
  const sameDay = before !== null && before.toDateString() === at.toDateString();
  return sameDay ? clock : `${date} ${clock}`;
}
