// How a job is doing, and its graph.

import { get } from "./api.js";
import { h, reconcile, replaceIfChanged, showPairs } from "./dom.js";
import { ago, bytes, compact, duration, exactBytes, exactDuration, exactTime, NOTHING, number, plural, quote, shorten, time } from "./format.js";
import { graph } from "./graph.js";
import { runningFor } from "./jobs.js";
import { fallsBehind, lagText, lagTitle, lagValue } from "./lag.js";
import { busyText, percent } from "./load.js";
import { contentOr, copyable, copyablePath, empty, icon, showTiles, sparkLink } from "./parts.js";
import { recallRates, sparkline } from "./sparkline.js";
import { throughputCard } from "./throughput.js";

const RECENT = 50;
const ENDED = new Set(["FINISHED", "FAILED", "CANCELED", "LOST"]);

/** The tab. */
export function overviewTab(name) {
  const line = sparkline(name);
  const tiles = h("div", { class: "tiles" });
  const picture = graph();
  const throughput = throughputCard(name, (points) => {
    recallRates(name, points);
    line.draw();
  });
  const drawing = contentOr(picture.node, empty("No graph yet.", "The job has not planned its program yet."));
  const warnings = h("div", { class: "warnings" });
  const again = h("div", { class: "card", hidden: true });
  const program = h("dl", { class: "pairs" });
  let detail = null;
  let history = null;

  function draw() {
    if (detail === null) return;
    line.draw();
    showTiles(tiles, facts(detail, history, line.node));
    if (drawing.show(detail.operators.length > 0)) picture.show(detail.operators, detail.bottleneck);
    reconcile(warnings, detail.warnings, (warning) => warning, (warning) => h("p", { class: "warning" }, icon("warning"), h("span", null, warning)));
    showAgain(again, detail);
    showPairs(program, programPairs(detail));
  }

  return {
    node: h("div", { class: "stack" }, tiles, warnings, again,
      h("section", { class: "card" }, h("h2", null, "Graph"), drawing.node),
      throughput.node,
      h("section", { class: "card" }, h("h2", null, "Program"), program)),
    load: (signal) => get(["jobs", name, "checkpoints"], { limit: RECENT }, signal),
    show: (data) => {
      history = data;
      draw();
    },
    detail: (data) => {
      detail = data;
      draw();
    },
    stop: () => {
      picture.stop();
      throughput.stop();
    },
  };
}

function restoreTile({ what, done, entries, left_s: left }) {
  const more = left === null ? "" : `about ${duration(Math.max(1, Math.round(left)) * 1000)} left`;
  return { label: "Restoring", value: `${Math.floor(done * 100)} %`, more, title: `${what}: about ${number(entries)} entries` };
}

function facts(detail, history, picture) {
  const { summary } = detail;
  const done = history?.rows.find((row) => row.status === "COMPLETED");
  // Of the very newest the numbers may not be recorded yet.
  const last = history?.rows.find((row) => row.status === "COMPLETED" && row.duration_ms !== null);
  const at = done ? done.triggered_ms + (done.duration_ms ?? 0) : null;
  const newest = done?.number ?? summary.checkpoint ?? null;
  const size = last?.full_bytes ?? null;
  return [
    ...(summary.restore === null ? [] : [restoreTile(summary.restore)]),
    { label: "Records/s", value: compact(summary.records_per_s), more: `${compact(summary.records_in)} in this attempt`, title: `${number(summary.records_in)} records`, picture },
    ...(summary.lag === null ? [] : [{ label: "Lag", value: lagValue(summary.lag), more: lagText(summary.lag), title: lagTitle(summary.lag), alarm: fallsBehind(summary.lag) }]),
    ...(detail.busy === null ? [] : [busyTile(detail)]),
    { label: ENDED.has(summary.state) ? "Ran for" : "Running for", value: duration(runningFor(summary)), more: summary.started_ms === null ? "" : `since ${time(summary.started_ms)}`, title: exactTime(summary.started_ms) },
    { label: "Last checkpoint", value: at === null ? NOTHING : ago(at), more: newest === null ? "none complete yet" : `chk-${newest}`, title: exactTime(at) },
    { label: "Checkpoint took", value: duration(last?.duration_ms ?? null), more: history ? `${history.failed === 0 ? "none" : number(history.failed)} of ${number(history.completed + history.failed)} failed` : "", title: exactDuration(last?.duration_ms ?? null), alarm: Boolean(history && history.rows[0]?.status === "FAILED") },
    { label: "State size", value: bytes(size), more: last ? `last +${bytes(last.delta_bytes)}` : "", title: exactBytes(size) },
    { label: "Attempt", value: number(summary.attempt), more: [restarts(summary), ...(summary.epoch === null ? [] : [`epoch ${number(summary.epoch)}`])].join(", "), alarm: summary.state === "RESTARTING" || summary.recent_restarts > 2 },
  ];
}

function busyTile({ busy, bottleneck, operators, summary }) {
  const busiest = operators.find(({ uid }) => uid === bottleneck);
  const behind = fallsBehind(summary.lag);
  return {
    label: "Busy", value: percent(busy), alarm: behind && busy >= 0.8,
    more: busiest ? `${behind ? "held back by" : "busiest:"} ${shorten(busiest.name, 18)}` : "almost idle",
    title: `Epochs ran for ${percent(busy)} of the last minute${busiest ? `; ${busiest.name} is ${busyText(busiest.load)}` : ""}`,
  };
}

function restarts({ restarts: all, recent_restarts: recent }) {
  return recent > 2 ? `${plural(all, "restart")}, ${number(recent)} in 10 min` : plural(all, "restart");
}

function showAgain(node, { summary, script }) {
  node.hidden = !ENDED.has(summary.state) || script.length === 0;
  if (!node.hidden) replaceIfChanged(node, script, () => [h("h2", null, "Restart the job"),
    h("p", { class: "soft" }, "It resumes from its latest checkpoint. Add -s SNAPSHOT to start from an earlier one."),
    copyable(`turnback run -d ${script.map(quote).join(" ")}`, "the command", "is-block")]);
}

function programPairs({ summary, versions, script, max_parallelism: groups }) {
  const when = (ms) => (ms === null ? NOTHING : `${time(ms)}, ${ago(ms)}`);
  return [
    ...(script.length > 0 ? [["Script", script.join(" ")]] : []),
    ["Driver", processText(summary.driver)],
    ["Supervisor", summary.supervisor === null ? "none: the driver is not restarted if it dies" : processText(summary.supervisor)],
    summary.log === null ? ["Log", NOTHING] : ["Log", summary.log, (path) => copyablePath(path, "the path of the log")],
    ["Spark’s UI", summary.spark_ui ?? sparkText(summary), () => sparkLink(summary, summary.spark_ui) ?? sparkText(summary)],
    ...(groups === null ? [] : [["Key groups", number(groups)]]),
    ["First started", when(summary.created_ms)],
    ["Last update by the driver", when(summary.updated_ms)],
    ...Object.entries(versions),
  ];
}

function sparkText({ state }) {
  return ENDED.has(state) ? "only while the job runs" : "off; -D spark.ui.enabled=true turns it on";
}

function processText(process) {
  if (process === null) return NOTHING;
  const alive = { true: "alive", false: "dead" }[process.alive] ?? "unknown from here";
  return `process ${process.pid} on ${process.host} (${alive})`;
}
