// What all views are made of: icons, badges, copy buttons, messages, legends, tooltips.

import { attribute, h, reconcile, replace, replaceIfChanged, svg, text } from "./dom.js";

// Drawn on a grid of 16 by 16 with one stroke.
const SHAPES = {
  play: "M5 3.5v9l7.5-4.5z",
  check: "M3 8.5l3.2 3.2L13 5",
  cross: "M4 4l8 8M12 4l-8 8",
  stop: "M4.5 4.5h7v7h-7z",
  restart: "M3.2 6.2A5.3 5.3 0 1 1 2.8 9M3 2.8v3.6h3.6",
  question: "M5.8 6a2.3 2.3 0 1 1 3.4 2c-.8.5-1.2.9-1.2 1.7M8 12.4v.1",
  warning: "M8 2.5l6 10.7H2zM8 6.6v3M8 11.4v.1",
  clock: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3.2l2 1.3",
  copy: "M6 6h7v7H6zM3 10V3h7",
  search: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM10 10l3.5 3.5",
  sun: "M8 5.3a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4zM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
  moon: "M13 9.6A5.5 5.5 0 0 1 6.4 3 5.5 5.5 0 1 0 13 9.6z",
  screen: "M2.5 3.5h11v7.5h-11zM6 13.5h4",
  key: "M10.5 2.8a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4zM8.6 7.4L3 13M5 11l1.5 1.5",
  right: "M6 3.5L10.5 8 6 12.5",
  left: "M10 3.5L5.5 8 10 12.5",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M6.8 7v3.5M9.2 7v3.5",
  sort: "M5 3v10M2.5 10.5L5 13l2.5-2.5M11 13V3M8.5 5.5L11 3l2.5 2.5",
  out: "M6.5 3.5h-3v9h9v-3M9.5 3h3.5v3.5M13 3L7.5 8.5",
  save: "M8 2.5v7M5 6.8l3 3 3-3M3 12.8h10",
};

/** The outline of an icon. */
export function iconPath(name, properties) {
  return svg("path", { ...properties, d: SHAPES[name] });
}

/** An icon; it says nothing to a screen reader, the text beside it does. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, iconPath(name));
}

const STATES = {
  RUNNING: ["good", "play", "Its driver is alive and processes records."],
  CREATED: ["quiet", "clock", "The driver has started; the first attempt has not begun yet."],
  RESTARTING: ["warn", "restart", "The last attempt failed; the next one will start."],
  FINISHED: ["done", "check", "It has reached its end, or was stopped with a savepoint."],
  FAILED: ["bad", "cross", "It failed and will not be restarted."],
  CANCELED: ["quiet", "stop", "It was cancelled."],
  LOST: ["bad", "question", "Its driver died unexpectedly, and nothing restarts it."],
  STALLED: ["bad", "clock", "It makes no progress; it is RUNNING again as soon as it does."],
  UNREADABLE: ["warn", "warning", "Its directory cannot be read."],
  RESTARTED: ["warn", "restart", "The attempt failed; the next one followed."],
  COMPLETED: ["good", "check", ""],
  IN_PROGRESS: ["warn", "clock", "In progress."],
  WAITING: ["quiet", "clock", "The driver has not seen it yet."],
  added: ["good", "plus", "Only in the later snapshot"],
  removed: ["bad", "minus", "Only in the earlier snapshot"],
  changed: ["warn", "restart", "A different value in the later snapshot"],
};

/** The colour of a state: one of good, done, warn, bad, quiet. */
export function tone(state) {
  return STATES[state]?.[0] ?? "quiet";
}

/** Whether somebody has to look at a job in this state. */
export function needsAttention(state) {
  return state === "FAILED" || state === "LOST" || state === "STALLED" || state === "UNREADABLE";
}

/** A state in colour, with an icon and in words; given a node, brings it up to date. */
export function badge(state, node = h("span")) {
  if (node.dataset.state === state) return node;
  const [colour, shape, meaning] = STATES[state] ?? ["quiet", "question", ""];
  node.dataset.state = state;
  node.className = `badge is-${colour}`;
  attribute(node, "title", meaning || null);
  return replace(node, icon(shape), h("span", null, state.toLowerCase().replaceAll("_", " ")));
}

/** Tiles `{label, value, more?, title?, alarm?, picture?}`, one number each. */
export function showTiles(node, facts) {
  reconcile(node, facts, (fact) => fact.label, ({ label, picture }) => h("div", { class: picture ? "tile is-wide" : "tile" },
    h("span", { class: "tile-label" }, label), h("span", { class: "tile-value" }), h("span", { class: "tile-more" }), picture), (tile, fact) => {
    text(tile.children[1], fact.value);
    // Lines break between its parts only.
    replaceIfChanged(tile.children[2], fact.more ?? "", () => (fact.more ? fact.more.split(/(?<=,) /).map((part) => [h("span", null, part), " "]) : []));
    tile.classList.toggle("is-long", fact.value.length > 11);
    attribute(tile, "title", fact.title);
    tile.classList.toggle("is-alarm", Boolean(fact.alarm));
  });
}

const COPIED_MS = 1600;

/** Says something to a screen reader. */
export function announce(message) {
  text(document.getElementById("announcement"), message);
}

/** A button that copies; `what` names it for those who cannot see. */
export function copyButton(value, what) {
  const button = h("button", {
    class: "copy", type: "button", title: `Copy ${what}`, "aria-label": `Copy ${what}`,
    onclick: async (event) => {
      event.stopPropagation();
      const done = await copy(value);
      replace(button, icon(done ? "check" : "cross"));
      button.classList.toggle("is-done", done);
      announce(done ? `Copied ${what}` : `Could not copy ${what}`);
      setTimeout(() => {
        replace(button, icon("copy"));
        button.classList.remove("is-done");
      }, COPIED_MS);
    },
  }, icon("copy"));
  return button;
}

/** Text in monospace with a button beside it. */
export function copyable(value, what, extra = "", shown = value) {
  return h("span", { class: `copyable ${extra}` }, h("code", { title: value }, shown), copyButton(value, what));
}

const END = 26;
const COMMAND_END = 12;

/** The same for a path: where it is too long the middle is left out, as its end tells the most. */
export function copyablePath(value, what, extra = "") {
  const slash = value.lastIndexOf("/", value.length - 2);
  return copyableCut(value, what, extra, value.length - slash <= END ? slash : value.length - END);
}

/** The same for a command, of which the beginning matters more. */
export function copyableCommand(value, what, extra = "") {
  return copyableCut(value, what, extra, value.length - COMMAND_END);
}

function copyableCut(value, what, extra, at) {
  const shown = at <= 0 ? value : [h("span", { class: "cut-start" }, value.slice(0, at)), h("span", { class: "cut-end" }, value.slice(at))];
  return copyable(value, what, `is-path ${extra}`, shown);
}

/** A link to Spark's own pages; null if the driver has none. */
export function sparkLink({ spark_ui: address, driver }, words = "Spark UI") {
  // Whatever is in a status file, only this may become a link.
  if (!/^https?:\/\//.test(address ?? "")) return null;
  return h("a", { class: "out", href: address, target: "_blank", rel: "noopener noreferrer", title: `${address}, served by the driver${driver === null ? "" : ` on ${driver.host}`}` }, words, icon("out"));
}

async function copy(value) {
  try {
    await navigator.clipboard.writeText(value);
    return true;
  } catch {
    return copySelection(value);
  }
}

// Browsers give the clipboard only to secure pages; this works on the others.
function copySelection(value) {
  const field = h("textarea", { class: "offscreen", "aria-hidden": "true" });
  field.value = value;
  const focused = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}

/** Nothing there, and what to do about it. */
export function empty(title, hint, command) {
  return h("div", { class: "empty" },
    h("p", { class: "empty-title" }, title),
    hint && h("p", null, hint),
    command && copyable(command, "the command", "is-block"));
}

/** Shows `content` if there is something to show, else `nothing`. */
export function contentOr(content, nothing) {
  content.hidden = nothing.hidden = true;
  return {
    node: h("div", null, content, nothing),
    /** Returns whether the content is shown. */
    show: (some) => {
      content.hidden = !some;
      nothing.hidden = some;
      return some;
    },
  };
}

/** Grey bars where the content will be. */
export function skeleton(lines = 5) {
  return h("div", { class: "skeleton", role: "status", "aria-label": "Loading" },
    Array.from({ length: lines }, () => h("div", { class: "bone" })));
}

const FAILURES = {
  0: "No response",
  400: "Invalid request",
  401: "Token required",
  403: "Not allowed",
  404: "Not found",
  409: "Not possible now",
  undefined: "Error in this page",
};

/** What went wrong, with a way to try again. */
export function failure(error, retry) {
  return h("div", { class: "failure", role: "alert" },
    icon("warning"),
    h("div", null,
      h("p", { class: "failure-title" }, FAILURES[error.status] ?? "The server failed"),
      h("p", { class: "failure-text" }, error.message)),
    retry && h("button", { class: "button", type: "button", onclick: retry }, "Try again"));
}

/** A field that filters what is below it; `onFilter` is called when it changes. */
export function filterField(placeholder, label, onFilter, ...extra) {
  const input = h("input", { type: "search", placeholder, "aria-label": label, oninput: onFilter, spellcheck: "false", autocomplete: "off" });
  return {
    node: h("label", { class: "field-search" }, icon("search"), input, extra),
    focus: () => input.focus(),
    get value() {
      return input.value;
    },
    /** Whether one of the texts contains what was typed. */
    matches: (...texts) => texts.some((part) => part?.toLowerCase().includes(input.value.trim().toLowerCase())),
  };
}

/** Words with the colour each stands for. */
export function legend(entries, ...extra) {
  return h("ul", { class: "legend" }, entries.map(([word, look]) => h("li", null, h("span", { class: `swatch ${look}` }), word)), extra);
}

/** A box of lines `[name, value, look?]` that appears inside `parent`; `top` null leaves the height to the style sheet. */
export function tooltip(parent) {
  const node = h("div", { class: "tip", hidden: true, role: "status" });
  parent.append(node);
  return {
    hide: () => {
      node.hidden = true;
    },
    show: (title, lines, middle, top = null) => {
      replace(node, h("p", { class: "tip-title" }, title), lines.map(([name, value, look]) => h("p", { class: "tip-line" },
        look !== undefined && h("span", { class: `swatch ${look}` }), h("span", { class: "tip-what" }, name), h("span", { class: "tip-value" }, value))));
      node.hidden = false;
      const rightmost = Math.max(parent.clientWidth - node.offsetWidth, 0);
      node.style.left = `${Math.min(Math.max(middle - node.offsetWidth / 2, 0), rightmost)}px`;
      if (top !== null) node.style.top = `${top}px`;
    },
  };
}
