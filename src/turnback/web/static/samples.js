// Records per second of each job, as this page has seen them.

import { now } from "./format.js";

const MOST = 90;
const APART_MS = 1500;
const rates = new Map();

/** Remembers the rate of a job. */
export function note(summary) {
  if (summary.records_per_s === null || summary.records_per_s === undefined) return;
  let list = rates.get(summary.name);
  if (list === undefined) rates.set(summary.name, (list = []));
  const at = now();
  if (list.length > 0 && at - list.at(-1).at < APART_MS) return;
  list.push({ at, value: summary.records_per_s });
  if (list.length > MOST) list.shift();
}

/** What is remembered of a job, oldest first. */
export function of(name) {
  return rates.get(name) ?? [];
}
