// The state of something, in colour, with an icon and in words.

import { h, attribute, replace } from "./dom.js";
import { icon } from "./icons.js";

const LOOKS = {
  RUNNING: ["good", "play", "Its driver is alive and processes records."],
  CREATED: ["quiet", "clock", "The driver has started; the first attempt has not begun yet."],
  RESTARTING: ["warn", "restart", "The last attempt failed; the next one follows."],
  CANCELLING: ["warn", "stop", "It was told to stop and is on its way."],
  FINISHED: ["done", "check", "It has come to its end, or was stopped with a savepoint."],
  FAILED: ["bad", "cross", "It failed and is not started again."],
  CANCELED: ["quiet", "stop", "It was cancelled."],
  LOST: ["bad", "question", "Its driver died without a word, and nobody starts it again."],
  UNREADABLE: ["warn", "warning", "Its directory cannot be read."],
  RESTARTED: ["warn", "restart", "The attempt failed; the next one followed."],
  COMPLETED: ["good", "check", ""],
  IN_PROGRESS: ["warn", "clock", "Under way."],
  WAITING: ["quiet", "clock", "The driver has not seen it yet."],
  added: ["good", "plus", "Only in the later snapshot"],
  removed: ["bad", "minus", "Only in the earlier snapshot"],
  changed: ["warn", "restart", "Another value in the later snapshot"],
};

/** One of good, done, warn, bad, quiet. */
export function tone(state) {
  return LOOKS[state]?.[0] ?? "quiet";
}

/** Whether somebody has to look at a job in this state. */
export function needsAttention(state) {
  return state === "FAILED" || state === "LOST" || state === "UNREADABLE";
}

/** A badge. */
export function badge(state) {
  const node = h("span", { class: "badge" });
  setBadge(node, state);
  return node;
}

/** Brings a badge up to date. */
export function setBadge(node, state) {
  if (node.dataset.state === state) return;
  const [colour, shape, meaning] = LOOKS[state] ?? ["quiet", "question", ""];
  node.dataset.state = state;
  node.className = `badge is-${colour}`;
  attribute(node, "title", meaning || null);
  replace(node, icon(shape), h("span", null, state.toLowerCase().replaceAll("_", " ")));
}
