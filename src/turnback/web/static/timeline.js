// The lives of a job and of its relatives, as a picture over time.

import { to } from "./address.js";
import { get } from "./api.js";
import { badge, tone } from "./badge.js";
import { attribute, h, reconcile, replace, svg, text, uniqueId } from "./dom.js";
import { duration, exactDuration, exactTime, shorten, time } from "./format.js";
import { icon } from "./icons.js";
import { attemptRows, bars, diamonds, extent, links } from "./lineage.js";
import { empty } from "./message.js";
import { table } from "./table.js";
import { timeTicks } from "./timeaxis.js";

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
      { label: "Job", wide: true, sign: (row) => row.job, cell: (row) => h("a", { href: to("jobs", row.job, "timeline") }, row.job) },
      { label: "Attempt", numeric: true, cell: (row) => `${row.attempt}` },
      { label: "State", sign: (row) => row.state, cell: (row) => badge(row.state) },
      { label: "Began", tight: true, cell: (row) => time(row.started_ms), title: (row) => exactTime(row.started_ms) },
      { label: "Lasted", numeric: true, cell: (row) => duration(row.lasted), title: (row) => exactDuration(row.lasted) },
      { label: "Started from", wide: true, cell: (row) => row.origin, title: (row) => row.started_from?.path ?? null },
      { label: "Why it ended", wide: true, sign: (row) => row.why, cell: (row) => h("p", { class: "why is-open", title: row.cause }, row.why) },
    ],
  });
  const content = h("div", { class: "stack" },
    h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", null, "Timeline"), picture.tools), picture.node, picture.legend),
    h("section", { class: "card" }, h("h2", null, "Attempts"), rows.node));
  const none = h("div", { hidden: true }, empty("No attempt yet.", "The job has not begun to run."));
  return {
    node: h("div", null, content, none),
    load: (signal) => get(["jobs", name, "timeline"], {}, signal),
    show: (data) => {
      const some = data.jobs.some((job) => job.attempts.length > 0);
      content.hidden = !some;
      none.hidden = some;
      if (!some) return;
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
  const groups = { lanes: svg("g"), grid: svg("g"), names: svg("g"), links: svg("g", { "clip-path": `url(#${clip})` }), bars: svg("g", { "clip-path": `url(#${clip})` }), diamonds: svg("g", { "clip-path": `url(#${clip})` }) };
  const picture = svg("svg", { class: "timeline-svg", role: "group", "aria-label": "Attempts and savepoints over time" },
    svg("defs", null, svg("clipPath", { id: clip }, frame),
      svg("marker", { id: arrow, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0.5L7.5 4L0 7.5z" }))),
    groups.lanes, groups.grid, groups.names, groups.links, groups.bars, groups.diamonds);
  const tip = h("div", { class: "tip", hidden: true });
  const box = h("div", { class: "timeline" }, picture, tip);
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
    if (span >= last - first) range = null;
    else {
      const start = Math.min(Math.max(middle - (middle - from) * factor, first), last - span);
      range = [start, start + span];
    }
    draw();
  }

  function shift(ms) {
    if (range === null) return;
    const [first, last] = whole();
    const span = range[1] - range[0];
    const start = Math.min(Math.max(range[0] + ms, first), last - span);
    range = [start, start + span];
    draw();
  }

  function draw() {
    if (data === null || width() === 0) return;
    const height = TOP + data.jobs.length * LANE + AXIS;
    attribute(picture, "width", width());
    attribute(picture, "height", height);
    attribute(frame, "x", SIDE - 8);
    attribute(frame, "width", Math.max(width() - 2 * SIDE + 16, 0));
    attribute(frame, "height", height);
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
      return [svg("line", { class: "chart-grid", x1: place, x2: place, y1: TOP, y2: height - AXIS }),
        svg("text", { class: "chart-text", x: place, y: height - 8, "text-anchor": anchor }, label)];
    }));
  }

  function drawLanes() {
    const items = data.jobs.map((job, lane) => ({ job, lane }));
    reconcile(groups.lanes, items, ({ job }) => job.name, () => svg("rect", { x: 0, rx: 8, height: LANE - 8 }), (node, { job, lane }) => {
      attribute(node, "class", job.name === own ? "lane is-own" : "lane");
      attribute(node, "y", laneTop(lane));
      attribute(node, "width", width());
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
      attribute(node, "class", `bar is-${tone(bar.attempt.state)}`);
      attribute(node, "aria-label", spoken(bar));
      const [rect, words] = node.children;
      for (const [what, value] of Object.entries({ x: left, y: top, width: wide, height: BAR.height })) attribute(rect, what, value);
      attribute(words, "x", Math.max(left, SIDE) + 6);
      attribute(words, "y", top + 15);
      text(words, wide > 24 ? `#${bar.attempt.attempt}${wide > 110 ? ` ${bar.attempt.state.toLowerCase()}` : ""}` : "");
    });
  }

  function drawDiamonds() {
    const visible = diamonds(data).filter((one) => one.at >= view()[0] && one.at <= view()[1]).sort((a, b) => a.at - b.at);
    reconcile(groups.diamonds, visible, (one) => one.id, (one) => mark(svg("g", null, svg("path"), svg("text", { class: "diamond-text" })), one), (node, one) => {
      node.mark = one;
      const [shape, words] = node.children;
      const [cx, cy] = [x(one.at), laneTop(one.lane) + DIAMOND.y];
      attribute(node, "class", one.savepoint.exists === false ? "diamond is-gone" : "diamond");
      attribute(node, "aria-label", spoken(one));
      attribute(shape, "d", `M${cx} ${cy - DIAMOND.size}l${DIAMOND.size} ${DIAMOND.size}l${-DIAMOND.size} ${DIAMOND.size}l${-DIAMOND.size} ${-DIAMOND.size}z`);
      const label = shorten(one.label, 18);
      const wide = label.length * 6.4 + 14;
      const next = visible.find((other) => other.lane === one.lane && other.at > one.at);
      const free = cx + wide < Math.min(width(), next ? x(next.at) - DIAMOND.size : Infinity);
      attribute(words, "x", cx + 10);
      attribute(words, "y", cy + 4);
      text(words, free ? label : "");
    });
  }

  function drawLinks() {
    const items = links(data).filter((link) => Math.abs(x(link.at) - x(link.source.at)) > 5 || link.source.kind === "savepoint");
    reconcile(groups.links, items, (link) => link.id, () => svg("path", { class: "link-line", "marker-end": `url(#${arrow})` }), (node, link) => {
      attribute(node, "class", `link-line is-${link.source.kind}`);
      attribute(node, "d", curve(link));
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
    attribute(node, "tabindex", "0");
    attribute(node, "role", "img");
    const show = () => showTip(tip, box, node);
    const hide = () => {
      tip.hidden = true;
    };
    node.addEventListener("pointerenter", show);
    node.addEventListener("focus", show);
    node.addEventListener("pointerleave", hide);
    node.addEventListener("blur", hide);
    return node;
  }

  drag(picture, (pixels) => shift((-pixels / (width() - 2 * SIDE)) * (view()[1] - view()[0])));
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
    legend: h("ul", { class: "legend" },
      [["running", "look-good"], ["finished", "look-done"], ["restarted", "look-warn"], ["failed or lost", "look-bad"], ["cancelled", "look-quiet"], ["savepoint", "look-diamond"]]
        .map(([word, look]) => h("li", null, h("span", { class: `swatch ${look}` }), word)),
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

function showTip(tip, box, node) {
  const { title, lines } = node.mark;
  replace(tip, h("p", { class: "tip-title" }, title),
    lines.map(([what, value]) => h("p", { class: "tip-line" }, h("span", { class: "tip-what" }, what), h("span", { class: "tip-value" }, value))));
  tip.hidden = false;
  const [mark, frame] = [node.getBoundingClientRect(), box.getBoundingClientRect()];
  const middle = Math.min(Math.max(mark.left, frame.left) + 20, frame.right) - frame.left;
  tip.style.left = `${Math.min(Math.max(middle - tip.offsetWidth / 2, 0), Math.max(box.clientWidth - tip.offsetWidth, 0))}px`;
  tip.style.top = `${mark.bottom - frame.top + 8}px`;
}

function drag(node, moved) {
  let last = null;
  node.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && !event.target.closest("a")) last = event.clientX;
  });
  node.addEventListener("pointermove", (event) => {
    if (last === null || event.buttons === 0) return;
    moved(event.clientX - last);
    last = event.clientX;
  });
  for (const end of ["pointerup", "pointerleave", "pointercancel"]) node.addEventListener(end, () => { last = null; });
}
