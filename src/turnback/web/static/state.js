// The state in a snapshot row by row, and what differs between two snapshots.

import { get } from "./api.js";
import { attribute, h, reconcile, replace, text } from "./dom.js";
import { bytes, duration, number, plural, shorten, time } from "./format.js";
import { badge, contentOr, copyButton, empty, failure, icon, skeleton } from "./parts.js";
import { query as queryOf, setQuery, to } from "./router.js";
import { table } from "./table.js";

const PAGE = 50;
const SLOWLY_MS = 5000;
const LOADED = "Sorts only the rows that are loaded";
const PRESENCE = { both: "", before: " (only in the earlier)", after: " (only in the later)" };

/** The tab of the state in one snapshot. */
export function stateTab(name, query) {
  const key = h("input", { type: "search", placeholder: "all keys", spellcheck: "false", autocomplete: "off" });
  key.value = query.get("key") ?? "";
  const facts = h("p", { class: "soft state-facts" });
  const compare = h("a", { class: "button" }, "Compare with …");
  let view = null;
  return stateBrowser(name, query, {
    title: "State",
    nothing: empty("No snapshot to browse.", "State can be browsed once the job has completed a checkpoint or taken a savepoint."),
    snapshots: { snapshot: "Snapshot" },
    defaults: (wanted, ids) => ({ snapshot: wanted.snapshot ?? ids[0] }),
    controls: [h("label", { class: "choice" }, h("span", null, "Key"), key),
      h("div", { class: "row" }, h("button", { class: "button is-primary", type: "submit" }, icon("search"), "Find"), compare)],
    notes: facts,
    loadStates: async ({ snapshot }, signal) => {
      view = await get(["jobs", name, "snapshots", snapshot], {}, signal);
      return view.states.map((row) => [row.uid, row.name, `${operatorName(view, row.uid)} · ${row.name} (${row.kind})`]);
    },
    noStates: ["No state in this snapshot.", "The operators of this job have no state."],
    path: ["state"],
    filter: () => ({ key: key.value }),
    onLoad: ({ snapshot, uid, state }) => {
      text(facts, describeState(view.states.find((row) => row.uid === uid && row.name === state)));
      attribute(compare, "href", to("jobs", name, "diff") + queryOf({ to: snapshot, uid, state }));
    },
    createTable: ({ columns }) => table({
      label: "Rows of the state", key: (row) => row.at,
      empty: () => (key.value
        ? empty("No row has this key.", "Keys are matched as they appear in the table, without quotes.")
        : empty("This state is empty in this snapshot.")),
      columns: columns.map((label, at) => ({ label, wide: at === columns.length - 1, sort: (row) => row[at], help: LOADED, depends: (row) => row.at, cell: (row) => valueNode(row[at]) })),
    }),
    noun: "row",
  });
}

function operatorName(view, uid) {
  const operator = view.operators.find((one) => one.uid === uid);
  return operator === undefined || operator.name === uid ? uid : `${operator.name} [${uid}]`;
}

function describeState(row) {
  if (row === undefined) return "";
  return [`key ${row.key_type}`, row.map_key_type && `map key ${row.map_key_type}`, `value ${row.value_type}`,
    row.ttl_ms !== null && `lives ${duration(row.ttl_ms)}`,
    row.rows !== null && `${number(row.rows)} rows`, row.bytes !== null && bytes(row.bytes)].filter(Boolean).join(" · ");
}

/** The tab of the differences between two snapshots. */
export function diffTab(name, query) {
  const counts = h("div", { class: "diff-counts row", role: "status" });
  return stateBrowser(name, query, {
    title: "Diff",
    nothing: empty("Nothing to compare yet.", "You need two snapshots: retained checkpoints or savepoints."),
    snapshots: { from: "Earlier", to: "Later" },
    // The later one defaults to the newest, the earlier one to the one before it.
    defaults: (wanted, ids) => {
      const later = wanted.to ?? (wanted.from === ids[0] ? ids[1] : ids[0]);
      return { to: later, from: wanted.from ?? ids[ids.indexOf(later) + 1] ?? ids.find((id) => id !== later) };
    },
    notes: counts,
    loadStates: async (opened, signal) => {
      replace(counts);
      const states = await get(["jobs", name, "diff"], opened, signal);
      return states.map((row) => [row.uid, row.name, `${row.uid} · ${row.name}${PRESENCE[row.presence] ?? ` (${row.presence})`}${row.note ? ` (${row.note})` : ""}`]);
    },
    noStates: ["Neither snapshot has state."],
    path: ["diff", "state"],
    onPage: (page, before) => {
      for (const what of ["added", "removed", "changed", "same"]) page[what] += before?.[what] ?? 0;
      showCounts(counts, page);
    },
    createTable: diffTable,
    noun: "difference",
  });
}

function showCounts(node, page) {
  const soFar = page.next === null ? "" : " so far";
  replace(node, [["added", "+"], ["removed", "−"], ["changed", "±"], ["same", "="]].map(([what, sign]) =>
    h("span", { class: `diff-count is-${what}` }, `${sign} ${number(page[what])} ${what}${soFar}`)));
}

function diffTable(first, current) {
  const side = (what, absent) => (row) => (row.change === absent ? h("span", { class: "soft" }, "not there") : valueNode(row[what]));
  const depends = (row) => row.at;
  return table({
    label: "Differences", key: depends, rowClass: (row) => `diff is-${row.change}`,
    empty: () => (current().next === null
      ? empty("No difference.", "Every row of this state is the same in both snapshots.")
      : empty("No difference so far.", "More rows remain to be compared.")),
    columns: [
      { label: "Change", sort: (row) => row.change, help: LOADED, depends: (row) => row.change, cell: (row) => badge(row.change) },
      { label: "Key", sort: (row) => row.key, help: LOADED, depends, cell: (row) => [valueNode(row.key), row.sub !== null && h("span", { class: "sub" }, " › ", valueNode(row.sub))] },
      { label: "Earlier", wide: true, sort: (row) => row.before, help: LOADED, depends, cell: side("before", "added") },
      { label: "Later", wide: true, sort: (row) => row.after, help: LOADED, depends, cell: side("after", "removed") },
    ],
  });
}

/**
 * A tab with snapshots to choose, one of their states, and its rows page by page.
 *
 * @param snapshots label of each choice by its parameter; there must be as many snapshots
 * @param defaults (wanted, ids) => the snapshots to open, by parameter
 * @param loadStates (opened, signal) => Promise of [[uid, name, words]]
 * @param path of the rows in the API, with `filter()` as further parameters
 * @param onLoad called with the parameters, onPage with each page and all before it
 * @param createTable (first, current) => a table; current() is all that was loaded
 */
function stateBrowser(name, query, { title, nothing, snapshots, defaults, controls = [], notes, loadStates, noStates, path, filter = () => ({}), onLoad, onPage, createTable, noun }) {
  const parameters = Object.keys(snapshots);
  const choices = parameters.map((parameter) => choice(snapshots[parameter], openStates));
  const stateChoice = choice("Operator and state", () => load(null));
  const result = h("div");
  const more = h("button", { class: "button", type: "button", hidden: true, onclick: () => load(page) }, "Load more");
  const form = h("form", { class: "picker", onsubmit: (event) => { event.preventDefault(); load(null); } }, choices.map((one) => one.node), stateChoice.node, controls);
  const content = contentOr(h("section", { class: "card" }, h("h2", null, title), form, notes, result, more), nothing);
  let wanted = Object.fromEntries(parameters.map((parameter) => [parameter, query.get(parameter)]));
  let wantedState = JSON.stringify([query.get("uid"), query.get("state")]);
  let opened = null;
  let page = null;
  let request = new AbortController();

  // Loads in place of what is under way; a failure is shown where the result would be.
  async function loading(action) {
    request.abort();
    request = new AbortController();
    const { signal } = request;
    try {
      await action(signal);
    } catch (error) {
      if (!signal.aborted) replace(result, failure(error, reload));
    }
  }

  function openStates() {
    opened = Object.fromEntries(parameters.map((parameter, at) => [parameter, choices[at].value]));
    replace(result, skeleton(4));
    more.hidden = true;
    return loading(async (signal) => {
      const states = await loadStates(opened, signal);
      if (signal.aborted) return;
      stateChoice.show(states.map(([uid, state, words]) => [JSON.stringify([uid, state]), words]), wantedState);
      wantedState = null;
      load(null);
    });
  }

  function load(before) {
    if (opened === null) return null;
    if (stateChoice.value === "") {
      replace(notes);
      return replace(result, empty(...noStates));
    }
    const [uid, state] = JSON.parse(stateChoice.value);
    const given = { ...opened, uid, state, ...filter() };
    onLoad?.(given);
    setQuery(given);
    if (before === null) replace(result, skeleton(6));
    more.disabled = true;
    return loading(async (signal) => {
      const next = await get(["jobs", name, ...path], { ...given, after: before?.next, limit: PAGE }, signal);
      if (signal.aborted) return;
      onPage?.(next, before);
      page = { ...next, rows: [...(before?.rows ?? []), ...next.rows], table: before?.table ?? createTable(next, () => page) };
      if (before === null) replace(result, page.table.node);
      page.table.show(page.rows.map((row, at) => ({ ...row, at })));
      more.hidden = page.next === null;
      text(more, `Load more (${plural(page.rows.length, noun)} so far)`);
    }).finally(() => {
      more.disabled = false;
    });
  }

  // A checkpoint may have been dropped: then the newest takes its place.
  function reload() {
    replace(result, skeleton(4));
    return loading(async (signal) => {
      const rows = await loadSnapshots(signal);
      if (signal.aborted) return;
      wanted = Object.fromEntries(parameters.map((parameter) => [parameter, rows.some((row) => row.id === opened[parameter]) ? opened[parameter] : null]));
      wantedState = stateChoice.value;
      opened = null;
      show(rows);
    });
  }

  function loadSnapshots(signal) {
    return get(["jobs", name, "snapshots"], {}, signal);
  }

  function show(rows) {
    if (!content.show(rows.length >= parameters.length)) return;
    const chosen = opened ?? defaults(wanted, rows.map((row) => row.id));
    const options = rows.map((row) => [row.id, describe(row)]);
    // One that retention has removed meanwhile stays chosen until another is picked.
    for (const id of new Set(Object.values(chosen))) {
      if (!rows.some((row) => row.id === id)) options.push([id, `${id} (not in the list)`]);
    }
    parameters.forEach((parameter, at) => choices[at].show(options, chosen[parameter]));
    if (opened === null) openStates();
  }

  return { node: content.node, load: loadSnapshots, show, interval: SLOWLY_MS, stop: () => request.abort() };
}

// "chk-7 · 13:04:05"
function describe(snapshot) {
  const name = snapshot.label ? `${snapshot.label} (${snapshot.id})` : snapshot.id;
  return `${snapshot.kind === "savepoint" ? "savepoint " : ""}${name} · ${time(snapshot.created_ms)}`;
}

// A labelled choice whose options change under the user without losing what is chosen.
function choice(label, onchange) {
  const select = h("select", { onchange });
  return {
    node: h("label", { class: "choice" }, h("span", null, label), select),
    get value() {
      return select.value;
    },
    /** Options are [value, words]; `wanted` is chosen if it is among them or nothing was chosen. */
    show(options, wanted) {
      const before = select.value;
      reconcile(select, options, ([value]) => value, ([value]) => h("option", { value }), (option, [, words]) => text(option, words));
      const values = options.map(([value]) => value);
      const chosen = [wanted, before, values[0]].find((value) => values.includes(value));
      if (chosen !== undefined && select.value !== chosen) select.value = chosen;
      attribute(select, "disabled", options.length === 0);
    },
  };
}

const SHORT = 96;

// A value out of state: short ones as they are, long ones to be opened. Integers that a double would round come from the server as texts.
function valueNode(value) {
  if (value === null || value === undefined) return h("code", { class: "value is-null" }, "null");
  const whole = JSON.stringify(value, null, 2);
  const line = whole.replace(/([[{])\n\s*/g, "$1").replace(/\n\s*([\]}])/g, "$1").replace(/\n\s*/g, " ");
  const look = { string: "is-string", object: "is-object" }[typeof value] ?? "is-number-like";
  if (line.length <= SHORT) return h("code", { class: `value ${look}` }, line);
  const body = h("pre");
  // The long text is put on the page only when somebody looks at it.
  return h("details", { class: "value-more", ontoggle: () => text(body, whole) },
    h("summary", null, h("code", { class: `value ${look}` }, shorten(line, SHORT))),
    h("div", { class: "value-whole" }, body, copyButton(whole, "the value")));
}
