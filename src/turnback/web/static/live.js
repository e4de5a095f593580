// Keeps views up to date: loads again and again, less often while the server is away, and says so.

import { ApiError } from "./api.js";
import { h, replace, text } from "./dom.js";
import { failure, skeleton } from "./parts.js";

const SLOWEST_MS = 30_000;
const loaders = new Set();
const alert = h("span", { role: "alert" });
const countdown = h("span", { "aria-hidden": "true" });
let nextTry = 0;

/** The line that says that the server is away. */
export const awayNotice = h("div", { class: "away", hidden: true }, h("span", { class: "dot" }), h("p", null, alert, countdown),
  h("button", { class: "link", type: "button", onclick: refresh }, "Retry now"));

/** The sign in the header. */
export const liveSign = h("span", { class: "live", title: "The page is up to date" }, h("span", { class: "dot" }), h("span", { class: "live-word" }, "Live"));

setInterval(countDown, 500);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});

/** Loads at once what is shown. */
export function refresh() {
  for (const load of [...loaders]) load();
}

// `delay` is how long until the next try, null if the server has answered.
function showConnection(delay) {
  const away = delay !== null;
  nextTry = away ? Math.max(nextTry, Date.now() + delay) : 0;
  awayNotice.hidden = !away;
  text(alert, away ? "Disconnected from the server. This page may be out of date. " : "");
  liveSign.classList.toggle("is-away", away);
  text(liveSign.lastChild, away ? "Offline" : "Live");
  countDown();
}

function countDown() {
  const seconds = Math.ceil((nextTry - Date.now()) / 1000);
  text(countdown, seconds > 0 ? `Retrying in ${seconds} s.` : "Retrying …");
}

/** Calls `load(signal)` every `interval` ms, then `show` with the data or `fail` with the error. */
export function poll({ load, show, fail = () => {}, interval = 2000 }) {
  let failures = 0;
  let timer = null;
  let request = null;
  const delay = () => Math.min(interval * 2 ** Math.min(failures, 8), failures === 0 ? Infinity : SLOWEST_MS);

  // At once, instead of what is under way or planned.
  async function now() {
    clearTimeout(timer);
    request?.abort();
    request = new AbortController();
    const { signal } = request;
    try {
      const data = await load(signal);
      if (signal.aborted) return;
      failures = 0;
      showConnection(null);
      show(data);
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      if (error instanceof ApiError) showConnection(error.status === 0 ? delay() : null);
      else console.error(error);
      fail(error);
    }
    if (loaders.has(now) && !document.hidden) timer = setTimeout(now, delay());
  }

  loaders.add(now);
  now();
  return {
    now,
    stop: () => {
      loaders.delete(now);
      clearTimeout(timer);
      request.abort();
    },
  };
}

/**
 * Shows a view `{node, load, show, interval?, onStart?, stop?}` and keeps it up to date: grey bars before the first data, errors
 * above the last. `onStart` is given what loads it at once.
 */
export function frame(view) {
  const waiting = skeleton();
  const trouble = h("div");
  view.node.hidden = true;
  const polling = poll({
    load: view.load,
    show: (data) => {
      view.show(data);
      waiting.remove();
      view.node.hidden = false;
      replace(trouble);
    },
    fail: (error) => {
      // That the server is away is said once, at the top of the page.
      if (error.status === 0 && !view.node.hidden) return;
      if (error.status !== 0) waiting.remove();
      if (trouble.firstChild?.message === error.message) return;
      replace(trouble, Object.assign(failure(error, () => polling.now()), { message: error.message }));
    },
    interval: view.interval,
  });
  view.onStart?.(polling.now);
  return {
    node: h("div", { class: "frame" }, trouble, waiting, view.node),
    stop: () => {
      polling.stop();
      view.stop?.();
    },
  };
}
