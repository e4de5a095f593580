// The lives of a job and of its relatives, as a picture over time.

import { get } from "./api.js";
import { attribute, attributes, h, reconcile, replace, svg, text, uniqueId } from "./dom.js";
import { duration, exactDuration, exactTime, shorten, time } from "./format.js";
import { attemptRows, bars, diamonds, extent, links, timeTicks } from "./lineage.js";
import { badge, contentOr, empty, icon, legend, tone, tooltip } from "./parts.js";
import { to } from "./router.js";
import { table } from "./table.js";

const LANE = 104;
const TOP = 12;
const BAR = { y: 34, height: 22 };
const DIAMOND = { y: 72, size: 6 };
const AXIS = 26;
const SIDE = 14;
const SLOWLY_MS = 4000;
const SHORTEST_MS = 50;

/** The tab. */
export function timelineTab(name) {
  const picture = timelinePicture(name);
  const rows = table({
    label: "Attempts", key: (row) => `${row.job}/${row.attempt}`,
    columns: [
      { label: "Job", wide: true, sort: (row) => row.job, depends: (row) => row.job, cell: (row) => h("a", { href: to("jobs", row.job, "timeline") }, row.job) },
      { label: "Attempt", numeric: true, sort: (row) => row.attempt, cell: (row) => `${row.attempt}` },
      { label: "State", sort: (row) => row.state, depends: (row) => row.state, cell: (row) => badge(row.state) },
      { label: "Began", tight: true, newest: true, sort: (row) => row.started_ms, cell: (row) => time(row.started_ms), title: (row) => exactTime(row.started_ms) },
      { label: "Lasted", numeric: true, sort: (row) => row.lasted, cell: (row) => duration(row.lasted), title: (row) => exactDuration(row.lasted) },
      { label: "Started from", wide: true, sort: (row) => row.origin, cell: (row) => row.origin, title: (row) => row.started_from?.path ?? null },
      { label: "Why it ended", wide: true, depends: (row) => row.why, cell: (row) => h("p", { class: "why is-open", title: row.cause }, row.why) },
    ],
  });
  const content = contentOr(h("div", { class: "stack" },
    h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", null, "Timeline"), picture.tools), picture.node, picture.legend),
    h("section", { class: "card" }, h("h2", null, "Attempts"), rows.node)), empty("No attempt yet.", "The job has not started to run."));
  return {
    node: content.node,
    load: (signal) => get(["jobs", name, "timeline"], {}, signal),
    show: (data) => {
      if (!content.show(data.jobs.some((job) => job.attempts.length > 0))) return;
      picture.show(data);
      rows.show(attemptRows(data));
    },
    interval: SLOWLY_MS,
    stop: () => picture.stop(),
  };
}

function timelinePicture(own) {
  const clip = uniqueId("clip");
  const arrow = uniqueId("arrow");
  const frame = svg("rect", { y: 0 });
  const clipped = () => svg("g", { "clip-path": `url(#${clip})` });
  const groups = { lanes: svg("g"), grid: svg("g"), names: svg("g"), links: clipped(), bars: clipped(), diamonds: clipped() };
  const picture = svg("svg", { class: "timeline-svg", role: "group", "aria-label": "Attempts and savepoints over time" },
    svg("defs", null, svg("clipPath", { id: clip }, frame),
      svg("marker", { id: arrow, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0.5L7.5 4L0 7.5z" }))),
    Object.values(groups));
  const box = h("div", { class: "timeline" }, picture);
  const tip = tooltip(box);
  let data = null;
  let range = null;
  const observer = new ResizeObserver(() => draw());
  observer.observe(box);

  const whole = () => extent(data);
  const width = () => box.clientWidth;
  const view = () => range ?? whole();
  const x = (at) => SIDE + ((at - view()[0]) / (view()[1] - view()[0])) * (width() - 2 * SIDE);
  const laneTop = (lane) => TOP + lane * LANE;

  function zoom(factor, middle = (view()[0] + view()[1]) / 2) {
    const [from, until] = view();
    const [first, last] = whole();
    const span = Math.max((until - from) * factor, SHORTEST_MS);
    if (span < last - first) return moveTo(middle - (middle - from) * factor, span);
    range = null;
    return draw();
  }

  function shift(ms) {
    if (range !== null) moveTo(range[0] + ms, range[1] - range[0]);
  }

  function moveTo(start, span) {
    const [first, last] = whole();
    const from = Math.min(Math.max(start, first), last - span);
    range = [from, from + span];
    draw();
  }

  function draw() {
    if (data === null || width() === 0) return;
    const height = TOP + data.jobs.length * LANE + AXIS;
    attributes(picture, { width: width(), height });
    attributes(frame, { x: SIDE - 8, width: Math.max(width() - 2 * SIDE + 16, 0), height });
    drawGrid(height);
    drawLanes();
    drawLinks();
    drawBars();
    drawDiamonds();
  }

  function drawGrid(height) {
    const ticks = timeTicks(...view(), Math.max(Math.floor(width() / 120), 2));
    replace(groups.grid, ticks.map(({ at, label }) => {
      const place = x(at);
      const anchor = place < 50 ? "start" : place > width() - 50 ? "end" : "middle";
      return [svg("line", { class: "timeline-grid", x1: place, x2: place, y1: TOP, y2: height - AXIS }),
        svg("text", { class: "timeline-text", x: place, y: height - 8, "text-anchor": anchor }, label)];
    }));
  }

  function drawLanes() {
    const items = data.jobs.map((job, lane) => ({ job, lane }));
    reconcile(groups.lanes, items, ({ job }) => job.name, () => svg("rect", { x: 0, rx: 8, height: LANE - 8 }), (node, { job, lane }) => {
      attributes(node, { class: job.name === own ? "lane is-own" : "lane", y: laneTop(lane), width: width() });
    });
    reconcile(groups.names, items, ({ job }) => job.name, laneName, (node, { lane }) => {
      attribute(node.firstChild, "y", laneTop(lane) + 20);
      text(node.firstChild.firstChild, shorten(data.jobs[lane].name, Math.max(Math.floor(width() / 8) - 4, 8)));
    });
  }

  function laneName({ job }) {
    return svg("a", { href: to("jobs", job.name, "timeline"), class: job.name === own ? "lane-name is-own" : "lane-name" },
      svg("text", { x: SIDE }, svg("tspan"), svg("title", null, job.name)));
  }

  function drawBars() {
    const visible = bars(data).filter((bar) => bar.to >= view()[0] && bar.from <= view()[1]);
    reconcile(groups.bars, visible, (bar) => bar.id, (bar) => mark(svg("g", null, svg("rect", { rx: 3 }), svg("text", { class: "bar-text" })), bar), (node, bar) => {
      node.mark = bar;
      const left = x(bar.from);
      const wide = Math.max(x(bar.to) - left - 1.5, 3);
      const top = laneTop(bar.lane) + BAR.y;
      attributes(node, { class: `bar is-${tone(bar.attempt.state)}`, "aria-label": spoken(bar) });
      const [rect, words] = node.children;
      attributes(rect, { x: left, y: top, width: wide, height: BAR.height });
      attributes(words, { x: Math.max(left, SIDE) + 6, y: top + 15 });
      text(words, wide > 24 ? `#${bar.attempt.attempt}${wide > 110 ? ` ${bar.attempt.state.toLowerCase()}` : ""}` : "");
    });
  }

  function drawDiamonds() {
    const visible = diamonds(data).filter((one) => one.at >= view()[0] && one.at <= view()[1]).sort((a, b) => a.at - b.at);
    reconcile(groups.diamonds, visible, (one) => one.id, (one) => mark(svg("g", null, svg("path"), svg("text", { class: "diamond-text" })), one), (node, one) => {
      node.mark = one;
      const [shape, words] = node.children;
      const [cx, cy] = [x(one.at), laneTop(one.lane) + DIAMOND.y];
      attributes(node, { class: one.savepoint.exists === false ? "diamond is-gone" : "diamond", "aria-label": spoken(one) });
      attribute(shape, "d", `M${cx} ${cy - DIAMOND.size}l${DIAMOND.size} ${DIAMOND.size}l${-DIAMOND.size} ${DIAMOND.size}l${-DIAMOND.size} ${-DIAMOND.size}z`);
      const label = shorten(one.label, 18);
      const wide = label.length * 6.4 + 14;
      const next = visible.find((other) => other.lane === one.lane && other.at > one.at);
      const free = cx + wide < Math.min(width(), next ? x(next.at) - DIAMOND.size : Infinity);
      attributes(words, { x: cx + 10, y: cy + 4 });
      text(words, free ? label : "");
    });
  }

  function drawLinks() {
    const items = links(data).filter((link) => Math.abs(x(link.at) - x(link.source.at)) > 5 || link.source.kind === "savepoint");
    reconcile(groups.links, items, (link) => link.id, () => svg("path", { class: "link-line", "marker-end": `url(#${arrow})` }), (node, link) => {
      attributes(node, { class: `link-line is-${link.source.kind}`, d: curve(link) });
    });
  }

  function curve({ source, lane, at }) {
    const [x1, x2] = [x(source.at), x(at)];
    if (source.kind === "checkpoint" && source.lane === lane) {
      const top = laneTop(lane) + BAR.y;
      return `M${x1} ${top}C${x1} ${top - 14} ${x2} ${top - 14} ${x2} ${top - 2}`;
    }
    const y1 = laneTop(source.lane) + (source.kind === "savepoint" ? DIAMOND.y : BAR.y + BAR.height / 2);
    const below = lane > source.lane;
    const y2 = laneTop(lane) + (below ? BAR.y - 2 : BAR.y + BAR.height + 2);
    const bend = Math.max(Math.abs(y2 - y1) * 0.55, 20) * (below ? 1 : -1);
    return lane === source.lane
      ? `M${x1} ${y1 + DIAMOND.size}C${x1} ${y1 + 26} ${x2} ${y1 + 30} ${x2} ${y2}`
      : `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
  }

  function mark(node, item) {
    node.mark = item;
    attributes(node, { tabindex: "0", role: "img" });
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => showTip(node));
    for (const event of ["pointerleave", "blur"]) node.addEventListener(event, tip.hide);
    return node;
  }

  function showTip(node) {
    const [mark, outline] = [node.getBoundingClientRect(), box.getBoundingClientRect()];
    const middle = Math.min(Math.max(mark.left, outline.left) + 20, outline.right) - outline.left;
    tip.show(node.mark.title, node.mark.lines, middle, mark.bottom - outline.top + 8);
  }

  picture.addEventListener("pointermove", (event) => {
    if (event.buttons === 1) shift((-event.movementX / (width() - 2 * SIDE)) * (view()[1] - view()[0]));
  });
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const share = (event.clientX - picture.getBoundingClientRect().left - SIDE) / (width() - 2 * SIDE);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, view()[0] + share * (view()[1] - view()[0]));
  }, { passive: false });

  const tool = (label, shape, act) => h("button", { class: "tool", type: "button", title: label, "aria-label": label, onclick: act }, icon(shape));
  return {
    node: box,
    tools: h("div", { class: "tools" },
      tool("Earlier", "left", () => shift((view()[0] - view()[1]) / 3)),
      tool("Later", "right", () => shift((view()[1] - view()[0]) / 3)),
      tool("Zoom out", "minus", () => zoom(2)),
      tool("Zoom in", "plus", () => zoom(0.5)),
      h("button", { class: "button is-small", type: "button", onclick: () => { range = null; draw(); } }, "All")),
    legend: legend([["running", "is-good"], ["finished", "is-done"], ["restarted", "is-warn"], ["failed or lost", "is-bad"], ["cancelled", "is-quiet"], ["savepoint", "look-diamond"]],
      h("li", null, svg("svg", { class: "legend-line", viewBox: "0 0 22 8", "aria-hidden": "true" }, svg("path", { class: "link-line is-savepoint", d: "M1 6C8 6 12 2 20 2" })), "started from")),
    show: (given) => {
      data = given;
      draw();
    },
    stop: () => observer.disconnect(),
  };
}

function spoken(item) {
  return [item.title, ...item.lines.map(([what, value]) => `${what} ${value}`)].join(", ");
}
