// What differs between two snapshots of a job.

import { get } from "./api.js";
import { badge } from "./badge.js";
import { h, replace, text } from "./dom.js";
import { number, plural } from "./format.js";
import { empty, failure, skeleton } from "./message.js";
import * as router from "./router.js";
import { choice, describe, fromStateKey, loadSnapshots, stateKey } from "./snapshots.js";
import { table } from "./table.js";
import { valueNode } from "./value.js";

const PAGE = 50;
const SLOWLY_MS = 5000;
const PRESENCE = { both: "", before: " (only in the earlier)", after: " (only in the later)" };

/** The tab. */
export function diffTab(name, query) {
  const wanted = { from: query.get("from"), to: query.get("to"), state: stateKey(query.get("uid"), query.get("state")) };
  const from = choice("Earlier", () => open());
  const later = choice("Later", () => open());
  const state = choice("Operator and state", () => start());
  const counts = h("div", { class: "diff-counts", role: "status" });
  const result = h("div");
  const more = h("button", { class: "button", type: "button", hidden: true, onclick: () => load(true) }, "Load more");
  const none = h("div", { hidden: true }, empty("Nothing to compare yet.", "It takes two snapshots: checkpoints that are kept, or savepoints."));
  const body = h("section", { class: "card" }, h("h2", null, "Diff"),
    h("div", { class: "picker" }, from.node, later.node, state.node), counts, result, more);
  let opened = null;
  let page = null;
  let flight = new AbortController();

  function begin() {
    flight.abort();
    flight = new AbortController();
    return flight.signal;
  }

  async function open() {
    const signal = begin();
    opened = { from: from.value, to: later.value };
    replace(result, skeleton(4));
    replace(counts);
    more.hidden = true;
    try {
      const states = await get(["jobs", name, "diff"], opened, signal);
      if (signal.aborted) return;
      state.show(states.map((row) => [stateKey(row.uid, row.name), `${row.uid} · ${row.name}${PRESENCE[row.presence] ?? ` (${row.presence})`}`]), wanted.state);
      wanted.state = null;
      if (states.length === 0) replace(result, empty("Neither snapshot holds state."));
      else start();
    } catch (error) {
      if (!signal.aborted) replace(result, failure(error, again));
    }
  }

  function start() {
    page = null;
    load(false);
  }

  async function load(further) {
    const signal = begin();
    const [uid, which] = fromStateKey(state.value);
    router.note({ ...opened, uid, state: which });
    if (!further) replace(result, skeleton(6));
    more.disabled = true;
    try {
      const next = await get(["jobs", name, "diff", "state"], { ...opened, uid, state: which, after: further ? page.next : null, limit: PAGE }, signal);
      if (signal.aborted) return;
      page = further ? add(page, next) : next;
      showRows();
    } catch (error) {
      if (!signal.aborted) replace(result, failure(error, again));
    } finally {
      more.disabled = false;
    }
  }

  function showRows() {
    showCounts(counts, page);
    if (page.list === undefined) {
      page.list = diffTable(() => page.next === null
        ? empty("No difference.", "Every row of this state is the same in both snapshots.")
        : empty("No difference so far.", "There is more to compare."));
      replace(result, page.list.node);
    }
    page.list.show(page.rows.map((row, at) => ({ at, ...row })));
    more.hidden = page.next === null;
    text(more, `Load more (${plural(page.rows.length, "difference")} so far)`);
  }

  // A checkpoint may have been dropped: then the newest takes its place.
  async function again() {
    const signal = begin();
    replace(result, skeleton(4));
    try {
      const snapshots = await loadSnapshots(name, signal);
      if (signal.aborted) return;
      const there = (id) => (snapshots.some((row) => row.id === id) ? id : null);
      Object.assign(wanted, { from: there(opened.from), to: there(opened.to), state: state.value });
      opened = null;
      tab.show(snapshots);
    } catch (error) {
      if (!signal.aborted) replace(result, failure(error, again));
    }
  }

  const tab = {
    node: h("div", null, body, none),
    load: (signal) => loadSnapshots(name, signal),
    show: (snapshots) => {
      none.hidden = snapshots.length > 1;
      body.hidden = snapshots.length < 2;
      if (snapshots.length < 2) return;
      const chosen = opened ?? pick(snapshots, wanted);
      const options = snapshots.map((row) => [row.id, describe(row)]);
      for (const id of new Set(Object.values(chosen))) {
        if (!snapshots.some((row) => row.id === id)) options.push([id, `${id} (not in the list)`]);
      }
      from.show(options, chosen.from);
      later.show(options, chosen.to);
      if (opened === null) open();
    },
    interval: SLOWLY_MS,
    stop: () => flight.abort(),
  };
  return tab;
}

// The later one defaults to the newest, the earlier one to the one before it.
function pick(snapshots, wanted) {
  const ids = snapshots.map((row) => row.id);
  const to = wanted.to ?? (wanted.from === ids[0] ? ids[1] : ids[0]);
  const at = ids.indexOf(to);
  return { to, from: wanted.from ?? ids[at + 1] ?? ids.find((id) => id !== to) };
}

function add(page, next) {
  const sum = Object.fromEntries(["added", "removed", "changed", "same"].map((what) => [what, page[what] + next[what]]));
  return { ...next, ...sum, rows: [...page.rows, ...next.rows], list: page.list };
}

function showCounts(node, page) {
  const so = page.next === null ? "" : " so far";
  replace(node, [["added", "+"], ["removed", "−"], ["changed", "±"], ["same", "="]].map(([what, sign]) =>
    h("span", { class: `diff-count is-${what}` }, `${sign} ${number(page[what])} ${what}${so}`)));
}

function diffTable(nothing) {
  const side = (what) => (row) => (what === (row.change === "added" ? "before" : row.change === "removed" ? "after" : null) ? h("span", { class: "soft" }, "not there") : valueNode(row[what]));
  return table({
    label: "Differences", key: (row) => row.at, empty: nothing, rowClass: (row) => `diff is-${row.change}`,
    columns: [
      { label: "Change", sign: (row) => row.change, cell: (row) => badge(row.change) },
      { label: "Key", sign: (row) => row.at, cell: (row) => [valueNode(row.key), row.sub !== null && h("span", { class: "sub" }, " › ", valueNode(row.sub))] },
      { label: "Earlier", wide: true, sign: (row) => row.at, cell: side("before") },
      { label: "Later", wide: true, sign: (row) => row.at, cell: side("after") },
    ],
  });
}
