// In which order a table shows its rows: by a click on the name of a column, or by a choice on a phone, where there are no columns.

import { attribute, h, replace, text } from "./dom.js";
import { icon } from "./parts.js";

const WORDS = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const WHOLE = /^-?\d{1,40}$/;

// By the label of the table, so that an order survives going to another tab and back.
const chosen = new Map();

/** The order of a table; `onChange` is called when another one is chosen. */
export function sorting(label, columns, onChange) {
  const sortable = columns.filter((column) => column.sort !== undefined);
  const buttons = new Map();
  const select = h("select", { onchange: () => choose(options[select.value] ?? null) });
  const options = sortable.flatMap((column) => directions(column).map((down) => ({ label: column.label, down })));
  replace(select, h("option", { value: "" }, "as it comes"), options.map((option, at) => h("option", { value: at }, `${option.label} ${option.down ? "↓" : "↑"}`)));

  function current() {
    const order = chosen.get(label);
    const column = order && sortable.find((one) => one.label === order.label);
    return column ? { column, down: order.down } : null;
  }

  function choose(order) {
    if (order === null) chosen.delete(label);
    else chosen.set(label, order);
    draw();
    onChange();
  }

  // First the way that is mostly wanted, then the other, then as it came.
  function next(column) {
    const order = current();
    const [first, second] = directions(column);
    if (order?.column !== column) choose({ label: column.label, down: first });
    else choose(order.down === first ? { label: column.label, down: second } : null);
  }

  function draw() {
    const order = current();
    for (const [column, button] of buttons) {
      const isChosen = order?.column === column;
      attribute(button.parentNode, "aria-sort", isChosen ? (order.down ? "descending" : "ascending") : null);
      text(button.lastChild, isChosen ? (order.down ? "↓" : "↑") : "↕");
    }
    const at = order === null ? -1 : options.findIndex((option) => option.label === order.column.label && option.down === order.down);
    select.value = at < 0 ? "" : String(at);
  }

  return {
    /** The button in the head of a column, null if it cannot be sorted by. */
    button: (column) => {
      if (column.sort === undefined) return null;
      const button = h("button", { class: "sort", type: "button", onclick: () => next(column) }, column.label, h("span", { class: "sort-sign", "aria-hidden": "true" }));
      buttons.set(column, button);
      queueMicrotask(draw);
      return button;
    },
    choice: sortable.length === 0 ? null : h("label", { class: "sort-choice" }, icon("sort"), h("span", null, "Sort by"), select),
    sorted: (rows) => {
      const order = current();
      return order === null ? rows : sortBy(rows, order.column.sort, order.down);
    },
  };
}

const directions = (column) => (column.numeric || column.newest ? [true, false] : [false, true]);

/** Rows by a value of each; those that have none come last either way. */
export function sortBy(rows, value, down = false) {
  const keyed = rows.map((row) => [sortable(value(row)), row]);
  const sign = down ? -1 : 1;
  const compare = ([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a !== "string" && typeof b !== "string") return (a < b ? -1 : a > b ? 1 : 0) * sign;
    return WORDS.compare(String(a), String(b)) * sign;
  };
  return keyed.sort(compare).map(([, row]) => row);
}

// Whole numbers that a double would round come from the server as texts.
function sortable(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return null;
  if (typeof value === "string") return WHOLE.test(value) ? BigInt(value) : value;
  return typeof value === "number" || typeof value === "bigint" ? value : JSON.stringify(value);
}
