// The log of a job's driver: its end, or the lines that match, followed while it grows.

import { address, get } from "./api.js";
import { attribute, h, replace, text } from "./dom.js";
import { bytes, number, plural, quote } from "./format.js";
import { contentOr, copyablePath, empty, filterField, icon } from "./parts.js";

const MOST = 1000;
const TYPING_MS = 300;
const LEVELS = { "": "All levels", INFO: "INFO and above", WARNING: "WARNING and above", ERROR: "ERROR only" };
const SERIOUS = /^.{0,60}?\b(ERROR|CRITICAL|FATAL|WARN(?:ING)?)\b/;

/** The tab. */
export function logTab(name) {
  const path = h("div", { class: "log-path" });
  const count = h("span", { class: "soft", role: "status" });
  const filter = filterField("Find in the log", "Find in the log", typed);
  const level = h("select", { class: "log-level", "aria-label": "Level", onchange: again }, Object.entries(LEVELS).map(([value, words]) => h("option", { value }, words)));
  const download = h("a", { class: "button is-small", href: address(["jobs", name, "log", "download"]), download: "" }, icon("save"), "Download");
  const body = h("pre", { class: "log", tabindex: "0", "aria-label": "Log of the driver" });
  const none = h("div");
  const content = contentOr(h("div", null, h("div", { class: "toolbar" }, filter.node, level, count), body), none);
  let known = null; // what is on the page: up to where, and how much of it matches
  let typing = null;
  let reload = () => {};

  function typed() {
    clearTimeout(typing);
    typing = setTimeout(again, TYPING_MS);
  }

  function again() {
    known = null;
    reload();
  }

  async function load(signal) {
    const before = known;
    const sought = filter.value.trim();
    try {
      const part = await get(["jobs", name, "log"], { text: sought, level: level.value, lines: MOST, after: before?.end }, signal);
      return { ...part, sought, before };
    } catch (error) {
      // That there is none to be had here is an answer, not a failure.
      if (error.status === 404) return { path: null, why: error.message };
      throw error;
    }
  }

  function show(part) {
    const isThere = content.show(part.path !== null);
    download.hidden = path.hidden = !isThere;
    if (!isThere) {
      if (none.textContent === "") replace(none, empty("No log to show here.", part.why, `turnback logs ${quote(name)}`));
      return;
    }
    if (path.textContent !== part.path) replace(path, copyablePath(part.path, "the path of the log"));
    const { before } = part;
    // A file that was begun anew is shorter than what was read of it.
    if (before !== null && part.start !== before.end) {
      again();
      return;
    }
    const atEnd = body.scrollHeight - body.scrollTop - body.clientHeight < 24;
    if (before === null) replace(body);
    else if (before.unended) body.lastChild?.remove();
    body.append(...part.lines.map((line) => lineNode(line, part.sought)));
    while (body.childElementCount > MOST) body.firstChild.remove();
    const matches = part.matches === null ? null : part.matches + (before === null ? 0 : before.matches - before.unended);
    known = { end: part.end, start: before?.start ?? part.start, unended: part.unended, matches };
    showCount(part.size);
    body.hidden = body.childElementCount === 0;
    // The first time it is not on the page yet.
    if (atEnd) requestAnimationFrame(() => {
      body.scrollTop = body.scrollHeight;
    });
  }

  function showCount(size) {
    const shown = body.childElementCount;
    const { matches, start } = known;
    if (matches === null) text(count, size === 0 ? "The log is empty." : `The last ${plural(shown, "line")} of ${bytes(size)}`);
    else {
      const some = matches > shown ? `, the last ${number(shown)} are shown` : "";
      const part = start > 0 ? ` in the last ${bytes(size - start)}` : "";
      text(count, `${matches === 0 ? "No line" : plural(matches, "line")} ${matches < 2 ? "matches" : "match"}${part}${some}`);
    }
    attribute(count, "title", `${number(size)} bytes in all`);
  }

  return {
    node: h("section", { class: "card" },
      h("div", { class: "card-head" }, h("h2", null, "Log of the driver"), download), path, content.node),
    load,
    show,
    onStart: (now) => {
      reload = now;
    },
    stop: () => clearTimeout(typing),
  };
}

// A line with what was looked for in colour.
function lineNode(line, sought) {
  const word = SERIOUS.exec(line)?.[1];
  const look = word === undefined ? "log-line" : word.startsWith("WARN") ? "log-line is-warn" : "log-line is-bad";
  return h("span", { class: look }, marked(line, sought), "\n");
}

function marked(line, sought) {
  if (sought === "") return [line];
  const [low, wanted] = [line.toLowerCase(), sought.toLowerCase()];
  // Some letters become longer in lower case: then places in one are not those in the other.
  if (low.length !== line.length) return [line];
  const parts = [];
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    parts.push(line.slice(from, at), h("mark", null, line.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, line.slice(from)];
}
