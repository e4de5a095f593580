// The operators of a job and how data flows between them, laid out by dagre.

import { attribute, attributes, h, reconcile, replace, showPairs, svg, text, uniqueId } from "./dom.js";
import { ago, bytes, compact, exactBytes, exactTime, NOTHING, number, time } from "./format.js";
import { lagAge, lagText, lagTitle, lagValue } from "./lag.js";
import { busyText, heldBack, isOverloaded, isUneven, percent, skewText, skewValue, taskTable } from "./load.js";
import { icon, iconPath } from "./parts.js";
import dagre from "./vendor/dagre.esm.js";

const NODE = { width: 200, height: 150 };
const ACROSS = { rankdir: "LR", ranksep: 60, nodesep: 22, edgesep: 22 };
const DOWN = { ...ACROSS, rankdir: "TB", ranksep: 52, nodesep: 16 };
const MARGIN = 16;
const NARROW = 640;
const SMALLEST = 0.8;

/** The graph; `show(operators, bottleneck)` draws it, with the uid of the busiest operator. */
export function graph() {
  const arrow = uniqueId("arrow");
  const lines = svg("g");
  const picture = svg("svg", { class: "graph-lines", "aria-hidden": "true" },
    svg("defs", null, svg("marker", { id: arrow, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, svg("path", { d: "M0 0.5L7.5 4L0 7.5z" }))),
    lines);
  const nodes = h("div", { class: "graph-nodes" });
  const stage = h("div", { class: "graph-stage" }, picture, nodes);
  const box = h("div", { class: "graph-box", role: "group", "aria-label": "Graph of operators" }, stage);
  const panel = h("div", { class: "graph-detail", hidden: true, "aria-live": "polite" }, h("div", { class: "graph-detail-head" }, icon("right"), h("h3")), h("dl", { class: "pairs" }));
  const tasks = taskTable();
  panel.append(tasks.node);
  let operators = [];
  let busiest = null;
  let chosen = null;
  let drawn = "";

  const observer = new ResizeObserver(draw);
  observer.observe(box);

  function draw() {
    if (operators.length === 0 || box.clientWidth === 0) return;
    reconcile(nodes, operators, (operator) => operator.uid, ({ uid }) => card(() => showDetail(chosen === uid ? null : uid)), (node, operator) => updateCard(node, operator, operator.uid === busiest));
    const shape = JSON.stringify([box.clientWidth, operators.map(({ uid, inputs, key }) => [uid, inputs, key])]);
    if (shape !== drawn) place(box.clientWidth < NARROW);
    drawn = shape;
    showDetail(chosen);
  }

  function place(down) {
    const { left, top, width, height, spots, edges } = layOut(operators, down);
    // A graph that is a little too wide is made smaller, a bigger one scrolls.
    const scale = Math.min(box.clientWidth / width, 1);
    stage.style.zoom = scale < SMALLEST ? 1 : scale;
    stage.style.width = `${width}px`;
    stage.style.height = `${height}px`;
    // Begins with the first source.
    box.scrollLeft = down ? spots[0].x - left - box.clientWidth / 2 : 0;
    attributes(picture, { width, height, viewBox: `${left} ${top} ${width} ${height}` });
    [...nodes.children].forEach((node, at) => {
      node.style.left = `${spots[at].x - NODE.width / 2 - left}px`;
      node.style.top = `${spots[at].y - NODE.height / 2 - top}px`;
    });
    replace(lines, edges.map(({ from, bends, to }) => line(spots[from], bends, spots[to], operators[to].key, down)));
  }

  // Along the flow in curves from the middle of a side to the middle of a side, by way of the bends in between.
  function line(from, bends, to, key, down) {
    const half = down ? NODE.height / 2 : NODE.width / 2;
    const end = ({ x, y }, distance) => (down ? { x, y: y + distance } : { x: x + distance, y });
    const stops = [end(from, half), ...bends, end(to, -half - 2)];
    const curves = stops.slice(1).map((b, at) => {
      const a = stops[at];
      const middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
      return down ? `C${a.x} ${middle.y} ${b.x} ${middle.y} ${b.x} ${b.y}` : `C${middle.x} ${a.y} ${middle.x} ${b.y} ${b.x} ${b.y}`;
    });
    const path = svg("path", { class: key ? "edge is-keyed" : "edge", d: `M${stops[0].x} ${stops[0].y}${curves.join("")}`, "marker-end": `url(#${arrow})` });
    if (!key) return path;
    const [a, b] = stops.slice(-2);
    return svg("g", null, path, svg("g", { class: "edge-key", transform: `translate(${(a.x + b.x) / 2 - 10} ${(a.y + b.y) / 2 - 10})` },
      svg("title", null, `keyed by ${key}`), svg("circle", { cx: 10, cy: 10, r: 10 }), iconPath("key", { transform: "translate(3.6 3.6) scale(0.8)" })));
  }

  function showDetail(uid) {
    chosen = uid;
    for (const node of nodes.children) attribute(node, "aria-expanded", String(node.itemKey === chosen));
    const operator = operators.find((other) => other.uid === chosen);
    panel.hidden = operator === undefined;
    if (operator === undefined) return;
    text(panel.querySelector("h3"), operator.name);
    showPairs(panel.querySelector("dl"), detailPairs(operator, operators));
    tasks.show(operator.load ?? null);
  }

  return {
    node: h("div", null, box, panel),
    show: (given, bottleneck = null) => {
      operators = given;
      busiest = bottleneck;
      draw();
    },
    stop: () => observer.disconnect(),
  };
}

// Where the middle of each operator is, and by way of which bends its edges run.
function layOut(operators, down) {
  // Named by their place in the list: a uid may be any text.
  const places = new Map(operators.map(({ uid }, at) => [uid, at]));
  const layout = new dagre.graphlib.Graph();
  layout.setGraph(down ? { ...DOWN } : { ...ACROSS });
  operators.forEach((_, at) => layout.setNode(at, { ...NODE }));
  operators.forEach(({ inputs }, at) => {
    for (const input of inputs) if (places.has(input)) layout.setEdge(places.get(input), at, {});
  });
  dagre.layout(layout);
  const spots = operators.map((_, at) => layout.node(at));
  const edges = layout.edges().map((edge) => {
    const bends = layout.edge(edge).points.slice(1, -1);
    // One to the next operator needs no bend.
    return { from: edge.v, to: edge.w, bends: bends.length > 1 ? bends : [] };
  });
  // dagre leaves the bends out of its own size.
  const bends = edges.flatMap((edge) => edge.bends);
  const extent = (axis, size) => {
    const values = [...spots.flatMap((spot) => [spot[axis] - size / 2, spot[axis] + size / 2]), ...bends.map((bend) => bend[axis])];
    return [Math.min(...values) - MARGIN, Math.max(...values) + MARGIN];
  };
  const [[left, right], [top, bottom]] = [extent("x", NODE.width), extent("y", NODE.height)];
  return { left, top, width: right - left, height: bottom - top, spots, edges };
}

function card(onclick) {
  return h("button", { class: "node", type: "button", onclick, "aria-expanded": "false" },
    h("span", { class: "node-kind" }, h("span"), h("span", { class: "node-parallelism", title: "Parallelism" })),
    h("span", { class: "node-name" }),
    h("span", { class: "node-uid" }),
    h("span", { class: "node-numbers" }, metric("in"), metric("out"), metric("state"), metric("busy"), metric("left out", "is-alarm"), metric("malformed", "is-alarm"), metric("skew", "is-alarm"), metric("watermark", "is-whole"), metric("lag", "is-whole")),
    h("span", { class: "node-busy" }, h("span")));
}

function metric(label, look = "") {
  return h("span", { class: `node-number ${look}` }, h("span", { class: "node-label" }, label), h("span"));
}

// Where these are among the numbers of a card.
const [BUSY, SKEW] = [3, 6];

function updateCard(node, operator, isBusiest) {
  const [kind, name, uid, numbers, bar] = node.children;
  text(kind.firstChild, isBusiest ? `${operator.kind} · busiest` : operator.kind);
  text(kind.lastChild, operator.parallelism === null ? "" : `× ${operator.parallelism}`);
  text(name, operator.name);
  attribute(name, "title", operator.name);
  text(uid, operator.uid);
  const load = operator.load ?? null;
  const values = [compact(operator.records_in), compact(operator.records_out), bytes(operator.state_bytes), load ? percent(load.busiest) : NOTHING, compact(operator.left_out), compact(operator.malformed), load?.skew ? skewValue(load) : NOTHING, watermark(operator), shortLag(operator)];
  const hidden = [operator.level < 0 && operator.inputs.length === 0, false, operator.state_bytes === null && operator.states.length === 0, !load, !operator.left_out, !operator.malformed, !isUneven(load), operator.watermark_ms === null, operator.lag === null];
  values.forEach((value, at) => {
    text(numbers.children[at].lastChild, value);
    numbers.children[at].hidden = hidden[at];
  });
  attribute(numbers.children[BUSY], "title", load && `busy ${busyText(load)}`);
  attribute(numbers.children[SKEW], "title", load && skewText(load));
  bar.hidden = load === null;
  bar.firstChild.style.width = `${(load?.busiest ?? 0) * 100}%`;
  node.classList.toggle("is-overloaded", isOverloaded(load));
  node.dataset.kind = operator.inputs.length === 0 ? "source" : operator.kind.includes("sink") ? "sink" : "step";
}

// Watermarks run to the end of time when a source has ended, and are absent before its first event.
const LAST_DATE = 8.64e15;

function watermark({ watermark_ms: ms }) {
  if (ms === null) return NOTHING;
  if (ms > LAST_DATE) return "end of time";
  if (ms < -LAST_DATE) return "none yet";
  return time(ms);
}

function watermarkText(operator) {
  const ms = operator.watermark_ms;
  if (ms === null || Math.abs(ms) > LAST_DATE) return watermark(operator);
  return `${exactTime(ms)}, ${ago(ms)}`;
}

function shortLag({ lag }) {
  const age = lag?.records ? lagAge(lag) : null;
  return age === null ? lagValue(lag) : `${lagValue(lag)} (${age})`;
}

function detailPairs(operator, operators) {
  const names = new Map(operators.map((other) => [other.uid, other.name]));
  return [
    ["uid", operator.uid],
    ["Kind", operator.kind],
    ["Parallelism", operator.parallelism === null ? "set by Spark" : number(operator.parallelism)],
    ["Keyed by", operator.key ?? NOTHING],
    ["Reads from", operator.inputs.map((uid) => names.get(uid) ?? uid).join(", ") || NOTHING],
    ["States", operator.states.join(", ") || "none"],
    ["Records in", number(operator.records_in)],
    ["Records out", number(operator.records_out)],
    ...(operator.left_out ? [["Skipped or dead-lettered: function failed", number(operator.left_out)]] : []),
    ...(operator.malformed ? [["Skipped or dead-lettered: schema mismatch", number(operator.malformed)]] : []),
    ["State size", operator.state_bytes === null ? NOTHING : `${bytes(operator.state_bytes)} (${exactBytes(operator.state_bytes)})`],
    ["Watermark", watermarkText(operator)],
    ...(operator.lag ? [["Lag", [lagTitle(operator.lag), lagText(operator.lag)].filter(Boolean).join("; ")]] : []),
    ...(operator.load ? [["Busy", busyText(operator.load)], ["Skew", skewText(operator.load)]] : []),
    ...(operator.lag?.records && heldBack(operator, operators) ? [["Held back by", heldBack(operator, operators)]] : []),
    ["Spark stage", operator.level < 0 ? "none: read by Spark directly" : number(operator.level)],
  ];
}
