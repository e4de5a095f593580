// What can be asked of a job: savepoint, stop, cancel, delete; and how far each request has got.

import { about, get, onAbout, post } from "./api.js";
import { askDeleteJob } from "./deletion.js";
import { askToken, checkbox, field, openDialog, whyNot } from "./dialog.js";
import { attribute, attributes, h, reconcile, replaceIfChanged, text, uniqueId } from "./dom.js";
import { bytes, duration, now, number } from "./format.js";
import { announce, copyable, icon } from "./parts.js";

const ENDED = {
  FINISHED: "The job has finished and takes no requests.",
  FAILED: "The job has failed and takes no requests.",
  CANCELED: "The job was cancelled and takes no requests.",
  LOST: "The job's driver is gone, so the job takes no requests.",
  UNREADABLE: "The job's directory cannot be read.",
};

/** The buttons; `onRequest(row)` is called with the request of each that was confirmed. */
export function actionBar(name, onRequest) {
  const reason = h("p", { class: "reason", id: uniqueId("reason") });
  const enter = h("button", { class: "link", type: "button", hidden: true, onclick: askToken }, "Enter token");
  let detail = null;
  const ask = (action) => async (body) => onRequest(await post(["jobs", name, action], body));
  const remove = button("Delete", "trash", "is-danger-quiet is-delete", () => askDeleteJob(detail.summary), whyNot);
  const buttons = [
    button("Take savepoint", "save", "is-primary", () => askSavepoint(name, ask("savepoint"))),
    button("Stop with savepoint", "stop", "", () => askStop(name, ask("stop"))),
    button("Cancel", "cross", "is-danger-quiet", () => askCancel(name, detail.summary.checkpoint, ask("cancel"))),
  ];

  function button(label, shape, look, open, obstacle = whyNotAsked) {
    return h("button", {
      class: `button ${look}`, type: "button", "aria-describedby": reason.id,
      onclick: () => {
        if (obstacle() === null) open();
      },
    }, icon(shape), label);
  }

  function ended() {
    return (detail && ENDED[detail.summary.state]) ?? null;
  }

  function whyNotAsked() {
    return ended() ?? whyNot();
  }

  function draw() {
    const why = whyNotAsked();
    // Still reachable by keyboard, so that everybody can find out why.
    const disable = (each, because) => attributes(each, { "aria-disabled": because === null ? null : "true", title: because });
    for (const each of buttons) disable(each, why);
    disable(remove, whyNot());
    remove.hidden = ended() === null;
    text(reason, [ended(), whyNot()].filter(Boolean).join(" "));
    enter.hidden = about === null || about.read_only || about.authorized;
  }

  const endAbout = onAbout(draw);
  return {
    node: h("div", { class: "actions" }, h("div", { class: "actions-buttons row" }, buttons, remove), h("div", { class: "actions-note" }, reason, enter)),
    show: (data) => {
      detail = data;
      draw();
    },
    stop: endAbout,
  };
}

function askSavepoint(name, act) {
  const label = h("input", { type: "text", maxlength: 200, autocomplete: "off", placeholder: "before-upgrade" });
  const note = h("textarea", { rows: 2, maxlength: 4000, placeholder: "Why you take it" });
  const format = h("select", null,
    h("option", { value: "" }, "As configured"),
    h("option", { value: "canonical" }, "Canonical: tables, for any program, parallelism and tool"),
    h("option", { value: "native" }, "Native: copies of the state files, faster"));
  openDialog({
    title: `Take a savepoint of ${name}`,
    content: [
      h("p", { class: "soft" }, "The job continues to run meanwhile."),
      field("Label", label, "Optional. A short name for the savepoint."),
      field("Note", note, "Optional."),
      field("Format", format),
    ],
    confirm: "Take savepoint",
    act: () => act({
      ...(label.value.trim() && { label: label.value.trim() }),
      ...(note.value.trim() && { note: note.value.trim() }),
      ...(format.value && { format: format.value }),
    }),
  });
}

function askStop(name, act) {
  const drain = h("input", { type: "checkbox" });
  openDialog({
    title: `Stop ${name} with a savepoint?`,
    content: [
      h("p", { class: "soft" }, "The job finishes its epoch, writes a savepoint, commits its output and ends. You can start it again from that savepoint."),
      checkbox("Drain first", drain, "Advances event time to its end, so that all windows and timers fire. Use it only if the job will not be continued: event time cannot go back."),
    ],
    confirm: "Stop with savepoint",
    dismiss: "Keep it running",
    act: () => act({ savepoint: true, drain: drain.checked }),
  });
}

function askCancel(name, latest, act) {
  const savepoint = h("input", { type: "checkbox" });
  openDialog({
    title: `Cancel ${name}?`,
    content: [
      h("p", { class: "soft" }, latest === null
        ? "The job ends immediately. It has no complete checkpoint: all progress since its start is lost."
        : `The job ends immediately. It can be started again from its latest checkpoint, chk-${latest}, and then processes later records again.`),
      checkbox("Take a savepoint first", savepoint, "If the savepoint fails, the job is not cancelled."),
    ],
    confirm: `Cancel ${name.length > 40 ? "job" : name}`,
    danger: true,
    dismiss: "Keep it running",
    act: () => act({ savepoint: savepoint.checked }),
  });
}

const SHOWN = 3;
const VERBS = { savepoint: "Savepoint", stop: "Stop", cancel: "Cancel" };
const STATES = { WAITING: "requested", RUNNING: "in progress", COMPLETED: "done", FAILED: "failed" };
const hasEnded = (row) => row.state === "COMPLETED" || row.state === "FAILED";

// By job; survives going to another tab of the page and back.
const remembered = new Map();

/** The requests of a job that are open, or ended while the page looked on. */
export function requestList(name) {
  if (!remembered.has(name)) remembered.set(name, new Map());
  const rows = remembered.get(name);
  const node = h("div", { class: "activity", "aria-label": "Requests to the job" });
  draw();

  function draw() {
    const open = [...rows.values()].filter((row) => !hasEnded(row));
    const ended = [...rows.values()].filter(hasEnded).sort((a, b) => b.ended_ms - a.ended_ms).slice(0, SHOWN);
    reconcile(node, [...open, ...ended], (row) => row.id, ({ id }) => requestCard(() => {
      rows.delete(id);
      draw();
    }), updateRequest);
  }

  function remember(row) {
    const before = rows.get(row.id);
    rows.set(row.id, row);
    if (before && !hasEnded(before) && hasEnded(row)) announce(summaryOf(row));
  }

  // The job's page lists open requests only; how the others ended is asked for.
  async function show(open) {
    for (const row of open) if (!rows.has(row.id) || !hasEnded(rows.get(row.id))) remember(row);
    const gone = [...rows.values()].filter((row) => !hasEnded(row) && !open.some((other) => other.id === row.id));
    draw();
    for (const row of gone) {
      try {
        remember(await get(["jobs", name, "requests", row.id]));
      } catch (error) {
        // A request that is not there any more says nothing; other failures are tried again.
        if (error.status === 404) rows.delete(row.id);
        else if (error.status === undefined) console.error(error);
      }
    }
    if (gone.length > 0) draw();
  }

  return {
    node,
    show,
    add: (row) => {
      remember(row);
      draw();
    },
  };
}

function requestCard(dismiss) {
  return h("div", { class: "request" },
    h("div", { class: "request-line" }, h("span", { class: "request-sign" }), h("strong"), h("span", { class: "request-more" }),
      h("button", { class: "tool", type: "button", "aria-label": "Dismiss", title: "Dismiss", onclick: dismiss }, icon("cross"))),
    h("progress", { class: "progress", max: 1 }),
    h("div", { class: "request-result" }));
}

function updateRequest(node, row) {
  const [line, bar, result] = node.children;
  const [sign, title, more, close] = line.children;
  node.className = `request is-${row.state.toLowerCase()}`;
  replaceIfChanged(sign, row.state, () => icon({ COMPLETED: "check", FAILED: "cross", WAITING: "clock" }[row.state] ?? "restart"));
  text(title, summaryOf(row));
  text(more, progressOf(row));
  close.hidden = !hasEnded(row);
  bar.hidden = hasEnded(row);
  attribute(bar, "aria-label", summaryOf(row));
  if (row.total > 0) bar.value = row.done / row.total;
  else bar.removeAttribute("value");
  replaceIfChanged(result, [row.error, row.path], () => (row.error
    ? h("p", { class: "request-error" }, row.error)
    : row.path && copyable(row.path, "the savepoint's path", "is-block")));
}

function summaryOf(row) {
  const what = VERBS[row.kind] ?? row.kind;
  return `${what}${row.kind !== "savepoint" && row.savepoint ? " with savepoint" : ""} ${STATES[row.state] ?? row.state}`;
}

function progressOf(row) {
  if (hasEnded(row)) return `after ${duration(Math.max(row.ended_ms - row.created_ms, 0))}`;
  const parts = [];
  if (row.total > 0) parts.push(`${number(row.done)} of ${number(row.total)} parts`);
  if (row.bytes > 0) parts.push(bytes(row.bytes));
  parts.push(row.state === "WAITING" ? "waiting for the driver" : `for ${duration(Math.max(now() - (row.started_ms ?? row.created_ms), 0))}`);
  return parts.join(" · ");
}
