// What is known of a job beside its state: configuration and exceptions.

import { get } from "./api.js";
import { h, reconcile, replace, text } from "./dom.js";
import { ago, duration, exactTime, NOTHING, number, quote } from "./format.js";
import { contentOr, copyable, copyButton, empty, filterField, icon } from "./parts.js";
import { sortBy } from "./sorting.js";
import { table } from "./table.js";

/** The tab: what a job runs with, and where each value comes from. */
export function configurationTab(name) {
  let all = [];
  const filter = filterField("Filter by key, value or description", "Filter configuration", draw);
  const changed = h("input", { type: "checkbox", onchange: draw });
  const rows = table({
    label: "Configuration", key: (row) => row.key,
    rowClass: (row) => (row.origin === "default" ? "is-default" : ""),
    empty: () => (all.length > 0
      ? empty("No key matches.", "Clear the filter to see all of them.")
      : empty("No configuration recorded.", "The driver records it when an attempt begins.")),
    columns: [
      { label: "Key", wide: true, sort: (row) => row.key, depends: (row) => [row.key, row.doc], cell: (row) => [h("code", { class: "config-key" }, row.key), row.doc && h("p", { class: "why is-open" }, withCode(row.doc))] },
      { label: "Value", sort: (row) => row.value, depends: (row) => row.value, cell: (row) => (row.value === null || row.value === "" ? h("span", { class: "soft" }, NOTHING) : h("code", { class: "config-value" }, row.value)) },
      { label: "Origin", sort: (row) => row.origin, depends: (row) => row.origin, cell: (row) => h("span", { class: row.origin === "default" ? "soft" : "chip" }, row.origin) },
    ],
  });

  function draw() {
    rows.show(all.filter((row) => (!changed.checked || row.origin !== "default") && filter.matches(row.key, row.value, row.origin, row.doc)));
  }

  return {
    node: h("section", { class: "card" }, h("h2", null, "Configuration"),
      h("div", { class: "toolbar" }, filter.node, h("label", { class: "check" }, changed, "Only non-default values")),
      rows.node),
    load: (signal) => get(["jobs", name, "configuration"], {}, signal),
    show: (data) => {
      all = data;
      draw();
    },
    interval: 10_000,
  };
}

// Text with what stands between backticks as code.
function withCode(words) {
  return words.split("`").map((part, at) => (at % 2 === 1 ? h("code", null, part) : part));
}

const FAILURES = {
  restarting: ["warn", "restart", "Attempt failed"],
  failed: ["bad", "cross", "Job failed"],
  "driver died": ["bad", "question", "Driver died"],
  "files changed": ["warn", "warning", "Files changed"],
};
const ORDERS = {
  "last time": [(row) => row.at_ms, true],
  "first time": [(row) => row.first_ms ?? row.at_ms, false],
  "how often": [(row) => row.count, true],
  message: [(row) => row.cause, false],
};
const LONG = 6;

/** The tab: what went wrong with a job, newest first. */
export function exceptionsTab(name) {
  let rows = [];
  const list = h("ol", { class: "failures" });
  const order = h("select", { onchange: draw }, Object.keys(ORDERS).map((words) => h("option", { value: words }, words)));
  const content = contentOr(list, empty("No failures.", "Failed attempts and restarts appear here, including those before a restart of the driver."));
  const choice = h("label", { class: "sort-by" }, "Sort by", order);

  function draw() {
    const [value, down] = ORDERS[order.value];
    reconcile(list, sortBy(rows, value, down), (row) => `${row.attempt}/${row.at_ms}/${row.kind}/${row.count}`, failureItem, (node, row) => text(node.querySelector("time"), ago(row.at_ms)));
  }

  return {
    node: h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", null, "Exceptions and restarts"), choice), content.node),
    load: (signal) => get(["jobs", name, "exceptions"], {}, signal),
    show: (data) => {
      rows = data;
      choice.hidden = rows.length < 2;
      content.show(rows.length > 0);
      draw();
    },
  };
}

function failureItem(row) {
  const [tone, shape, words] = FAILURES[row.kind] ?? ["warn", "warning", row.kind];
  const lines = row.cause.split("\n");
  const whole = h("pre", { class: "cause-text" }, row.cause);
  return h("li", { class: "failure-item" },
    h("div", { class: "failure-head" },
      h("span", { class: `badge is-${tone}` }, icon(shape), h("span", null, words)),
      row.count > 1 ? h("strong", null, `${number(row.count)} times`) : null,
      h("span", null, `${row.count > 1 ? "last in " : ""}attempt ${row.attempt}`),
      h("time", { title: exactTime(row.at_ms) }),
      h("span", { class: "soft" }, row.count > 1 ? `since ${exactTime(row.first_ms)}` : followed(row)),
      copyButton(row.cause, "the cause")),
    lines.length > LONG
      ? h("details", null, h("summary", null, h("code", null, lines[0])), whole)
      : whole);
}

function followed(row) {
  if (row.kind === "failed") return "not restarted";
  if (row.kind === "driver died") return "another process took over";
  if (row.kind === "files changed") return "the job continued, unless it is configured to fail";
  return row.delay_ms === null ? "restarted" : `restarted after ${duration(row.delay_ms)}`;
}
