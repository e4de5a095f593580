// What the timeline shows: attempts, savepoints, what started from what, and the marks of its time axis.

import { duration, NOTHING, pad, time } from "./format.js";

/** The first and the last time in a timeline. */
export function extent({ jobs, now_ms: now }) {
  const times = jobs.flatMap((job) => [
    ...job.attempts.flatMap((attempt) => [attempt.started_ms, attempt.ended_ms ?? now]),
    ...job.savepoints.map((savepoint) => savepoint.created_ms),
  ]);
  if (times.length === 0) return [now - 60_000, now];
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const margin = Math.max((to - from) * 0.03, 500);
  return [from - margin, to + margin];
}

/** Bars: one for each attempt. */
export function bars({ jobs, now_ms: now }) {
  return jobs.flatMap((job, lane) => job.attempts.map((attempt) => ({
    id: `bar/${job.name}/${attempt.attempt}`,
    lane,
    from: attempt.started_ms,
    to: attempt.ended_ms ?? now,
    attempt,
    title: `${job.name}, attempt ${attempt.attempt}`,
    lines: attemptLines(attempt, now),
  })));
}

function attemptLines(attempt, now) {
  return [
    ["state", attempt.state.toLowerCase()],
    ["began", time(attempt.started_ms)],
    ["ended", attempt.ended_ms === null ? "still running" : time(attempt.ended_ms)],
    ["lasted", duration((attempt.ended_ms ?? now) - attempt.started_ms)],
    ["started from", originText(attempt.started_from)],
    ...(attempt.cause ? [["why it ended", attempt.cause.split("\n")[0]]] : []),
  ];
}

/** "savepoint abc of orders", "chk-7", "nothing". */
export function originText(origin) {
  if (origin === null) return "nothing";
  const what = origin.kind === "savepoint"
    ? `savepoint ${origin.savepoint ?? origin.path ?? ""}`.replace(/^savepoint savepoint-/, "savepoint-")
    : `chk-${origin.checkpoint ?? "?"}`;
  return origin.job === null ? what : `${what} of ${origin.job}`;
}

/** Diamonds: one for each savepoint. */
export function diamonds({ jobs }) {
  return jobs.flatMap((job, lane) => job.savepoints.map((savepoint) => ({
    id: `savepoint/${job.name}/${savepoint.id}`,
    lane,
    at: savepoint.created_ms,
    savepoint,
    label: savepoint.label ?? savepoint.id,
    title: `Savepoint ${savepoint.label ?? savepoint.id}`,
    lines: [
      ["taken", time(savepoint.created_ms)],
      ["from", `chk-${savepoint.checkpoint} of ${job.name}`],
      ["path", savepoint.path],
      ...(savepoint.note ? [["note", savepoint.note]] : []),
      ...(savepoint.exists === false ? [["now", "gone"]] : []),
    ],
  })));
}

/** Links from what an attempt started from to the attempt. */
export function links(timeline) {
  const lanes = new Map(timeline.jobs.map((job, lane) => [job.name, lane]));
  const all = [];
  timeline.jobs.forEach((job, lane) => {
    for (const attempt of job.attempts) {
      const source = attempt.started_from && sourceOf(timeline, job, attempt, lanes);
      if (source) all.push({ id: `link/${job.name}/${attempt.attempt}`, source, lane, at: attempt.started_ms });
    }
  });
  return all;
}

function sourceOf(timeline, job, attempt, lanes) {
  const origin = attempt.started_from;
  if (origin.kind === "savepoint") {
    for (const [lane, other] of timeline.jobs.entries()) {
      const savepoint = other.savepoints.find((one) => one.id === origin.savepoint || (origin.path !== null && one.path === origin.path));
      if (savepoint) return { lane, at: savepoint.created_ms, kind: "savepoint" };
    }
  }
  const lane = lanes.get(origin.job ?? job.name);
  if (lane === undefined) return null;
  // When a checkpoint was taken is not in the picture; it was before the attempt that uses it.
  const before = timeline.jobs[lane].attempts.filter((other) => other.started_ms < attempt.started_ms).at(-1);
  if (before === undefined) return null;
  return { lane, at: Math.min(before.ended_ms ?? attempt.started_ms, attempt.started_ms), kind: "checkpoint" };
}

/** Rows of the table under the picture, newest first. */
export function attemptRows({ jobs, now_ms: now }) {
  return jobs
    .flatMap((job) => job.attempts.map((attempt) => ({
      ...attempt,
      job: job.name,
      lasted: (attempt.ended_ms ?? now) - attempt.started_ms,
      origin: originText(attempt.started_from),
      why: attempt.cause?.split("\n")[0] ?? NOTHING,
    })))
    .sort((a, b) => b.started_ms - a.started_ms);
}

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
