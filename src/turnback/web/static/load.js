// How busy operators are, how unevenly work is divided among their tasks, and who holds whom back.

import { h, replaceIfChanged } from "./dom.js";
import { bytes, compact, exactBytes, number } from "./format.js";
import { table } from "./table.js";

const UNEVEN = 2;
const BUSY = 0.8;

/** 0.623 as "62 %"; what is hardly anything is "< 1 %". */
export function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;
}

/** Whether its tasks have much more or much less to do than each other. */
export function isUneven(load) {
  return load !== null && load.skew !== null && load.skew >= UNEVEN;
}

/** Whether its busiest task hardly rests. */
export function isOverloaded(load) {
  return load !== null && load.busiest >= BUSY;
}

/** "4.1 ×", how many times the mean the fullest task has. */
export function skewValue({ skew }) {
  return `${skew.toFixed(1)} ×`;
}

/** "task 3 has 4.1 times the mean". */
export function skewText(load) {
  if (load.tasks < 2) return "only one task";
  if (load.skew === null) return "too few recent records to tell";
  const words = `task ${load.skewed} has ${load.skew.toFixed(1)} times the mean`;
  return isUneven(load) ? words : `even: ${words}`;
}

/** "62 % of the last minute in its busiest task, 40 % on average". */
export function busyText(load) {
  if (load.tasks < 2) return `${percent(load.busiest)} of the last minute`;
  return `${percent(load.busiest)} of the last minute in its busiest task, ${percent(load.busy)} on average of ${number(load.tasks)}`;
}

/** What holds a source back: the busiest of the operators that read from it; null if all rest. */
export function heldBack({ bottleneck }, operators) {
  const other = operators.find(({ uid }) => uid === bottleneck);
  return other?.load ? `${other.name}: its busiest task is busy ${percent(other.load.busiest)} of the time` : null;
}

/** The tasks of an operator, one by one. */
export function taskTable() {
  const note = h("p", { class: "hint" });
  const rows = table({
    label: "Tasks", key: (row) => row.task, rowClass: (row) => (row.isFullest ? "is-fullest" : ""),
    columns: [
      { label: "Task", sort: (row) => row.task, cell: (row) => number(row.task) },
      { label: "Busy", depends: (row) => row.busy, cell: busyCell, sort: (row) => row.busy, help: "Share of the last minute in which it was busy" },
      { label: "Records/s", numeric: true, sort: (row) => row.per_s, cell: (row) => compact(row.per_s), help: "Read in the last minute" },
      { label: "Records in", numeric: true, sort: (row) => row.records_in, cell: (row) => compact(row.records_in), title: (row) => number(row.records_in), help: "Since the attempt began" },
      { label: "Records out", numeric: true, sort: (row) => row.records_out, cell: (row) => compact(row.records_out), title: (row) => number(row.records_out) },
      { label: "State", numeric: true, sort: (row) => row.state_bytes ?? 0, cell: (row) => bytes(row.state_bytes), title: (row) => exactBytes(row.state_bytes) },
    ],
  });
  const node = h("div", { class: "tasks", hidden: true, "aria-live": "off" }, h("h4", null, "Tasks"), rows.node, note);
  return {
    node,
    show: (load) => {
      node.hidden = load === null;
      if (load === null) return;
      const fullest = isUneven(load) ? load.skewed : null;
      rows.show(load.by_task.map((task) => ({ ...task, isFullest: task.task === fullest })));
      replaceIfChanged(note, [load.tasks, load.by_task.length], () => (load.by_task.length < load.tasks ? [`The busiest ${load.by_task.length} of ${load.tasks}.`] : []));
    },
  };
}

function busyCell({ busy }) {
  const bar = h("span", { class: busy >= BUSY ? "busy-bar is-alarm" : "busy-bar" }, h("span"));
  bar.firstChild.style.width = `${busy * 100}%`;
  return h("span", { class: "busy-cell" }, bar, percent(busy));
}
