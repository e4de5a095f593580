// How a job is doing, and its graph.

import { get } from "./api.js";
import { copyable } from "./copy.js";
import { attribute, h, reconcile, replace, text } from "./dom.js";
import { ago, bytes, compact, duration, exactBytes, exactDuration, exactTime, NOTHING, number, time } from "./format.js";
import { graph } from "./graph.js";
import { icon } from "./icons.js";
import { runningFor } from "./jobs.js";
import { empty } from "./message.js";
import * as samples from "./samples.js";
import { sparkline } from "./sparkline.js";

const ENDED = new Set(["FINISHED", "FAILED", "CANCELED", "LOST"]);

/** The tab. */
export function overviewTab(name) {
  const line = sparkline("Records per second since this page was opened");
  const tiles = h("div", { class: "tiles" });
  const picture = graph();
  const noPicture = h("div", { hidden: true });
  const warnings = h("div", { class: "warnings" });
  const again = h("div", { class: "card", hidden: true });
  const versions = h("dl", { class: "pairs" });
  let detail = null;
  let history = null;

  function draw() {
    if (detail === null) return;
    const { summary } = detail;
    line.show(samples.of(name));
    reconcile(tiles, facts(detail, history), (fact) => fact.label, (fact) => tile(fact, line.node), updateTile);
    picture.show(detail.operators);
    picture.node.hidden = detail.operators.length === 0;
    noPicture.hidden = !picture.node.hidden;
    if (!noPicture.hidden && noPicture.firstChild === null) replace(noPicture, empty("No graph yet.", "The job has not got as far as planning its program."));
    reconcile(warnings, detail.warnings, (warning) => warning, (warning) => h("p", { class: "warning" }, icon("warning"), h("span", null, warning)));
    showAgain(again, detail, summary);
    showVersions(versions, detail);
  }

  return {
    node: h("div", { class: "stack" }, tiles, warnings, again,
      h("section", { class: "card" }, h("h2", null, "Graph"), picture.node, noPicture),
      h("section", { class: "card" }, h("h2", null, "Program"), versions)),
    load: (signal) => get(["jobs", name, "checkpoints"], {}, signal),
    show: (data) => {
      history = data;
      draw();
    },
    detail: (data) => {
      detail = data;
      draw();
    },
    stop: () => picture.stop(),
  };
}

function facts(detail, history) {
  const { summary } = detail;
  const done = history?.rows.find((row) => row.status === "COMPLETED");
  // Of the very newest the numbers may not be recorded yet.
  const last = history?.rows.find((row) => row.status === "COMPLETED" && row.duration_ms !== null);
  const at = done ? done.triggered_ms + (done.duration_ms ?? 0) : null;
  const newest = done?.number ?? summary.checkpoint ?? null;
  const size = last?.full_bytes ?? null;
  return [
    { label: "Records/s", value: compact(summary.records_per_s), more: `${compact(summary.records_in)} in this attempt`, title: `${number(summary.records_in)} records`, spark: true },
    { label: ENDED.has(summary.state) ? "Ran for" : "Running for", value: duration(runningFor(summary)), more: summary.started_ms === null ? "" : `since ${time(summary.started_ms)}`, title: exactTime(summary.started_ms) },
    { label: "Last checkpoint", value: at === null ? NOTHING : ago(at), more: newest === null ? "none complete yet" : `chk-${newest}`, title: exactTime(at) },
    { label: "Checkpoint took", value: duration(last?.duration_ms ?? null), more: history ? `${history.failed === 0 ? "none" : number(history.failed)} of ${number(history.completed + history.failed)} failed` : "", title: exactDuration(last?.duration_ms ?? null), alarm: Boolean(history && history.rows[0]?.status === "FAILED") },
    { label: "State size", value: bytes(size), more: last ? `last +${bytes(last.delta_bytes)}` : "", title: exactBytes(size) },
    { label: "Attempt", value: number(summary.attempt), more: summary.restarts === 1 ? "1 restart" : `${number(summary.restarts)} restarts`, alarm: summary.state === "RESTARTING" },
    { label: "Epoch", value: number(summary.epoch), more: detail.max_parallelism === null ? "" : `${number(detail.max_parallelism)} key groups` },
  ];
}

function tile(fact, spark) {
  return h("div", { class: fact.spark ? "tile is-wide" : "tile" },
    h("span", { class: "tile-label" }, fact.label),
    h("span", { class: "tile-value" }),
    h("span", { class: "tile-more" }),
    fact.spark && spark);
}

function updateTile(node, fact) {
  const [, value, more] = node.children;
  text(value, fact.value);
  text(more, fact.more);
  attribute(node, "title", fact.title);
  node.classList.toggle("is-alarm", Boolean(fact.alarm));
}

function showAgain(node, detail, summary) {
  node.hidden = !ENDED.has(summary.state) || detail.script.length === 0;
  if (node.hidden || node.sign === detail.script.join("\0")) return;
  node.sign = detail.script.join("\0");
  const command = `turnback run -d ${detail.script.map(quote).join(" ")}`;
  replace(node, h("h2", null, "Start it again"),
    h("p", { class: "soft" }, "It goes on from its latest checkpoint. Add -s SNAPSHOT to go back further."),
    copyable(command, "the command", "is-block"));
}

/** A word as a shell takes it. */
function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

function showVersions(node, { summary, versions, script }) {
  const pairs = [
    ...(script.length > 0 ? [["Script", script.join(" ")]] : []),
    ["Driver", processText(summary.driver)],
    ["Supervisor", summary.supervisor === null ? "none: nobody starts the driver again if it dies" : processText(summary.supervisor)],
    ["Log", summary.log ?? NOTHING],
    ["First started", when(summary.created_ms)],
    ["Last sign of the driver", when(summary.updated_ms)],
    ...Object.entries(versions).map(([what, version]) => [what, version]),
  ];
  reconcile(node, pairs, ([what]) => what, ([what]) => h("div", null, h("dt", null, what), h("dd")),
    (pair, [, value]) => text(pair.lastChild, value));
}

function when(ms) {
  return ms === null ? NOTHING : `${time(ms)}, ${ago(ms)}`;
}

function processText(process) {
  if (process === null) return NOTHING;
  const alive = { true: "alive", false: "dead" }[process.alive] ?? "cannot be told from here";
  return `process ${process.pid} on ${process.host} (${alive})`;
}
