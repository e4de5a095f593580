// The page: its header, and the view that the address asks for.

import { to } from "./address.js";
import * as connection from "./connection.js";
import { attribute, h, replace } from "./dom.js";
import { frame } from "./frame.js";
import { Live } from "./live.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { empty } from "./message.js";
import * as router from "./router.js";
import { allSavepointsView } from "./savepoints.js";
import * as server from "./server.js";
import { svg } from "./dom.js";
import { themeButton } from "./theme.js";

const main = document.getElementById("main");
const links = {
  jobs: h("a", { href: to() }, "Jobs"),
  savepoints: h("a", { href: to("savepoints") }, "Savepoints"),
};
let current = null;

function logo() {
  return svg("svg", { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true" },
    svg("rect", { width: 32, height: 32, rx: 8 }),
    svg("path", { d: "M9.2 13.2A7.6 7.6 0 1 1 8.6 18M8.4 7.8v5.8h5.8" }),
    svg("circle", { cx: 16, cy: 16.4, r: 2.1 }));
}

function header() {
  const readOnly = h("span", { class: "chip", hidden: true, title: "Buttons that change anything are switched off" }, "read-only");
  server.watch((about) => {
    readOnly.hidden = !about.read_only;
  });
  replace(document.getElementById("top"),
    h("div", { class: "top-bar" },
      h("a", { class: "brand", href: to(), "aria-label": "Turnback, to all jobs" }, logo(), h("span", null, "Turnback")),
      h("nav", { "aria-label": "Main" }, links.jobs, links.savepoints),
      h("div", { class: "top-end" }, readOnly, connection.sign, themeButton())),
    connection.notice);
}

function nowhere() {
  return { node: empty("There is no such page.", "Perhaps the address was cut off. All jobs are on the first page."), title: "Not found" };
}

function choose(path, query) {
  if (path === null) return nowhere();
  if (path.length === 0) return jobsView();
  if (path[0] === "savepoints" && path.length === 1) return allSavepointsView();
  if (path[0] === "jobs" && path.length === 1) return jobsView();
  if (path[0] === "jobs" && path.length <= 3) return jobView(path[1], path[2] ?? "overview", query) ?? nowhere();
  return nowhere();
}

function show(path, query) {
  // A tab of the job that is open is not a new page.
  if (current?.view.follow?.(path, query)) return;
  current?.framed.stop();
  const view = choose(path, query);
  const framed = frame(view);
  current = { view, framed };
  document.title = `${view.title} · Turnback`;
  attribute(links.jobs, "aria-current", path?.[0] !== "savepoints" ? "page" : null);
  attribute(links.savepoints, "aria-current", path?.[0] === "savepoints" ? "page" : null);
  replace(main, framed.node);
}

header();
new Live({ load: server.ask, show: () => {}, fail: () => {}, interval: 30_000 });
router.start(show);
