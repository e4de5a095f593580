// What is shown when there is nothing to show: empty, loading, failed.

import { h } from "./dom.js";
import { copyable } from "./copy.js";
import { icon } from "./icons.js";

/** Nothing there, and what to do about it. */
export function empty(title, hint, command) {
  return h("div", { class: "empty" },
    h("p", { class: "empty-title" }, title),
    hint && h("p", null, hint),
    command && copyable(command, "the command", "is-block"));
}

/** Grey bars where the content will be. */
export function skeleton(lines = 5) {
  return h("div", { class: "skeleton", role: "status", "aria-label": "Loading" },
    Array.from({ length: lines }, () => h("div", { class: "bone" })));
}

/** What went wrong, with a way to try again. */
export function failure(error, retry) {
  return h("div", { class: "failure", role: "alert" },
    icon("warning"),
    h("div", null,
      h("p", { class: "failure-title" }, titleOf(error)),
      h("p", { class: "failure-text" }, error.message)),
    retry && h("button", { class: "button", type: "button", onclick: retry }, "Try again"));
}

function titleOf(error) {
  switch (error.status) {
    case 0: return "No answer";
    case 400: return "That does not work";
    case 401: return "A token is needed";
    case 403: return "Not allowed";
    case 404: return "Not found";
    case 409: return "Not possible now";
    case undefined: return "The page itself failed";
    default: return "The server failed";
  }
}
