// The checkpoints of a job: how many, how long, how big, one by one.

import { get } from "./api.js";
import { BINARY, chart } from "./chart.js";
import { h } from "./dom.js";
import { ago, bytes, duration, exactBytes, exactDuration, exactTime, NOTHING, number, time } from "./format.js";
import { badge, contentOr, copyButton, empty, showTiles } from "./parts.js";
import { table } from "./table.js";

const idOf = (row) => (row.number === null ? `epoch ${row.epoch}` : `chk-${row.number}`);
const rest = (row) => Math.max((row.duration_ms ?? 0) - (row.sync_ms ?? 0) - (row.async_ms ?? 0), 0);

const COLUMNS = [
  { label: "Checkpoint", tight: true, newest: true, sort: (row) => row.number, cell: idOf, title: (row) => `attempt ${row.attempt}, epoch ${row.epoch}` },
  { label: "Status", wide: true, sort: (row) => row.status, depends: (row) => [row.status, row.reason], cell: (row) => [badge(row.status), row.reason && h("p", { class: "why is-bad", title: row.reason }, row.reason)] },
  { label: "Triggered", tight: true, newest: true, sort: (row) => row.triggered_ms, cell: (row) => time(row.triggered_ms), title: (row) => `${ago(row.triggered_ms)}, ${exactTime(row.triggered_ms)}` },
  { label: "Trigger", tight: true, sort: (row) => row.trigger, cell: (row) => row.trigger },
  { label: "Duration", numeric: true, sort: (row) => row.duration_ms, cell: (row) => duration(row.duration_ms), title: (row) => exactDuration(row.duration_ms), help: "From its trigger until the sinks committed" },
  { label: "Sync", numeric: true, sort: (row) => row.sync_ms, cell: (row) => duration(row.sync_ms), title: (row) => exactDuration(row.sync_ms), help: "How long the slowest task took to snapshot its state" },
  { label: "Async", numeric: true, sort: (row) => row.async_ms, cell: (row) => duration(row.async_ms), title: (row) => exactDuration(row.async_ms), help: "In parallel with the stream: manifest and commits" },
  { label: "Delta", numeric: true, sort: (row) => row.delta_bytes, cell: (row) => bytes(row.delta_bytes), title: (row) => exactBytes(row.delta_bytes), help: "New files" },
  { label: "Full", numeric: true, sort: (row) => row.full_bytes, cell: (row) => bytes(row.full_bytes), title: (row) => exactBytes(row.full_bytes), help: "All files that it needs" },
  { label: "Acknowledged", numeric: true, sort: (row) => row.acknowledged, cell: (row) => (row.tasks === null ? NOTHING : `${number(row.acknowledged ?? 0)}/${number(row.tasks)}`), help: "Tasks" },
  { label: "Path", tight: true, sort: (row) => row.path, depends: (row) => row.path, cell: pathCell },
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
const SHOWN = 1000; // of a long history; the numbers above are those of all
const POINTS = ["min", "p50", "p90", "p95", "p99", "max", "mean"];

/** The tab. */
export function checkpointsTab(name) {
  const counts = h("div", { class: "tiles" });
  const summary = table({
    label: "Summary of the completed checkpoints", key: ([label]) => label, dense: true,
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
  const card = (title, node) => h("section", { class: "card" }, h("h2", null, title), node);
  const content = contentOr(
    h("div", { class: "stack" }, counts,
      h("div", { class: "columns" }, card("Duration", durations.node), card("Size", sizes.node)),
      card("Summary", summary.node), card("History", history.node)),
    empty("No checkpoint yet.", "A running job takes a checkpoint every execution.checkpointing.interval."));

  return {
    node: content.node,
    load: (signal) => get(["jobs", name, "checkpoints"], { limit: SHOWN }, signal),
    show: (data) => {
      if (!content.show(data.rows.length > 0)) return;
      showTiles(counts, [
        { label: "Completed", value: number(data.completed), more: data.rows.length < data.completed + data.failed ? `the newest ${number(data.rows.length)} are listed below` : "" },
        { label: "Failed", value: number(data.failed), alarm: data.failed > 0 },
        { label: "In progress", value: number(data.in_progress) },
        { label: "Restored", value: number(data.restored) },
      ]);
      summary.show(SUMMARY.map(([label, key, format, exact]) => [label, data[key], format, exact]));
      // One under way has no numbers yet, nor may the very newest.
      const oldestFirst = [...data.rows].reverse().filter((row) => row.duration_ms !== null);
      durations.show(oldestFirst);
      sizes.show(oldestFirst);
      history.show(data.rows);
    },
    stop: () => [durations, sizes].forEach((each) => each.stop()),
  };
}

const SHARED = {
  title: (row) => `${idOf(row)} · ${time(row.triggered_ms)}`,
  failure: (row) => (row.status === "FAILED" ? row.reason ?? "" : null),
};

function durationChart() {
  const series = [
    { name: "sync", kind: "bar", look: "look-sync", value: (row) => row.sync_ms },
    { name: "async", kind: "bar", look: "look-async", value: (row) => row.async_ms },
    { name: "waiting", kind: "bar", look: "look-rest", value: rest },
  ];
  return chart({ ...SHARED, label: "Duration of the checkpoints", panels: [{ height: 205, format: duration, total: (row) => row.duration_ms, series }] });
}

function sizeChart() {
  const full = { name: "full", kind: "line", look: "look-full", value: (row) => row.full_bytes };
  const delta = { name: "delta", kind: "bar", look: "look-delta", value: (row) => row.delta_bytes };
  const panel = (height, series) => ({ height, format: bytes, steps: BINARY, series: [series] });
  return chart({ ...SHARED, label: "Size of the checkpoints", panels: [panel(108, full), panel(97, delta)] });
}
