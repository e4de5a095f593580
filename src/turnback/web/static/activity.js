// What was asked of a job: progress while it is under way, then the result.

import { get } from "./api.js";
import { copyable, say } from "./copy.js";
import { attribute, h, reconcile, replace, text } from "./dom.js";
import { bytes, duration, now, number } from "./format.js";
import { icon } from "./icons.js";

const SHOWN = 3;
const VERBS = { savepoint: "Savepoint", stop: "Stop", cancel: "Cancel" };
const ended = (row) => row.state === "COMPLETED" || row.state === "FAILED";

// Survives going to another tab of the page and back.
const remembered = new Map();

/** The list of a job's requests that are open, or ended while the page looked on. */
export function activity(name) {
  if (!remembered.has(name)) remembered.set(name, new Map());
  const rows = remembered.get(name);
  const node = h("div", { class: "activity", "aria-label": "What was asked of the job" });
  draw();

  function draw() {
    const open = [...rows.values()].filter((row) => !ended(row));
    const over = [...rows.values()].filter(ended).sort((a, b) => b.ended_ms - a.ended_ms).slice(0, SHOWN);
    reconcile(node, [...open, ...over], (row) => row.id, () => card((id) => {
      rows.delete(id);
      draw();
    }), update);
  }

  function note(row) {
    const before = rows.get(row.id);
    rows.set(row.id, row);
    if (before && !ended(before) && ended(row)) say(summaryOf(row));
  }

  // The job's page lists open requests only; how the others ended is asked for.
  async function show(open) {
    for (const row of open) if (!rows.has(row.id) || !ended(rows.get(row.id))) note(row);
    const gone = [...rows.values()].filter((row) => !ended(row) && !open.some((other) => other.id === row.id));
    draw();
    for (const row of gone) {
      try {
        note(await get(["jobs", name, "requests", row.id]));
      } catch (error) {
        // A request that is not there any more says nothing; other failures are tried again.
        if (error.status === 404) rows.delete(row.id);
      }
    }
    if (gone.length > 0) draw();
  }

  return {
    node,
    show,
    add: (row) => {
      note(row);
      draw();
    },
  };
}

function card(dismiss) {
  const close = h("button", { class: "tool", type: "button", "aria-label": "Dismiss", title: "Dismiss", onclick: () => dismiss(close.parentNode.parentNode.itemKey) }, icon("cross"));
  return h("div", { class: "request" },
    h("div", { class: "request-line" }, h("span", { class: "request-sign" }), h("strong"), h("span", { class: "request-more" }), close),
    h("progress", { class: "progress", max: 1 }),
    h("div", { class: "request-result" }));
}

function update(node, row) {
  const [line, bar, result] = node.children;
  const [sign, title, more, close] = line.children;
  const over = ended(row);
  node.className = `request is-${row.state.toLowerCase()}`;
  if (sign.dataset.state !== row.state) {
    sign.dataset.state = row.state;
    replace(sign, icon({ COMPLETED: "check", FAILED: "cross", WAITING: "clock" }[row.state] ?? "restart"));
  }
  text(title, summaryOf(row));
  text(more, moreOf(row));
  close.hidden = !over;
  bar.hidden = over;
  attribute(bar, "aria-label", summaryOf(row));
  if (row.total > 0) bar.value = row.done / row.total;
  else bar.removeAttribute("value");
  const content = row.error ?? row.path ?? "";
  if (result.sign === content) return;
  result.sign = content;
  replace(result, row.error ? h("p", { class: "request-error" }, row.error) : row.path && copyable(row.path, "the savepoint's path", "is-block"));
}

function summaryOf(row) {
  const what = row.kind !== "savepoint" && row.savepoint ? `${VERBS[row.kind] ?? row.kind} with savepoint` : VERBS[row.kind] ?? row.kind;
  return `${what} ${{ WAITING: "asked for", RUNNING: "under way", COMPLETED: "done", FAILED: "failed" }[row.state] ?? row.state}`;
}

function moreOf(row) {
  if (ended(row)) return `after ${duration(Math.max(row.ended_ms - row.created_ms, 0))}`;
  const parts = [];
  if (row.total > 0) parts.push(`${number(row.done)} of ${number(row.total)} parts`);
  if (row.bytes > 0) parts.push(bytes(row.bytes));
  parts.push(row.state === "WAITING" ? "waiting for the driver" : `for ${duration(Math.max(now() - (row.started_ms ?? row.created_ms), 0))}`);
  return parts.join(" · ");
}
