// The operators of a job and how data flows between them.

import { attribute, h, reconcile, replace, svg, text, uniqueId } from "./dom.js";
import { bytes, compact, exactBytes, exactTime, NOTHING, number, time } from "./format.js";
import { icon } from "./icons.js";
import { layOut } from "./layers.js";

const NODE = { width: 200, height: 134 };
const ACROSS = { along: 60, beside: 22 };
const DOWN = { along: 52, beside: 16 };
const DUMMY = 26;
const PAD = 16;
const NARROW = 640;
const SMALLEST = 0.8;

/** The graph; `show(operators)` draws it. */
export function graph() {
  const arrow = uniqueId("arrow");
  const lines = svg("g");
  const picture = svg("svg", { class: "graph-lines", "aria-hidden": "true" },
    svg("defs", null, svg("marker", { id: arrow, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, svg("path", { d: "M0 0.5L7.5 4L0 7.5z" }))),
    lines);
  const nodes = h("div", { class: "graph-nodes" });
  const stage = h("div", { class: "graph-stage" }, picture, nodes);
  const box = h("div", { class: "graph-box", role: "group", "aria-label": "Graph of operators" }, stage);
  const panel = h("div", { class: "graph-detail", hidden: true, "aria-live": "polite" });
  let operators = [];
  let chosen = null;
  let drawn = "";

  const observer = new ResizeObserver(() => draw());
  observer.observe(box);

  function draw() {
    if (operators.length === 0 || box.clientWidth === 0) return;
    const down = box.clientWidth < NARROW;
    const shape = JSON.stringify([box.clientWidth, operators.map(({ uid, inputs, key }) => [uid, inputs, key])]);
    reconcile(nodes, operators, (operator) => operator.uid, (operator) => card(operator, () => choose(operator.uid)), updateCard);
    if (shape !== drawn) {
      drawn = shape;
      place(down);
    }
    mark();
  }

  function place(down) {
    const plan = positions(layOut(operators), down);
    // A graph that is a little too wide is made smaller, a bigger one scrolls.
    const scale = Math.min(box.clientWidth / plan.width, 1);
    stage.style.zoom = scale < SMALLEST ? 1 : scale;
    stage.style.width = `${plan.width}px`;
    stage.style.height = `${plan.height}px`;
    box.scrollLeft = down ? (plan.width - box.clientWidth) / 2 : 0;
    attribute(picture, "width", plan.width);
    attribute(picture, "height", plan.height);
    for (const node of nodes.children) {
      const at = plan.at.get(node.itemKey);
      node.style.left = `${at.x}px`;
      node.style.top = `${at.y}px`;
    }
    const keys = new Map(operators.map((operator) => [operator.uid, operator.key]));
    replace(lines, plan.edges.map((edge) => line(edge, keys.get(edge.to), arrow, down)));
  }

  function choose(uid) {
    chosen = chosen === uid ? null : uid;
    mark();
  }

  function mark() {
    for (const node of nodes.children) attribute(node, "aria-expanded", String(node.itemKey === chosen));
    const operator = operators.find((other) => other.uid === chosen);
    panel.hidden = operator === undefined;
    if (operator !== undefined) detail(panel, operator, operators);
  }

  return {
    node: h("div", null, box, panel),
    show: (given) => {
      operators = given;
      draw();
    },
    stop: () => observer.disconnect(),
  };
}

// Positions along the flow and beside it; drawn across or, where it is narrow, down.
function positions({ layers, edges }, down) {
  const gap = down ? DOWN : ACROSS;
  const [long, broad] = down ? [NODE.height, NODE.width] : [NODE.width, NODE.height];
  const size = (item) => (item.dummy ? DUMMY : broad);
  const extents = layers.map((layer) => layer.reduce((sum, item) => sum + size(item) + gap.beside, -gap.beside));
  const whole = Math.max(...extents);
  const spot = new Map();
  layers.forEach((layer, depth) => {
    let beside = PAD + (whole - extents[depth]) / 2;
    for (const item of layer) {
      spot.set(item, { along: PAD + depth * (long + gap.along), beside, size: size(item) });
      beside += size(item) + gap.beside;
    }
  });
  const point = (along, beside) => (down ? { x: beside, y: along } : { x: along, y: beside });
  const at = new Map();
  for (const [item, { along, beside }] of spot) if (!item.dummy) at.set(item.uid, point(along, beside));
  const length = 2 * PAD + layers.length * long + (layers.length - 1) * gap.along;
  const total = point(length, whole + 2 * PAD);
  return { at, width: total.x, height: total.y, edges: edges.map((edge) => bend(edge, spot, long, point)) };
}

function bend({ from, to, path }, spot, long, point) {
  const stops = [];
  path.forEach((item, index) => {
    const { along, beside, size } = spot.get(item);
    const middle = beside + size / 2;
    if (index > 0) stops.push({ along: along - (item.dummy ? 0 : 2), beside: middle });
    if (index < path.length - 1) stops.push({ along: along + long, beside: middle });
  });
  return { from, to, stops: stops.map(({ along, beside }) => ({ ...point(along, beside) })) };
}

function line({ stops }, key, arrow, down) {
  let d = `M${stops[0].x} ${stops[0].y}`;
  for (let at = 1; at < stops.length; at += 1) {
    const [a, b] = [stops[at - 1], stops[at]];
    const half = down ? (b.y - a.y) / 2 : (b.x - a.x) / 2;
    d += down
      ? `C${a.x} ${a.y + half} ${b.x} ${b.y - half} ${b.x} ${b.y}`
      : `C${a.x + half} ${a.y} ${b.x - half} ${b.y} ${b.x} ${b.y}`;
  }
  const parts = [svg("path", { class: key ? "edge is-keyed" : "edge", d, "marker-end": `url(#${arrow})` })];
  if (key) {
    const [a, b] = stops.slice(-2);
    const x = (a.x + b.x) / 2;
    const y = (a.y + b.y) / 2;
    parts.push(svg("g", { class: "edge-key", transform: `translate(${x - 10} ${y - 10})` },
      svg("title", null, `keyed by ${key}`), svg("circle", { cx: 10, cy: 10, r: 10 }),
      svg("path", { transform: "translate(3.6 3.6) scale(0.8)", d: "M10.5 2.8a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4zM8.6 7.4L3 13M5 11l1.5 1.5" })));
  }
  return svg("g", null, parts);
}

function card(operator, onclick) {
  return h("button", { class: "node", type: "button", onclick, "aria-expanded": "false" },
    h("span", { class: "node-kind" }, h("span"), h("span", { class: "node-parallelism", title: "Parallelism" })),
    h("span", { class: "node-name" }),
    h("span", { class: "node-uid" }),
    h("span", { class: "node-numbers" }, metric("in"), metric("out"), metric("state", "is-whole"), metric("watermark", "is-whole")));
}

function metric(label, look = "") {
  return h("span", { class: `node-number ${look}` }, h("span", { class: "node-label" }, label), h("span"));
}

function updateCard(node, operator) {
  const [kind, name, uid, numbers] = node.children;
  text(kind.firstChild, operator.kind);
  text(kind.lastChild, operator.parallelism === null ? "" : `× ${operator.parallelism}`);
  text(name, operator.name);
  attribute(name, "title", operator.name);
  text(uid, operator.uid);
  const values = [compact(operator.records_in), compact(operator.records_out), bytes(operator.state_bytes), watermark(operator)];
  const hidden = [operator.level < 0 && operator.inputs.length === 0, false, operator.state_bytes === null && operator.states.length === 0, operator.watermark_ms === null];
  values.forEach((value, at) => {
    text(numbers.children[at].lastChild, value);
    numbers.children[at].hidden = hidden[at];
  });
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

function detail(panel, operator, operators) {
  const names = new Map(operators.map((other) => [other.uid, other.name]));
  const pairs = [
    ["uid", operator.uid],
    ["Kind", operator.kind],
    ["Parallelism", operator.parallelism === null ? "as Spark reads it" : number(operator.parallelism)],
    ["Keyed by", operator.key ?? NOTHING],
    ["Reads from", operator.inputs.map((uid) => names.get(uid) ?? uid).join(", ") || NOTHING],
    ["States", operator.states.join(", ") || "none"],
    ["Records in", number(operator.records_in)],
    ["Records out", number(operator.records_out)],
    ["State size", operator.state_bytes === null ? NOTHING : `${bytes(operator.state_bytes)} (${exactBytes(operator.state_bytes)})`],
    ["Watermark", Math.abs(operator.watermark_ms ?? 0) > LAST_DATE ? watermark(operator) : exactTime(operator.watermark_ms) ?? NOTHING],
    ["Spark stage", operator.level < 0 ? "Spark reads it alone" : number(operator.level)],
  ];
  if (panel.firstChild === null) {
    replace(panel, h("div", { class: "graph-detail-head" }, icon("right"), h("h3")), h("dl", { class: "pairs" }));
  }
  text(panel.querySelector("h3"), operator.name);
  reconcile(panel.querySelector("dl"), pairs, ([what]) => what, ([what]) => h("div", null, h("dt", null, what), h("dd")),
    (pair, [, value]) => text(pair.lastChild, value));
}
