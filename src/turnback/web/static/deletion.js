// Deleting jobs that are over, and savepoints. Both ask first, and the server refuses what is still needed.

import { about, get, post } from "./api.js";
import { askToken, checkbox, openDialog, whyNot } from "./dialog.js";
import { attributes, h, text } from "./dom.js";
import { bytes, plural, quote } from "./format.js";
import { announce, copyable, icon } from "./parts.js";
import { go, to } from "./router.js";

const LONGEST_MS = 70_000; // a little more than the server gives itself

/** Asks whether a job is to be deleted, and deletes it. */
export function askDeleteJob({ name, job_id: id, directory }) {
  const savepoints = h("input", { type: "checkbox" });
  const tick = checkbox("Delete its savepoints too", savepoints, "Otherwise they are kept, and jobs can still start from them.");
  countSavepoints(name, tick.querySelector("label"));
  openDialog({
    title: `Permanently delete ${name}?`,
    content: [
      h("p", { class: "soft" }, "This deletes its directory with all checkpoints and its history. Output of its sinks stays."),
      copyable(directory, "the job's directory", "is-block"),
      tick,
      forced(`turnback delete ${quote(name)} --force`),
    ],
    confirm: "Delete job",
    danger: true,
    dismiss: "Keep it",
    act: async () => {
      const deleted = await post(["jobs", name, "delete"], { savepoints: savepoints.checked, job_id: id }, LONGEST_MS);
      go(to());
      announce(`Deleted ${name}`);
      if (deleted.kept.length > 0) tellKept(deleted);
    },
  });
}

function forced(command) {
  return h("p", { class: "hint" }, "To force a deletion that is refused here, run: ", h("code", null, command));
}

async function countSavepoints(name, label) {
  try {
    const rows = (await get(["jobs", name, "savepoints"])).filter((row) => row.exists !== false);
    text(label, rows.length === 0 ? "Delete savepoints too (it has none)" : `Delete its ${plural(rows.length, "savepoint")} too`);
  } catch (error) {
    // The dialog does without the number, unless the page itself is wrong.
    if (error.status === undefined) throw error;
  }
}

// Nothing lists them any more now that their job is gone.
function tellKept({ job, kept }) {
  openDialog({
    title: `${job} is deleted`,
    content: [h("p", { class: "soft" }, `${plural(kept.length, "savepoint")} of it ${kept.length === 1 ? "is" : "are"} kept but no longer listed anywhere:`),
      kept.map((path) => copyable(path, "the path", "is-block"))],
  });
}

/** The column with a button that deletes the savepoint of each row; `onDeleted()` is called afterwards. */
export function deleteColumn(onDeleted) {
  return {
    label: "", spoken: "Delete", tight: true,
    depends: (row) => [row.exists, row.path, about?.read_only],
    cell: (row) => (row.exists === false ? "" : deleteButton(row, onDeleted)),
  };
}

function deleteButton(row, onDeleted) {
  const name = row.label ?? row.id;
  const button = h("button", { class: "tool is-danger-quiet", type: "button", onclick: () => {
    if (about?.read_only) return;
    if (whyNot() === null) askDeleteSavepoint(row, name, onDeleted);
    else askToken();
  } }, icon("trash"));
  attributes(button, about?.read_only
    ? { "aria-disabled": "true", title: whyNot(), "aria-label": `Delete savepoint ${name}` }
    : { title: "Delete this savepoint", "aria-label": `Delete savepoint ${name}` });
  return button;
}

function askDeleteSavepoint(row, name, onDeleted) {
  openDialog({
    title: `Permanently delete savepoint ${name}?`,
    content: [
      h("p", { class: "soft" }, `It was taken of ${row.job} from chk-${row.checkpoint}${row.bytes === null ? "" : ` and takes up ${bytes(row.bytes)}`}. Afterwards, no job can start from it.`),
      copyable(row.path, "the path", "is-block"),
      forced("turnback dispose PATH --force"),
    ],
    confirm: "Delete savepoint",
    danger: true,
    dismiss: "Keep it",
    act: async () => {
      await post(["jobs", row.job, "savepoints", row.id, "delete"], {}, LONGEST_MS);
      announce(`Deleted savepoint ${name}`);
      onDeleted();
    },
  });
}
