// The end of the driver's log.

import { get } from "./api.js";
import { copyable } from "./copy.js";
import { h, replace, text } from "./dom.js";
import { empty } from "./message.js";

const LINES = 400;

/** The tab. */
export function logTab(name) {
  const path = h("div");
  const body = h("pre", { class: "log", tabindex: "0", "aria-label": "End of the driver's log" });
  const found = h("div", null, path, body);
  const none = h("div", { hidden: true });
  return {
    node: h("section", { class: "card" }, h("h2", null, "Log of the driver"), found, none),
    load: async (signal) => {
      try {
        return await get(["jobs", name, "log"], { lines: LINES }, signal);
      } catch (error) {
        // That there is none to be had here is an answer, not a failure.
        if (error.status === 404) return { path: null, lines: [], why: error.message };
        throw error;
      }
    },
    show: (data) => {
      found.hidden = data.path === null;
      none.hidden = data.path !== null;
      if (data.path === null) {
        if (none.textContent === "") replace(none, empty("No log to show here.", data.why, `turnback logs '${name.replaceAll("'", `'"'"'`)}'`));
        return;
      }
      if (path.textContent !== data.path) replace(path, copyable(data.path, "the path of the log"));
      const atEnd = body.scrollHeight - body.scrollTop - body.clientHeight < 24;
      text(body, data.lines.join("\n"));
      if (atEnd) body.scrollTop = body.scrollHeight;
    },
  };
}
