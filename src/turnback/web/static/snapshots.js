// The choice of a snapshot, an operator and a state.

import { get } from "./api.js";
import { attribute, h, reconcile, text } from "./dom.js";
import { time } from "./format.js";

/** The snapshots of a job, newest first. */
export function loadSnapshots(name, signal) {
  return get(["jobs", name, "snapshots"], {}, signal);
}

/** "chk-7 · 13:04:05" */
export function describe(snapshot) {
  const name = snapshot.label ? `${snapshot.label} (${snapshot.id})` : snapshot.id;
  return `${snapshot.kind === "savepoint" ? "savepoint " : ""}${name} · ${time(snapshot.created_ms)}`;
}

/** A labelled choice whose options change under the user without losing what is chosen. */
export function choice(label, onchange) {
  const select = h("select", { onchange: () => onchange(select.value) });
  const node = h("label", { class: "choice" }, h("span", null, label), select);
  return {
    node,
    get value() {
      return select.value;
    },
    /** Options are [value, words]; `wanted` is chosen if it is among them or nothing was chosen. */
    show(options, wanted) {
      const before = select.value;
      reconcile(select, options, ([value]) => value, ([value]) => h("option", { value }), (option, [, words]) => text(option, words));
      const values = options.map(([value]) => value);
      const chosen = [wanted, before, values[0]].find((value) => values.includes(value));
      if (chosen !== undefined && select.value !== chosen) select.value = chosen;
      attribute(select, "disabled", options.length === 0);
    },
  };
}

const STATE = "\u0000";

/** One word for an operator's state, for the value of an option. */
export function stateKey(uid, name) {
  return `${uid}${STATE}${name}`;
}

/** The operator and state of such a word. */
export function fromStateKey(key) {
  return key.split(STATE);
}
