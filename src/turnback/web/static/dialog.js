// Questions asked before something is done.

import { h, replace, uniqueId } from "./dom.js";
import { failure } from "./message.js";

/**
 * Opens a dialog.
 *
 * @param title what is asked
 * @param content nodes
 * @param confirm words of the button that does it; `danger` colours it
 * @param dismiss words of the button that does not
 * @param act async () => void; when it fails the dialog stays open and says why
 */
export function ask({ title, content, confirm, danger = false, dismiss = "Close", act }) {
  const heading = uniqueId("dialog");
  const trouble = h("div");
  const doIt = h("button", { class: `button ${danger ? "is-danger" : "is-primary"}`, type: "submit" }, confirm);
  const leave = h("button", { class: "button", type: "button", onclick: () => dialog.close() }, dismiss);
  const form = h("form", { method: "dialog", onsubmit: submit }, h("h2", { id: heading }, title), content, trouble,
    h("div", { class: "dialog-end" }, leave, doIt));
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": heading, onclose: () => dialog.remove(), onclick: outside }, form);

  async function submit(event) {
    event.preventDefault();
    doIt.disabled = true;
    try {
      await act();
      dialog.close();
    } catch (error) {
      if (error.status === undefined) console.error(error);
      replace(trouble, failure(error));
    } finally {
      doIt.disabled = false;
    }
  }

  function outside(event) {
    if (event.target === dialog) dialog.close();
  }

  document.body.append(dialog);
  dialog.showModal();
  // Nobody should confirm something dangerous with a key pressed for something else.
  if (danger) leave.focus();
}

/** A labelled field. */
export function field(label, control, hint) {
  control.id = uniqueId("field");
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint && h("p", { class: "hint" }, hint));
}

/** A labelled box to tick. */
export function tick(label, control, hint) {
  control.id = uniqueId("field");
  return h("div", { class: "tick" }, control, h("div", null, h("label", { for: control.id }, label), hint && h("p", { class: "hint" }, hint)));
}
