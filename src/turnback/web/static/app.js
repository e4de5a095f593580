// The page: its header, and the view that the address asks for.

import { loadAbout, onAbout } from "./api.js";
import { attribute, attributes, h, replace, svg } from "./dom.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { awayNotice, frame, liveSign, poll } from "./live.js";
import { empty, icon } from "./parts.js";
import { start, to } from "./router.js";
import { allSavepointsView } from "./savepoints.js";

const THEME = "turnback.theme"; // early.js reads it too
const THEMES = { system: ["screen", "as the system"], light: ["sun", "light"], dark: ["moon", "dark"] };
const links = {
  jobs: h("a", { href: to() }, "Jobs"),
  savepoints: h("a", { href: to("savepoints") }, "Savepoints"),
};
let current = null;

function header() {
  const readOnly = h("span", { class: "chip", hidden: true, title: "Buttons that make changes are disabled" }, "read-only");
  onAbout((about) => {
    readOnly.hidden = !about.read_only;
  });
  replace(document.getElementById("top"),
    h("div", { class: "top-bar" },
      h("a", { class: "brand", href: to(), "aria-label": "Turnback, to all jobs" }, logo(), h("span", null, "Turnback")),
      h("nav", { "aria-label": "Main" }, links.jobs, links.savepoints),
      h("div", { class: "top-end" }, readOnly, liveSign, themeButton())),
    awayNotice);
}

function logo() {
  return svg("svg", { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true" },
    svg("rect", { width: 32, height: 32, rx: 8 }),
    svg("path", { d: "M9.2 13.2A7.6 7.6 0 1 1 8.6 18M8.4 7.8v5.8h5.8" }),
    svg("circle", { cx: 16, cy: 16.4, r: 2.1 }));
}

// Goes from the system's colours to light to dark.
function themeButton() {
  const data = document.documentElement.dataset;
  const button = h("button", { class: "tool", type: "button", onclick: next });

  function next() {
    const names = Object.keys(THEMES);
    const theme = names[(names.indexOf(data.theme ?? "system") + 1) % names.length];
    if (theme === "system") delete data.theme;
    else data.theme = theme;
    try {
      if (theme === "system") localStorage.removeItem(THEME);
      else localStorage.setItem(THEME, theme);
    } catch {
      // Without storage the choice lasts until the page is left.
    }
    draw();
  }

  function draw() {
    const [shape, word] = THEMES[data.theme ?? "system"];
    replace(button, icon(shape));
    attributes(button, { title: `Colours: ${word}`, "aria-label": `Colours: ${word}. Change` });
    document.dispatchEvent(new Event("colours"));
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  return button;
}

function choose(path, query) {
  const [first, name, tab] = path ?? [null];
  if (first === undefined || (first === "jobs" && path.length === 1)) return jobsView();
  if (first === "savepoints" && path.length === 1) return allSavepointsView();
  const view = first === "jobs" && path.length <= 3 ? jobView(name, tab ?? "overview", query) : null;
  return view ?? { node: empty("Page not found.", "The address may be incomplete. All jobs are on the first page."), title: "Not found" };
}

function show(path, query) {
  // A tab of the job that is open is not a new page.
  if (current?.view.follow?.(path, query)) return;
  current?.shown.stop?.();
  const view = choose(path, query);
  current = { view, shown: view.load ? frame(view) : view };
  document.title = `${view.title} · Turnback`;
  attribute(links.jobs, "aria-current", path?.[0] !== "savepoints" ? "page" : null);
  attribute(links.savepoints, "aria-current", path?.[0] === "savepoints" ? "page" : null);
  replace(document.getElementById("main"), current.shown.node);
}

header();
poll({ load: loadAbout, show: () => {}, interval: 30_000 });
start(show);
