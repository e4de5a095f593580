// A value out of state: short ones as they are, long ones to be opened.

import { copyButton } from "./copy.js";
import { h } from "./dom.js";
import { print } from "./json.js";
import { shorten } from "./format.js";

const SHORT = 96;

/** The node of a value. */
export function valueNode(value) {
  if (value === null || value === undefined) return h("code", { class: "value is-null" }, "null");
  const line = print(value);
  const plain = typeof value !== "object";
  const look = typeof value === "string" ? "is-string" : plain ? "is-number-like" : "is-object";
  if (line.length <= SHORT) return h("code", { class: `value ${look}` }, line);
  const whole = plain ? line : print(value, 2);
  const body = h("pre");
  // The long text is put on the page only when somebody looks at it.
  return h("details", { class: "value-more", ontoggle: () => { if (body.textContent === "") body.textContent = whole; } },
    h("summary", null, h("code", { class: `value ${look}` }, shorten(line, SHORT))),
    h("div", { class: "value-whole" }, body, copyButton(whole, "the value")));
}
