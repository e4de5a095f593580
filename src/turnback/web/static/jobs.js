// All jobs of the root directory.

import { about, get, onAbout } from "./api.js";
import { h, reconcile, replace, text } from "./dom.js";
import { ago, compact, duration, exactDuration, exactTime, NOTHING, now, number, plural } from "./format.js";
import { lagText, lagTitle, lagValue } from "./lag.js";
import { badge, copyablePath, empty, filterField, needsAttention, tone } from "./parts.js";
import { to } from "./router.js";
import { recordRate, sparkline } from "./sparkline.js";
import { table } from "./table.js";

/** How long a job has been running, or ran. */
export function runningFor(summary) {
  if (summary.started_ms === null) return null;
  const end = ["RUNNING", "STALLED", "RESTARTING"].includes(summary.state) ? now() : summary.updated_ms;
  return end === null ? null : Math.max(end - summary.started_ms, 0);
}

const trends = new Map();
const COLUMNS = [
  { label: "Job", wide: true, sort: (job) => job.name, depends: (job) => [job.name, job.cause, job.problem, job.state], cell: nameCell },
  { label: "State", sort: (job) => job.state, depends: (job) => job.state, cell: (job) => badge(job.state) },
  { label: "Records/s", numeric: true, sort: (job) => job.records_per_s, cell: (job) => compact(job.records_per_s), title: (job) => `${number(job.records_in)} since the attempt began` },
  { label: "Trend", minor: true, depends: () => "", cell: trendCell },
  { label: "Lag", numeric: true, sort: (job) => job.lag?.records ?? job.lag?.seconds, cell: (job) => lagValue(job.lag), title: (job) => [lagTitle(job.lag), lagText(job.lag)].filter(Boolean).join("; ") || null, help: "Records that its sources have not processed yet" },
  { label: "Running for", numeric: true, sort: runningFor, cell: (job) => duration(runningFor(job)), title: (job) => exactDuration(runningFor(job)) },
  { label: "Checkpoint", numeric: true, sort: (job) => job.checkpoint, cell: (job) => (job.checkpoint === null ? NOTHING : `chk-${job.checkpoint}`) },
  { label: "Epoch", minor: true, numeric: true, sort: (job) => job.epoch, cell: (job) => number(job.epoch) },
  { label: "Attempt", minor: true, numeric: true, sort: (job) => job.attempt, cell: (job) => number(job.attempt) },
  { label: "Restarts", numeric: true, sort: (job) => job.restarts, cell: (job) => number(job.restarts), help: "Since it was started" },
  { label: "Last sign", tight: true, numeric: true, sort: (job) => job.updated_ms, cell: (job) => ago(job.updated_ms), title: (job) => exactTime(job.updated_ms), help: "When its driver last wrote its status" },
];

function nameCell(job) {
  const why = job.problem ?? job.cause;
  return [
    h("a", { class: "job-link", href: to("jobs", job.name) }, job.name),
    why && h("p", { class: `why is-${tone(job.state)}`, title: why }, why.split("\n")[0]),
  ];
}

function trendCell(job) {
  trends.set(job.name, sparkline(job.name));
  return trends.get(job.name).node;
}

/** The view. */
export function jobsView() {
  let jobs = [];
  let only = null;
  const filter = filterField("Filter by name, id or cause", "Filter jobs", draw, h("kbd", null, "/"));
  const chips = h("div", { class: "row", role: "group", "aria-label": "Show only jobs that are" });
  const list = table({
    label: "Jobs", columns: COLUMNS, key: (job) => job.directory, empty: nothing,
    rowClass: (job) => (needsAttention(job.state) ? "needs-attention" : ""),
  });
  const root = h("div", { class: "root" });
  const title = h("h1", null, "Jobs");
  const endAbout = onAbout((site) => replace(root, h("span", null, "in"), copyablePath(site.root, "the root directory")));

  function nothing() {
    if (jobs.length > 0) return empty("No job matches.", "Clear the filter to see all of them.");
    return empty("No job has run here yet.", `Start one with ${about?.root ?? "this directory"} as its checkpoint directory:`, "turnback run -d job.py");
  }

  function draw() {
    drawChips();
    const matches = (job) => (only === null || job.state === only) && filter.matches(job.name, job.job_id, job.cause, job.problem);
    const rank = (job) => (needsAttention(job.state) ? 0 : 1);
    list.show(jobs.filter(matches).sort((a, b) => rank(a) - rank(b)));
    for (const trend of trends.values()) trend.draw();
  }

  function drawChips() {
    const counts = new Map([[null, jobs.length]]);
    for (const job of jobs) counts.set(job.state, (counts.get(job.state) ?? 0) + 1);
    if (only !== null && !counts.has(only)) counts.set(only, 0);
    reconcile(chips, [...counts], ([state]) => state ?? "ALL", ([state]) => h("button", {
      class: `chip-button is-${state === null ? "quiet" : tone(state)}`, type: "button",
      onclick: () => {
        only = only === state ? null : state;
        draw();
      },
    }), (button, [state, count]) => {
      text(button, `${state === null ? "all" : state.toLowerCase()} ${number(count)}`);
      button.setAttribute("aria-pressed", String(only === state));
    });
    chips.hidden = jobs.length === 0;
  }

  function search(event) {
    if (event.key !== "/" || event.target.closest("input, textarea, select, dialog")) return;
    event.preventDefault();
    filter.focus();
  }
  document.addEventListener("keydown", search);

  return {
    title: "Jobs",
    node: h("section", { class: "page" },
      h("div", { class: "page-head" }, title, root), h("div", { class: "toolbar" }, filter.node, chips), list.node),
    load: (signal) => get(["jobs"], {}, signal),
    show: (data) => {
      jobs = data;
      jobs.forEach(recordRate);
      title.title = plural(jobs.length, "job");
      draw();
    },
    stop: () => {
      endAbout();
      trends.clear();
      document.removeEventListener("keydown", search);
    },
  };
}
