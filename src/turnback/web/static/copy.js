// Buttons that put a text on the clipboard.

import { h, replace, text } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 1600;

/** Says something to a screen reader. */
export function say(message) {
  const region = document.getElementById("said");
  if (region !== null) text(region, message);
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
      say(done ? `Copied ${what}` : `Could not copy ${what}`);
      setTimeout(() => {
        replace(button, icon("copy"));
        button.classList.remove("is-done");
      }, SHOWN_MS);
    },
  }, icon("copy"));
  return button;
}

/** Text in monospace with a button beside it. */
export function copyable(value, what, extra = "", shown = value) {
  return h("span", { class: `copyable ${extra}` }, h("code", { title: value }, shown), copyButton(value, what));
}

async function copy(value) {
  try {
    await navigator.clipboard.writeText(value);
    return true;
  } catch {
    return copyOldWay(value);
  }
}

// Browsers give the clipboard only to secure pages; this works on the others.
function copyOldWay(value) {
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
