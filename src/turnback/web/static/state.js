// The state in a snapshot, row by row.

import { to } from "./address.js";
import { get } from "./api.js";
import { h, replace, text } from "./dom.js";
import { bytes, number, plural } from "./format.js";
import { icon } from "./icons.js";
import { empty, failure, skeleton } from "./message.js";
import * as router from "./router.js";
import { choice, describe, fromStateKey, loadSnapshots, stateKey } from "./snapshots.js";
import { table } from "./table.js";
import { valueNode } from "./value.js";

const PAGE = 50;
const SLOWLY_MS = 5000;

/** The tab. */
export function stateTab(name, query) {
  const wanted = { snapshot: query.get("snapshot"), state: stateKey(query.get("uid"), query.get("state")) };
  const snapshot = choice("Snapshot", () => open());
  const state = choice("Operator and state", () => start());
  const key = h("input", { type: "search", placeholder: "all keys", spellcheck: "false", autocomplete: "off" });
  key.value = query.get("key") ?? "";
  const facts = h("p", { class: "soft state-facts" });
  const compare = h("a", { class: "button" }, "Compare with …");
  const result = h("div");
  const more = h("button", { class: "button", type: "button", hidden: true, onclick: () => load(true) }, "Load more");
  const none = h("div", { hidden: true }, empty("No snapshot to look into.", "State can be browsed once the job has completed a checkpoint or taken a savepoint."));
  const form = h("form", { class: "picker", onsubmit: (event) => { event.preventDefault(); start(); } },
    snapshot.node, state.node, h("label", { class: "choice" }, h("span", null, "Key"), key),
    h("div", { class: "picker-end" }, h("button", { class: "button is-primary", type: "submit" }, icon("search"), "Look"), compare));
  const body = h("section", { class: "card" }, h("h2", null, "State"), form, facts, result, more);
  let view = null;
  let opened = null;
  let page = null;
  let flight = new AbortController();

  // Another snapshot: which states it holds has to be asked.
  async function open() {
    flight.abort();
    flight = new AbortController();
    const { signal } = flight;
    opened = snapshot.value;
    replace(result, skeleton(4));
    more.hidden = true;
    try {
      view = await get(["jobs", name, "snapshots", opened], {}, signal);
    } catch (error) {
      if (!signal.aborted) replace(result, failure(error, again));
      return;
    }
    if (signal.aborted) return;
    state.show(view.states.map((row) => [stateKey(row.uid, row.name), `${operatorName(view, row.uid)} · ${row.name} (${row.kind})`]), wanted.state);
    wanted.state = null;
    start();
  }

  function start() {
    page = null;
    load(false);
  }

  async function load(further) {
    if (view === null) return;
    if (view.states.length === 0) {
      text(facts, "");
      replace(result, empty("No state in this snapshot.", "The operators of this job keep none."));
      return;
    }
    flight.abort();
    flight = new AbortController();
    const { signal } = flight;
    const [uid, which] = fromStateKey(state.value);
    describeState(facts, view, uid, which);
    router.note({ snapshot: opened, uid, state: which, key: key.value });
    compare.href = `${to("jobs", name, "diff")}?${new URLSearchParams({ to: opened, uid, state: which })}`;
    if (!further) replace(result, skeleton(6));
    more.disabled = true;
    try {
      const next = await get(["jobs", name, "state"], { snapshot: opened, uid, state: which, key: key.value, after: further ? page.next : null, limit: PAGE }, signal);
      if (signal.aborted) return;
      page = further ? { ...next, rows: [...page.rows, ...next.rows], list: page.list } : next;
      showRows();
    } catch (error) {
      if (!signal.aborted) replace(result, failure(error, again));
    } finally {
      more.disabled = false;
    }
  }

  function showRows() {
    if (page.list === undefined) {
      page.list = rowTable(page.columns, () => (key.value
        ? empty("No row has this key.", "Keys are matched as they are written in the table, quotes left out.")
        : empty("This state is empty in this snapshot.")));
      replace(result, page.list.node);
    }
    page.list.show(page.rows.map((cells, at) => ({ at, cells })));
    more.hidden = page.next === null;
    text(more, `Load more (${plural(page.rows.length, "row")} so far)`);
  }

  // A checkpoint may have been dropped: then the newest takes its place.
  async function again() {
    flight.abort();
    flight = new AbortController();
    const { signal } = flight;
    replace(result, skeleton(4));
    try {
      const snapshots = await loadSnapshots(name, signal);
      if (signal.aborted) return;
      wanted.snapshot = snapshots.some((row) => row.id === opened) ? opened : null;
      wanted.state = state.value;
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
      none.hidden = snapshots.length > 0;
      body.hidden = snapshots.length === 0;
      if (snapshots.length === 0) return;
      const options = snapshots.map((row) => [row.id, describe(row)]);
      // One that retention has removed meanwhile stays chosen until another is picked.
      const chosen = opened ?? wanted.snapshot;
      if (chosen && !snapshots.some((row) => row.id === chosen)) options.push([chosen, `${chosen} (not in the list)`]);
      snapshot.show(options, chosen);
      if (opened === null) open();
    },
    interval: SLOWLY_MS,
    stop: () => flight.abort(),
  };
  return tab;
}

function operatorName(view, uid) {
  const operator = view.operators.find((one) => one.uid === uid);
  return operator === undefined || operator.name === uid ? uid : `${operator.name} [${uid}]`;
}

function describeState(node, view, uid, name) {
  const row = view.states.find((one) => one.uid === uid && one.name === name);
  if (row === undefined) return;
  const parts = [`key ${row.key_type}`, row.map_key_type && `map key ${row.map_key_type}`, `value ${row.value_type}`,
    row.rows !== null && `${number(row.rows)} rows`, row.bytes !== null && bytes(row.bytes)];
  text(node, parts.filter(Boolean).join(" · "));
}

function rowTable(columns, nothing) {
  return table({
    label: "Rows of the state", key: (row) => row.at, empty: nothing,
    columns: columns.map((column, at) => ({ label: column, wide: at === columns.length - 1, sign: (row) => row.at, cell: (row) => valueNode(row.cells[at]) })),
  });
}
