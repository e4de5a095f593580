// How far a source is behind, or a whole job.

import { compact, duration, NOTHING, number } from "./format.js";

const WORTH_MENTIONING_S = 30;

/** "1.2 k", or how old the oldest record is if they are not counted. */
export function lagValue(lag) {
  if (lag === null) return NOTHING;
  return lag.records === null && lag.seconds !== null ? lagAge(lag) : compact(lag.records);
}

/** Whether it grows, and has for so long that it is no accident. */
export function fallsBehind(lag) {
  return lag !== null && lag.change_per_s > 0 && lag.catch_up_s === null && isWorthMentioning(lag);
}

/** "oldest 4 min, gone in 2 min". */
export function lagText(lag) {
  if (lag === null) return "";
  if (lag.records === null && lag.seconds === null) return "currently unknown";
  if (lag.records === 0) return "caught up";
  const oldest = lag.seconds === null || lag.records === null ? [] : [`oldest ${lagAge(lag)}`];
  return [...oldest, ...(isWorthMentioning(lag) ? [outlook(lag)] : [])].filter(Boolean).join(", ");
}

/** How old the oldest record is. */
export function lagAge({ seconds }) {
  return seconds === null ? null : roughly(seconds);
}

/** All of it, for a title. */
export function lagTitle(lag) {
  if (lag === null || lag.records === null) return null;
  const change = lag.change_per_s === null ? "" : `, ${lag.change_per_s > 0 ? "growing" : "shrinking"} by ${number(Math.abs(Math.round(lag.change_per_s)))}/s`;
  return `${number(lag.records)} records are not processed yet${change}`;
}

function outlook({ catch_up_s: seconds, change_per_s: change }) {
  if (seconds !== null) return `caught up in ${roughly(Math.max(seconds, 1))}`;
  return change === null ? "" : "not catching up";
}

// A job that keeps up is behind by what its next epoch takes: when that is gone tells nothing.
const isWorthMentioning = ({ seconds }) => seconds === null || seconds >= WORTH_MENTIONING_S;

// Without digits that change every moment.
function roughly(seconds) {
  const unit = seconds < 60 ? 1 : seconds < 3600 ? 60 : 3600;
  return duration(Math.round(seconds / unit) * unit * 1000);
}
