// Savepoints, of one job or of all.

import { get } from "./api.js";
import { deleteColumn } from "./deletion.js";
import { h, text } from "./dom.js";
import { ago, bytes, exactBytes, exactTime, now, plural, quote, time } from "./format.js";
import { refresh } from "./live.js";
import { copyableCommand, copyablePath, empty, filterField } from "./parts.js";
import { to } from "./router.js";
import { table } from "./table.js";

const SLOWLY_MS = 4000;

const SAVEPOINT = { label: "Savepoint", wide: true, sort: (row) => row.label ?? row.id, depends: (row) => [row.label, row.note, row.id, row.exists, row.scheduled, row.script_changed, row.replay, replayState(row)], cell: nameCell };
const JOB = { label: "Job", wide: true, sort: (row) => row.job, depends: (row) => row.job, cell: (row) => h("a", { href: to("jobs", row.job) }, row.job) };
const REST = [
  { label: "Taken", tight: true, newest: true, sort: (row) => row.created_ms, cell: (row) => ago(row.created_ms), title: (row) => exactTime(row.created_ms) },
  { label: "From", tight: true, newest: true, sort: (row) => row.checkpoint, cell: (row) => `chk-${row.checkpoint}`, title: (row) => `epoch ${row.epoch}` },
  { label: "Size", numeric: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes), title: (row) => exactBytes(row.bytes) },
  { label: "Path", whole: true, sort: (row) => row.path, depends: (row) => [row.path, row.exists], cell: (row) => copyablePath(row.path, "the path", row.exists === false ? "is-gone is-fit" : "is-fit") },
  { label: "Restore with", whole: true, depends: (row) => [row.restore, row.exists], cell: (row) => (row.exists === false ? h("span", { class: "soft" }, "cannot be restored") : copyableCommand(row.restore, "the restore command", "is-fit")) },
  deleteColumn(refresh),
];

const SOON_MS = 7 * 86_400_000;

// Whether the sources still have all that comes after it: "gone", "overdue", "soon", or nothing to say.
function replayState({ replay }) {
  if (replay === null) return null;
  if (replay.gone) return "gone";
  if (replay.until_ms === null || replay.until_ms > now() + SOON_MS) return null;
  return replay.until_ms < now() ? "overdue" : "soon";
}

function replayChip(row) {
  const as_of = () => `, according to a check by the driver ${ago(row.replay.as_of_ms)}`;
  switch (replayState(row)) {
    case "gone": return h("span", { class: "chip is-bad", title: `Its sources have deleted records that come after it${as_of()}` }, "no longer replayable");
    case "overdue": return h("span", { class: "chip is-warn", title: `Its sources may delete records that come after it at any moment${as_of()}` }, "may not be replayable");
    case "soon": return h("span", { class: "chip is-warn", title: `After that, its sources begin to delete records that come after it${as_of()}` }, `replayable until about ${time(row.replay.until_ms)}`);
    default: return null;
  }
}

function nameCell(row) {
  return [
    h("span", { class: row.exists === false ? "savepoint-name is-gone" : "savepoint-name" }, row.label ?? row.id),
    row.scheduled && h("span", { class: "chip", title: "Taken by the schedule" }, "scheduled"),
    row.exists === false && h("span", { class: "chip is-bad", title: "Its directory no longer exists" }, "gone"),
    row.exists === null && h("span", { class: "chip is-warn", title: "Its storage does not respond" }, "not reachable"),
    row.exists !== false && replayChip(row),
    row.script_changed && h("span", { class: "chip is-warn", title: "The script has changed since the savepoint was taken; turnback inspect --script prints the old one" }, "script changed"),
    row.note && h("p", { class: "why", title: row.note }, row.note),
  ];
}

function list(columns, nothing) {
  return table({ label: "Savepoints", columns, key: (row) => `${row.job}/${row.id}`, empty: nothing, rowClass: (row) => (row.exists === false ? "is-missing" : "") });
}

/** The tab of a job. */
export function savepointsTab(name) {
  const rows = list([SAVEPOINT, ...REST], () => empty("No savepoint yet.", "Take one with the button above, or on a terminal:", `turnback savepoint ${quote(name)}`));
  return {
    node: h("section", { class: "card" }, h("h2", null, "Savepoints"), rows.node),
    load: (signal) => get(["jobs", name, "savepoints"], {}, signal),
    show: (data) => rows.show(data),
    interval: SLOWLY_MS,
  };
}

/** The page of all savepoints. */
export function allSavepointsView() {
  let savepoints = [];
  const rows = list([SAVEPOINT, JOB, ...REST], () => (savepoints.length > 0
    ? empty("No savepoint matches.", "Clear the filter to see all of them.")
    : empty("No savepoint yet.", "A savepoint keeps the state of a job for as long as you like. Take one of a running job:", "turnback savepoint JOB")));
  const count = h("span", { class: "soft" });
  const filter = filterField("Filter by label, job, note or path", "Filter savepoints", draw);

  function draw() {
    const matching = savepoints.filter((row) => filter.matches(row.label, row.id, row.job, row.note, row.path));
    text(count, plural(matching.length, "savepoint"));
    rows.show(matching);
  }

  return {
    title: "Savepoints",
    node: h("section", { class: "page" },
      h("div", { class: "page-head" }, h("h1", null, "Savepoints"), count),
      h("div", { class: "toolbar" }, filter.node),
      rows.node),
    load: (signal) => get(["savepoints"], {}, signal),
    show: (data) => {
      savepoints = data;
      draw();
    },
    interval: SLOWLY_MS,
  };
}
