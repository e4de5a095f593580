// What a job runs with, and where each value comes from.

import { get } from "./api.js";
import { h } from "./dom.js";
import { NOTHING } from "./format.js";
import { icon } from "./icons.js";
import { empty } from "./message.js";
import { table } from "./table.js";

/** Text with what stands between backticks as code. */
function words(text) {
  return text.split("`").map((part, at) => (at % 2 === 1 ? h("code", null, part) : part));
}

/** The tab. */
export function configurationTab(name) {
  let all = [];
  const field = h("input", { type: "search", placeholder: "Filter by key, value or meaning", "aria-label": "Filter configuration", oninput: draw, spellcheck: "false", autocomplete: "off" });
  const changed = h("input", { type: "checkbox", onchange: draw });
  const rows = table({
    label: "Configuration", key: (row) => row.key,
    rowClass: (row) => (row.origin === "default" ? "is-default" : ""),
    empty: () => (all.length > 0
      ? empty("No key matches.", "Clear the filter to see all of them.")
      : empty("Nothing is known of its configuration.", "A driver writes it down when an attempt begins.")),
    columns: [
      { label: "Key", wide: true, sign: (row) => [row.key, row.doc], cell: (row) => [h("code", { class: "config-key" }, row.key), row.doc && h("p", { class: "why is-open" }, words(row.doc))] },
      { label: "Value", sign: (row) => row.value, cell: (row) => (row.value === null || row.value === "" ? h("span", { class: "soft" }, NOTHING) : h("code", { class: "config-value" }, row.value)) },
      { label: "Origin", sign: (row) => row.origin, cell: (row) => h("span", { class: row.origin === "default" ? "soft" : "chip" }, row.origin) },
    ],
  });

  function draw() {
    const wanted = field.value.trim().toLowerCase();
    rows.show(all.filter((row) => (!changed.checked || row.origin !== "default") &&
      [row.key, row.value, row.origin, row.doc].some((part) => part?.toLowerCase().includes(wanted))));
  }

  return {
    node: h("section", { class: "card" }, h("h2", null, "Configuration"),
      h("div", { class: "toolbar" }, h("label", { class: "field-search" }, icon("search"), field),
        h("label", { class: "check" }, changed, "Only what is not the default")),
      rows.node),
    load: (signal) => get(["jobs", name, "configuration"], {}, signal),
    show: (data) => {
      all = data;
      draw();
    },
    interval: 10_000,
  };
}
