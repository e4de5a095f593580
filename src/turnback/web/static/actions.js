// What can be done with a job: savepoint, stop, cancel.

import { keepToken, post, token } from "./api.js";
import { ask, field, tick } from "./dialog.js";
import { attribute, h, text, uniqueId } from "./dom.js";
import { icon } from "./icons.js";
import * as server from "./server.js";

const ENDED = {
  FINISHED: "The job has finished, so there is nothing to ask of it.",
  FAILED: "The job has failed, so there is no driver to ask.",
  CANCELED: "The job was cancelled, so there is no driver to ask.",
  CANCELLING: "The job is already on its way down.",
  LOST: "The job's driver is gone, so there is nobody to ask.",
  UNREADABLE: "The job's directory cannot be read.",
};

/** The buttons; `begun(row)` is called with the request of each that was confirmed. */
export function actionBar(name, begun) {
  const reason = h("p", { class: "reason", id: uniqueId("reason") });
  const enter = h("button", { class: "link", type: "button", hidden: true, onclick: askToken }, "Enter token");
  let detail = null;
  const buttons = [
    button("Take savepoint", "save", "is-primary", () => askSavepoint(name, begun)),
    button("Stop with savepoint", "stop", "", () => askStop(name, begun)),
    button("Cancel", "cross", "is-danger-quiet", () => askCancel(name, detail, begun)),
  ];

  function button(label, shape, look, open) {
    return h("button", {
      class: `button ${look}`, type: "button", "aria-describedby": reason.id,
      onclick: () => {
        if (why() === null) open();
      },
    }, icon(shape), label);
  }

  function why() {
    return (detail && ENDED[detail.summary.state]) ?? server.forbidden();
  }

  function draw() {
    const obstacle = why();
    // Still reachable by keyboard, so that everybody can find out why.
    for (const each of buttons) {
      attribute(each, "aria-disabled", obstacle === null ? null : "true");
      attribute(each, "title", obstacle);
    }
    text(reason, obstacle ?? "");
    const about = server.known();
    enter.hidden = obstacle === null || about === null || about.read_only || about.authorized || Boolean(detail && ENDED[detail.summary.state]);
  }

  server.watch(draw);
  return {
    node: h("div", { class: "actions" }, h("div", { class: "actions-buttons" }, buttons), h("div", { class: "actions-note" }, reason, enter)),
    show: (data) => {
      detail = data;
      draw();
    },
  };
}

function askSavepoint(name, begun) {
  const label = h("input", { type: "text", maxlength: 200, autocomplete: "off", placeholder: "before-upgrade" });
  const note = h("textarea", { rows: 2, maxlength: 4000, placeholder: "Why it is taken" });
  const format = h("select", null,
    h("option", { value: "" }, "As configured"),
    h("option", { value: "canonical" }, "Canonical: tables, for any program, parallelism and tool"),
    h("option", { value: "native" }, "Native: copies of the state files, quicker"));
  ask({
    title: `Take a savepoint of ${name}`,
    content: [
      h("p", { class: "soft" }, "The job goes on while it is written."),
      field("Label", label, "Optional. A short name to find it by."),
      field("Note", note, "Optional."),
      field("Format", format),
    ],
    confirm: "Take savepoint",
    act: async () => begun(await post(["jobs", name, "savepoint"], {
      ...(label.value.trim() && { label: label.value.trim() }),
      ...(note.value.trim() && { note: note.value.trim() }),
      ...(format.value && { format: format.value }),
    })),
  });
}

function askStop(name, begun) {
  const drain = h("input", { type: "checkbox" });
  ask({
    title: `Stop ${name} with a savepoint?`,
    content: [
      h("p", { class: "soft" }, "It finishes its epoch, writes a savepoint, commits its output and ends. Start it again from that savepoint."),
      tick("Drain first", drain, "Lets event time run to its end, so that all windows and timers fire. Only if the job is not to be continued: it could not go on from there as if nothing had happened."),
    ],
    confirm: "Stop with savepoint",
    dismiss: "Keep it running",
    act: async () => begun(await post(["jobs", name, "stop"], { savepoint: true, drain: drain.checked })),
  });
}

function askCancel(name, detail, begun) {
  const savepoint = h("input", { type: "checkbox" });
  const latest = detail.summary.checkpoint;
  ask({
    title: `Cancel ${name}?`,
    content: [
      h("p", { class: "soft" }, latest === null
        ? "The job ends at once. It has no complete checkpoint: everything since its start is lost."
        : `The job ends at once. It can be started again from its latest checkpoint, chk-${latest}; what came after is processed again then.`),
      tick("Take a savepoint first", savepoint, "If the savepoint fails, the job is not cancelled."),
    ],
    confirm: `Cancel ${name.length > 40 ? "job" : name}`,
    danger: true,
    dismiss: "Keep it running",
    act: async () => begun(await post(["jobs", name, "cancel"], { savepoint: savepoint.checked })),
  });
}

function askToken() {
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  ask({
    title: "Enter the token",
    content: [
      h("p", { class: "soft" }, "“turnback ui” prints an address that ends in ?token=…; what follows is the token. It is kept until this tab is closed."),
      field("Token", input),
    ],
    confirm: "Use token",
    act: async () => {
      const before = token();
      keepToken(input.value.trim());
      try {
        if ((await server.ask()).authorized) return;
      } catch (error) {
        if (error.status !== 401 && error.status !== 403) throw error;
      }
      keepToken(before);
      throw Object.assign(new Error("The server does not know this token."), { status: 403 });
    },
  });
}
