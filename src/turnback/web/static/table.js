// Tables that are updated cell by cell, so that focus, selection and scrolling survive.

import { attribute, h, reconcile, replace, replaceIfChanged, text } from "./dom.js";
import { number } from "./format.js";
import { sorting } from "./sorting.js";

// Cards on a phone take more room than rows.
const AT_FIRST = matchMedia("(max-width: 700px)").matches ? 20 : 100;

/**
 * A table.
 *
 * Columns are `{label, cell(row), sort?(row), title?(row), depends?(row), numeric?, wide?, tight?, whole?, minor?, help?, spoken?}`:
 * `cell` returns a text or a node, `sort` a number or text to sort by; on a phone `whole` ones take a line, `minor` ones are left out. A node is built
 * anew when what `depends` returns changes. `spoken` names a column without a label. A `dense` table has short values, of which
 * a phone shows four in a line.
 */
export function table({ label, columns, key, rowClass, empty, dense = false }) {
  const body = h("tbody");
  const order = sorting(label, columns, () => show(rows));
  const head = h("thead", null, h("tr", null, columns.map((column) => h("th", { scope: "col", class: classOf(column), title: column.help },
    order.button(column) ?? (column.label || h("span", { class: "offscreen" }, column.spoken))))));
  const box = h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: "table" }, h("caption", { class: "offscreen" }, label), head, body));
  const more = h("button", { class: "button", type: "button", hidden: true, onclick: () => show(rows, 5 * AT_FIRST) });
  const nothing = h("div", { hidden: true });
  const node = h("div", { class: dense ? "table-whole is-dense" : "table-whole" }, order.choice, box, more, nothing);
  let rows = [];
  let most = AT_FIRST;

  function show(given, further = 0) {
    rows = given;
    most += further;
    const none = rows.length === 0;
    box.hidden = none;
    nothing.hidden = !none;
    if (order.choice !== null) order.choice.hidden = rows.length < 2;
    if (none && empty) replace(nothing, empty());
    reconcile(body, order.sorted(rows).slice(0, most), key, createRow, (tr, row) => {
      attribute(tr, "class", rowClass?.(row) || null);
      columns.forEach((column, at) => updateCell(tr.children[at], column, row));
    });
    more.hidden = rows.length <= most;
    text(more, `Show more (${number(rows.length - most)} left)`);
  }

  function createRow() {
    return h("tr", null, columns.map((column) => h("td", { class: classOf(column), "data-label": column.label })));
  }

  return { node, show };
}

function classOf(column) {
  return ["numeric", "wide", "tight", "whole", "minor"].filter((what) => column[what]).map((what) => `is-${what}`).join(" ") || null;
}

function updateCell(td, column, row) {
  attribute(td, "title", column.title?.(row) ?? null);
  if (column.depends === undefined) text(td, column.cell(row));
  else replaceIfChanged(td, column.depends(row), () => column.cell(row));
}
