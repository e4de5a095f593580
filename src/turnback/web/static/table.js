// Tables that are updated cell by cell, so that focus, selection and scrolling survive.

import { attribute, h, reconcile, replace, text } from "./dom.js";
import { number } from "./format.js";

// Cards on a phone take more room than rows.
const AT_FIRST = matchMedia("(max-width: 700px)").matches ? 20 : 100;

/**
 * A table.
 *
 * Columns are `{label, cell(row), title?(row), sign?(row), numeric?, wide?, tight?, minor?, help?}`: `cell` returns a
 * text or a node; `minor` ones are left out on a phone. For a node, `sign` returns what it depends on; it is built anew when that changes.
 */
export function table({ label, columns, key, rowClass, empty }) {
  const body = h("tbody");
  const head = h("thead", null, h("tr", null, columns.map(headCell)));
  const box = h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: "table" }, h("caption", { class: "offscreen" }, label), head, body));
  const more = h("button", { class: "button", type: "button", hidden: true, onclick: showMore });
  const nothing = h("div", { hidden: true });
  const node = h("div", { class: "table-whole" }, box, more, nothing);
  let rows = [];
  let most = AT_FIRST;

  function showMore() {
    most += 5 * AT_FIRST;
    show(rows);
  }

  function show(given) {
    rows = given;
    const none = rows.length === 0;
    box.hidden = none;
    nothing.hidden = !none;
    if (none && empty) replace(nothing, empty());
    reconcile(body, rows.slice(0, most), key, () => createRow(columns), (tr, row) => {
      attribute(tr, "class", rowClass?.(row) || null);
      columns.forEach((column, at) => updateCell(tr.children[at], column, row));
    });
    more.hidden = rows.length <= most;
    text(more, `Show more (${number(rows.length - most)} left)`);
  }

  return { node, show };
}

function headCell(column) {
  return h("th", { scope: "col", class: classOf(column), title: column.help }, column.label);
}

function classOf(column) {
  return [column.numeric && "is-number", column.wide && "is-wide", column.tight && "is-tight", column.minor && "is-minor"].filter(Boolean).join(" ") || null;
}

function createRow(columns) {
  return h("tr", null, columns.map((column) => h("td", { class: classOf(column), "data-label": column.label })));
}

function updateCell(td, column, row) {
  attribute(td, "title", column.title?.(row) ?? null);
  if (column.sign === undefined) {
    text(td, column.cell(row));
    return;
  }
  const sign = JSON.stringify(column.sign(row)) ?? "";
  if (td.sign === sign) return;
  td.sign = sign;
  const content = column.cell(row);
  replace(td, content ?? "");
}
