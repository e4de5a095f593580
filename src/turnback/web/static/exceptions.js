// What went wrong with a job, newest first.

import { get } from "./api.js";
import { copyButton } from "./copy.js";
import { h, reconcile, text } from "./dom.js";
import { ago, duration, exactTime } from "./format.js";
import { icon } from "./icons.js";
import { empty } from "./message.js";

const WHAT = {
  restarting: ["warn", "restart", "Attempt failed"],
  failed: ["bad", "cross", "Job failed"],
  "driver died": ["bad", "question", "Driver died"],
};
const LONG = 6;

/** The tab. */
export function exceptionsTab(name) {
  const list = h("ol", { class: "failures" });
  const none = h("div", { hidden: true }, empty("Nothing has gone wrong.", "Failures of attempts and restarts are listed here, also those from before a restart of the driver."));
  return {
    node: h("section", { class: "card" }, h("h2", null, "Exceptions and restarts"), list, none),
    load: (signal) => get(["jobs", name, "exceptions"], {}, signal),
    show: (rows) => {
      none.hidden = rows.length > 0;
      reconcile(list, rows, (row) => `${row.attempt}/${row.at_ms}/${row.kind}`, item, (node, row) => text(node.querySelector("time"), ago(row.at_ms)));
    },
  };
}

function item(row) {
  const [tone, shape, words] = WHAT[row.kind] ?? ["warn", "warning", row.kind];
  const lines = row.cause.split("\n");
  const whole = h("pre", { class: "cause-text" }, row.cause);
  return h("li", { class: "failure-item" },
    h("div", { class: "failure-head" },
      h("span", { class: `badge is-${tone}` }, icon(shape), h("span", null, words)),
      h("span", null, `attempt ${row.attempt}`),
      h("time", { title: exactTime(row.at_ms) }),
      h("span", { class: "soft" }, followed(row)),
      copyButton(row.cause, "the cause")),
    lines.length > LONG
      ? h("details", null, h("summary", null, h("code", null, lines[0])), whole)
      : whole);
}

function followed(row) {
  if (row.kind === "failed") return "not started again";
  if (row.kind === "driver died") return "another process took over";
  return row.delay_ms === null ? "started again" : `started again after ${duration(row.delay_ms)}`;
}
