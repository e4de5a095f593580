// Dialogs that ask before something is done, and whether this page may do it at all.

import { about, keepToken, loadAbout, token } from "./api.js";
import { h, replace, uniqueId } from "./dom.js";
import { failure } from "./parts.js";

/** Why this page may change nothing, null if it may. */
export function whyNot() {
  if (about === null) return "Checking permissions …";
  if (about.read_only) return "This dashboard is read-only.";
  return about.authorized ? null : "Changes require the token that “turnback ui” printed.";
}

/** Asks for the token. */
export function askToken() {
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  openDialog({
    title: "Enter the token",
    content: [
      h("p", { class: "soft" }, "“turnback ui” prints an address that ends in ?token=…; enter the part after the equals sign. It is kept until you close this tab."),
      field("Token", input),
    ],
    confirm: "Use token",
    act: async () => {
      const before = token;
      keepToken(input.value.trim());
      try {
        if ((await loadAbout()).authorized) return;
      } catch (error) {
        if (error.status !== 401 && error.status !== 403) throw error;
      }
      keepToken(before);
      throw Object.assign(new Error("This token is not valid."), { status: 403 });
    },
  });
}

/**
 * Asks before something is done.
 *
 * @param title what is asked
 * @param content nodes
 * @param confirm words of the button that does it; `danger` colours it
 * @param dismiss words of the button that does not
 * @param act async () => void; when it fails the dialog stays open and says why. Without it the dialog only tells something
 */
export function openDialog({ title, content, confirm = null, danger = false, dismiss = "Close", act = undefined }) {
  const heading = uniqueId("dialog");
  const trouble = h("div");
  const submitButton = h("button", { class: `button ${danger ? "is-danger" : "is-primary"}`, type: "submit", hidden: act === undefined }, confirm);
  const closeButton = h("button", { class: "button", type: "button", onclick: () => dialog.close() }, dismiss);
  const form = h("form", { method: "dialog", onsubmit: submit }, h("h2", { id: heading }, title), content, trouble,
    h("div", { class: "dialog-end" }, closeButton, submitButton));
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": heading, onclose: () => dialog.remove(), onclick: ({ target }) => target === dialog && dialog.close() }, form);

  async function submit(event) {
    event.preventDefault();
    submitButton.disabled = true;
    try {
      await act();
      dialog.close();
    } catch (error) {
      if (error.status === undefined) console.error(error);
      replace(trouble, failure(error));
    } finally {
      submitButton.disabled = false;
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  // Nobody should confirm something dangerous with a key pressed for something else.
  if (danger) closeButton.focus();
}

/** A control with its label. */
export function field(label, control, hint) {
  control.id = uniqueId("field");
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint && h("p", { class: "hint" }, hint));
}

/** A checkbox with its label. */
export function checkbox(label, control, hint) {
  control.id = uniqueId("field");
  return h("div", { class: "tick" }, control, h("div", null, h("label", { for: control.id }, label), hint && h("p", { class: "hint" }, hint)));
}

