// The checkpoints of a job: how many, how long, how big, one by one.

import { get } from "./api.js";
import { badge } from "./badge.js";
import { binaryTicks, chart, decimalTicks } from "./chart.js";
import { copyButton } from "./copy.js";
import { h, reconcile, text } from "./dom.js";
import { ago, bytes, duration, exactBytes, exactDuration, exactTime, NOTHING, number, time } from "./format.js";
import { empty } from "./message.js";
import { table } from "./table.js";

const idOf = (row) => (row.number === null ? `epoch ${row.epoch}` : `chk-${row.number}`);
const rest = (row) => Math.max((row.duration_ms ?? 0) - (row.sync_ms ?? 0) - (row.async_ms ?? 0), 0);

const COLUMNS = [
  { label: "Checkpoint", tight: true, cell: idOf, title: (row) => `attempt ${row.attempt}, epoch ${row.epoch}` },
  { label: "Status", wide: true, sign: (row) => [row.status, row.reason], cell: (row) => [badge(row.status), row.reason && h("p", { class: "why is-bad", title: row.reason }, row.reason)] },
  { label: "Triggered", tight: true, cell: (row) => time(row.triggered_ms), title: (row) => `${ago(row.triggered_ms)}, ${exactTime(row.triggered_ms)}` },
  { label: "Trigger", tight: true, cell: (row) => row.trigger },
  { label: "Duration", numeric: true, cell: (row) => duration(row.duration_ms), title: (row) => exactDuration(row.duration_ms), help: "From its trigger until the sinks had committed" },
  { label: "Sync", numeric: true, cell: (row) => duration(row.sync_ms), title: (row) => exactDuration(row.sync_ms), help: "How long the slowest task took to snapshot its state" },
  { label: "Async", numeric: true, cell: (row) => duration(row.async_ms), title: (row) => exactDuration(row.async_ms), help: "Beside the stream: manifest and commits" },
  { label: "Delta", numeric: true, cell: (row) => bytes(row.delta_bytes), title: (row) => exactBytes(row.delta_bytes), help: "New files" },
  { label: "Full", numeric: true, cell: (row) => bytes(row.full_bytes), title: (row) => exactBytes(row.full_bytes), help: "All files it needs" },
  { label: "Acknowledged", numeric: true, cell: (row) => (row.tasks === null ? NOTHING : `${number(row.acknowledged ?? 0)}/${number(row.tasks)}`), help: "Tasks" },
  { label: "Path", tight: true, sign: (row) => row.path, cell: pathCell },
];

function pathCell(row) {
  if (row.path === null) return h("span", { class: "soft", title: "Only the newest are kept" }, row.status === "COMPLETED" ? "not kept" : NOTHING);
  return h("span", { class: "copyable" }, h("code", { title: row.path }, row.path.split("/").at(-1)), copyButton(row.path, "the path"));
}

const SUMMARY = [
  ["Duration", "duration_ms", duration, exactDuration],
  ["Sync", "sync_ms", duration, exactDuration],
  ["Async", "async_ms", duration, exactDuration],
  ["Delta size", "delta_bytes", bytes, exactBytes],
  ["Full size", "full_bytes", bytes, exactBytes],
];
const POINTS = ["min", "p50", "p90", "p95", "p99", "max", "mean"];

/** The tab. */
export function checkpointsTab(name) {
  const counts = h("div", { class: "tiles" });
  const summary = table({
    label: "Summary of the completed checkpoints", key: ([label]) => label,
    columns: [
      { label: "Of the completed", cell: ([label]) => label },
      ...POINTS.map((point) => ({
        label: point, numeric: true,
        cell: ([, values, format]) => format(values?.[point] ?? null),
        title: ([, values, , exact]) => exact(values?.[point] ?? null),
      })),
    ],
  });
  const durations = durationChart();
  const sizes = sizeChart();
  const history = table({
    label: "History of checkpoints", columns: COLUMNS,
    key: (row) => `${row.attempt}/${row.number ?? `e${row.epoch}`}/${row.triggered_ms}`,
    rowClass: (row) => (row.status === "FAILED" ? "has-failed" : ""),
  });
  const content = h("div", { class: "stack" },
    counts,
    h("div", { class: "columns" },
      h("section", { class: "card" }, h("h2", null, "Duration"), legend([["sync", "look-sync"], ["async", "look-async"], ["waiting", "look-rest"], ["failed", "look-failed"]]), durations.node),
      h("section", { class: "card" }, h("h2", null, "Size"), legend([["full", "look-full"], ["delta", "look-delta"]]), sizes.node)),
    h("section", { class: "card" }, h("h2", null, "Summary"), summary.node),
    h("section", { class: "card" }, h("h2", null, "History"), history.node));
  const none = h("div", { hidden: true }, empty("No checkpoint yet.", "They are taken while the job runs, as often as execution.checkpointing.interval says."));

  return {
    node: h("div", null, content, none),
    load: (signal) => get(["jobs", name, "checkpoints"], {}, signal),
    show: (data) => {
      const some = data.rows.length > 0;
      content.hidden = !some;
      none.hidden = some;
      if (!some) return;
      showCounts(counts, data);
      summary.show(SUMMARY.map(([label, key, format, exact]) => [label, data[key], format, exact]));
      // One under way has no numbers yet, nor may the very newest.
      const oldestFirst = [...data.rows].reverse().filter((row) => row.duration_ms !== null);
      durations.show(oldestFirst);
      sizes.show(oldestFirst);
      history.show(data.rows);
    },
    stop: () => {
      durations.stop();
      sizes.stop();
    },
  };
}

function showCounts(node, data) {
  const all = [["Completed", data.completed], ["Failed", data.failed, data.failed > 0], ["In progress", data.in_progress], ["Restored", data.restored]];
  reconcile(node, all, ([label]) => label,
    ([label]) => h("div", { class: "tile" }, h("span", { class: "tile-label" }, label), h("span", { class: "tile-value" })),
    (tile, [, count, alarm]) => {
      text(tile.lastChild, number(count));
      tile.classList.toggle("is-alarm", Boolean(alarm));
    });
}

function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([word, look]) => h("li", null, h("span", { class: `swatch ${look}` }), word)));
}

const caption = (row) => `${idOf(row)} · ${time(row.triggered_ms)}`;
const failed = (row) => row.status === "FAILED";
const failedLine = (row) => (failed(row) ? [["failed", row.reason ?? "", "look-failed"]] : []);

function durationChart() {
  const bars = [["sync", (row) => row.sync_ms, "look-sync"], ["async", (row) => row.async_ms, "look-async"], ["waiting", rest, "look-rest"]];
  return chart({
    label: "Duration of the checkpoints", caption, failed,
    panels: [{ height: 190, format: duration, ticks: decimalTicks, series: bars.map(([word, value, look]) => ({ name: word, kind: "bar", look, value })) }],
    lines: (row) => [
      ["duration", duration(row.duration_ms)],
      ...bars.map(([word, value, look]) => [word, duration(value(row)), look]),
      ...failedLine(row),
    ],
  });
}

function sizeChart() {
  return chart({
    label: "Size of the checkpoints", caption, failed,
    panels: [
      { height: 92, format: bytes, ticks: binaryTicks, series: [{ name: "full", kind: "line", look: "look-full", value: (row) => row.full_bytes }] },
      { height: 80, format: bytes, ticks: binaryTicks, series: [{ name: "delta", kind: "bar", look: "look-delta", value: (row) => row.delta_bytes }] },
    ],
    lines: (row) => [["full", bytes(row.full_bytes), "look-full"], ["delta", bytes(row.delta_bytes), "look-delta"], ...failedLine(row)],
  });
}
