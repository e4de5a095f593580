// A job: its header, what can be done with it, and its tabs.

import { actionBar } from "./actions.js";
import { activity } from "./activity.js";
import { to } from "./address.js";
import { get } from "./api.js";
import { needsAttention, setBadge, tone } from "./badge.js";
import { checkpointsTab } from "./checkpoints.js";
import { configurationTab } from "./configuration.js";
import { copyable } from "./copy.js";
import { diffTab } from "./diff.js";
import { h, replace } from "./dom.js";
import { exceptionsTab } from "./exceptions.js";
import { frame } from "./frame.js";
import { icon } from "./icons.js";
import { logTab } from "./log.js";
import { overviewTab } from "./overview.js";
import * as router from "./router.js";
import * as samples from "./samples.js";
import { savepointsTab } from "./savepoints.js";
import { stateTab } from "./state.js";
import { tabBar } from "./tabs.js";
import { timelineTab } from "./timeline.js";

const TABS = [
  ["overview", "Overview", overviewTab],
  ["checkpoints", "Checkpoints", checkpointsTab],
  ["savepoints", "Savepoints", savepointsTab],
  ["state", "State", stateTab],
  ["diff", "Diff", diffTab],
  ["timeline", "Timeline", timelineTab],
  ["configuration", "Configuration", configurationTab],
  ["exceptions", "Exceptions", exceptionsTab],
  ["log", "Log", logTab],
];

/** The view; null if there is no such tab. */
export function jobView(name, first, query) {
  if (!TABS.some(([id]) => id === first)) return null;
  let detail = null;
  let tab = null;
  let framed = null;
  const state = h("span");
  const facts = h("div", { class: "job-facts" });
  const cause = h("div", { hidden: true });
  const done = activity(name);
  const actions = actionBar(name, (row) => done.add(row));
  const bar = tabBar(TABS.map(([id, label]) => ({ id, label, href: address(id) })), (id) => router.go(address(id)));
  const panel = h("div", { class: "panel", role: "tabpanel", tabindex: "-1", id: "panel" });

  function address(id) {
    return id === "overview" ? to("jobs", name) : to("jobs", name, id);
  }

  function open(id, parameters) {
    framed?.stop();
    const [, label, create] = TABS.find(([other]) => other === id);
    tab = create(name, parameters);
    if (detail !== null) tab.detail?.(detail);
    framed = frame(tab);
    bar.select(id);
    panel.setAttribute("aria-label", label);
    replace(panel, framed.node);
    document.title = `${label} · ${name} · Turnback`;
  }

  function show(data) {
    if (detail === null) bar.reveal();
    detail = data;
    const { summary } = data;
    samples.note(summary);
    setBadge(state, summary.state);
    showFacts(facts, data);
    showCause(cause, summary);
    actions.show(data);
    done.show(data.requests);
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
      cause, done.node, bar.node, panel),
    load: (signal) => get(["jobs", name], {}, signal),
    show,
    follow: (path, parameters) => {
      if (path?.[0] !== "jobs" || path[1] !== name || path.length > 3) return false;
      const id = path[2] ?? "overview";
      if (!TABS.some(([other]) => other === id)) return false;
      open(id, parameters);
      return true;
    },
    stop: () => framed.stop(),
  };
}

function showFacts(node, { summary }) {
  const sign = `${summary.job_id} ${summary.directory}`;
  if (node.sign === sign) return;
  node.sign = sign;
  replace(node,
    summary.job_id && copyable(summary.job_id, "the job's id"),
    copyable(summary.directory, "the job's directory"));
}

function showCause(node, summary) {
  const why = summary.problem ?? summary.cause;
  node.hidden = !why || summary.state === "RUNNING";
  if (node.hidden || node.sign === why + summary.state) return;
  node.sign = why + summary.state;
  node.className = `cause is-${tone(summary.state)}`;
  const [first, ...rest] = why.split("\n");
  const lead = needsAttention(summary.state) ? "Why" : "Last failure";
  replace(node, h("p", null, h("strong", null, `${lead}: `), first),
    rest.length > 0 && h("details", null, h("summary", null, "All of it"), h("pre", null, why)));
}
