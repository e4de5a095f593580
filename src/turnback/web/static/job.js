// A job: its header, what can be done with it, and its tabs.

import { actionBar, requestList } from "./actions.js";
import { get } from "./api.js";
import { checkpointsTab } from "./checkpoints.js";
import { configurationTab, exceptionsTab } from "./details.js";
import { attributes, h, replace, replaceIfChanged } from "./dom.js";
import { frame } from "./live.js";
import { logTab } from "./log.js";
import { overviewTab } from "./overview.js";
import { badge, copyable, copyablePath, icon, needsAttention, sparkLink, tone } from "./parts.js";
import { go, to } from "./router.js";
import { savepointsTab } from "./savepoints.js";
import { recordRate } from "./sparkline.js";
import { diffTab, stateTab } from "./state.js";
import { timelineTab } from "./timeline.js";

const TABS = {
  overview: overviewTab,
  checkpoints: checkpointsTab,
  savepoints: savepointsTab,
  state: stateTab,
  diff: diffTab,
  timeline: timelineTab,
  configuration: configurationTab,
  exceptions: exceptionsTab,
  log: logTab,
};
const labelOf = (id) => id[0].toUpperCase() + id.slice(1);

/** The view; null if there is no such tab. */
export function jobView(name, first, query) {
  if (!Object.hasOwn(TABS, first)) return null;
  let detail = null;
  let tab = null;
  let framed = null;
  const state = h("span");
  const facts = h("div", { class: "job-facts" });
  const cause = h("div", { hidden: true });
  const requests = requestList(name);
  const actions = actionBar(name, requests.add);
  const bar = tabBar((id) => (id === "overview" ? to("jobs", name) : to("jobs", name, id)));
  const panel = h("div", { class: "panel", role: "tabpanel", tabindex: "-1", id: "panel" });

  function open(id, parameters) {
    framed?.stop();
    tab = TABS[id](name, parameters);
    if (detail !== null) tab.detail?.(detail);
    framed = frame(tab);
    bar.select(id);
    panel.setAttribute("aria-label", labelOf(id));
    replace(panel, framed.node);
    document.title = `${labelOf(id)} · ${name} · Turnback`;
  }

  function show(data) {
    if (detail === null) bar.reveal();
    detail = data;
    const { summary } = data;
    recordRate(summary);
    badge(summary.state, state);
    replaceIfChanged(facts, [summary.job_id, summary.directory, summary.spark_ui], () => [
      summary.job_id && copyable(summary.job_id, "the job's id"), sparkLink(summary), copyablePath(summary.directory, "the job's directory"),
    ]);
    showCause(cause, summary);
    actions.show(data);
    requests.show(data.requests);
    tab.detail?.(data);
  }

  open(first, query);
  return {
    title: name,
    node: h("section", { class: "page" },
      h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("a", { href: to() }, icon("left"), "All jobs")),
      h("div", { class: "job-head" },
        h("div", { class: "job-title" }, h("div", { class: "job-name" }, h("h1", null, name), state), facts),
        actions.node),
      cause, requests.node, bar.node, panel),
    load: (signal) => get(["jobs", name], {}, signal),
    show,
    follow: (path, parameters) => {
      if (path?.[0] !== "jobs" || path[1] !== name || path.length > 3) return false;
      const id = path[2] ?? "overview";
      if (!Object.hasOwn(TABS, id)) return false;
      open(id, parameters);
      return true;
    },
    stop: () => {
      actions.stop();
      framed.stop();
    },
  };
}

function showCause(node, { problem, cause, state }) {
  const why = problem ?? cause;
  node.hidden = !why;
  if (node.hidden) return;
  node.className = `cause is-${tone(state)}`;
  const [first, ...rest] = why.split("\n");
  replaceIfChanged(node, [why, state], () => [
    h("p", null, h("strong", null, needsAttention(state) ? "Why: " : "Last failure: "), first),
    rest.length > 0 && h("details", null, h("summary", null, "All of it"), h("pre", null, why)),
  ]);
}

// Tabs that are links: arrow keys move between them, Enter opens.
function tabBar(address) {
  const ids = Object.keys(TABS);
  const links = ids.map((id) => h("a", { class: "tab", role: "tab", href: address(id), "aria-controls": "panel", id: `tab-${id}` }, labelOf(id)));
  const node = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the job", onkeydown: move }, links);

  function move(event) {
    const at = links.indexOf(event.target);
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: links.length - 1 };
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = (steps[event.key] + links.length) % links.length;
    go(links[next].href);
    links[next].focus();
  }

  function select(chosen) {
    links.forEach((link, at) => attributes(link, { "aria-selected": String(ids[at] === chosen), tabindex: ids[at] === chosen ? "0" : "-1" }));
    reveal();
  }

  // Where the bar is too long for the screen: only the bar scrolls, not the page.
  function reveal() {
    requestAnimationFrame(() => {
      const link = node.querySelector('[aria-selected="true"]');
      const left = link.offsetLeft - node.offsetLeft;
      const right = left + link.offsetWidth - node.clientWidth;
      if (left < node.scrollLeft) node.scrollLeft = left - 24;
      else if (right > node.scrollLeft) node.scrollLeft = right + 24;
    });
  }

  return { node, select, reveal };
}
