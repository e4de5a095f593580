// What the server says of itself: what it serves, and whether this page may change anything.

import { get } from "./api.js";
import { setServerTime } from "./format.js";

let about = null;
const listeners = new Set();

/** The newest answer; null before the first. */
export function known() {
  return about;
}

/** Calls back with every answer, at once if there is one; returns how to end that. */
export function watch(callback) {
  listeners.add(callback);
  if (about !== null) callback(about);
  return () => listeners.delete(callback);
}

/** Asks again. */
export async function ask(signal) {
  about = await get(["about"], {}, signal);
  setServerTime(about.now_ms);
  for (const callback of [...listeners]) callback(about);
  return about;
}

/** Why nothing may be changed through this page; null if it may. */
export function forbidden() {
  if (about === null) return "Asking the server what this page may do …";
  if (about.read_only) return "This dashboard is read-only.";
  if (!about.authorized) return "Changing anything needs the token that “turnback ui” printed.";
  return null;
}
