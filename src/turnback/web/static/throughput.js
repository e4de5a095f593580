// How fast a job was: lines over time, also from before the page was opened.
/* global uPlot */

import { get } from "./api.js";
import { h, text } from "./dom.js";
import { compact, exactTime, NOTHING, now, pad } from "./format.js";
import { poll } from "./live.js";
import { contentOr, empty, legend, tooltip } from "./parts.js";

const RANGES = [[30, "30 min", "The last 30 minutes"], [360, "6 h", "The last six hours"], [10_080, "7 d", "The last seven days"]];
const AXIS = { left: 56, right: 18, bottom: 26 };
const FONT = "12px system-ui, sans-serif"; // uPlot makes only whole pixels larger on a fine screen
const PANELS = [
  { height: 130, series: [["in", "look-full", (point) => point.in_per_s], ["out", "look-sync", (point) => point.out_per_s]], unit: "/s" },
  { height: 80, series: [["lag", "look-lag", (point) => point.lag]], unit: " records" },
];

/** The card, which stays up to date by itself; `onPoints` is called with the newest points. */
export function throughputCard(name, onPoints) {
  let minutes = RANGES[0][0];
  let points = [];
  let plots = [];
  let chosen = null;
  const colours = legend(PANELS.flatMap(({ series }) => series.map(([word, look]) => [word, look])));
  const box = h("div", {
    class: "chart", tabindex: "0", role: "group", "aria-label": "Records per second over time. Arrow keys go through the points.", onkeydown: move, onblur: () => point(null),
  });
  const tip = tooltip(box);
  const problem = h("p", { class: "hint", role: "status" });
  const content = contentOr(h("div", null, colours, box), empty("No data yet.", "The driver records its throughput every few seconds."));
  const buttons = RANGES.map(([length, words, title]) => h("button", { class: "chip-button", type: "button", title, "aria-pressed": String(length === minutes), onclick: () => choose(length) }, words));
  const observer = new ResizeObserver(draw);
  observer.observe(box);
  document.addEventListener("colours", draw);

  const colour = (look) => getComputedStyle(colours.querySelector(`.${look}`)).backgroundColor;

  const polling = poll({
    load: (signal) => get(["jobs", name, "throughput"], { minutes }, signal),
    show: (data) => {
      points = withGaps(data);
      text(problem, "");
      content.show(points.length > 0);
      if (minutes === RANGES[0][0]) onPoints(data.points);
      draw();
    },
    // That the server is away is said once, at the top of the page.
    fail: (error) => {
      if (error.status !== 0) text(problem, `Cannot load the throughput: ${error.message}`);
    },
    interval: 10_000,
  });

  function choose(length) {
    minutes = length;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(RANGES[at][0] === length)));
    point(null);
    polling.now();
  }

  function move(event) {
    const last = points.length - 1;
    const from = chosen ?? last + 1;
    const moves = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, Escape: null };
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(moves[event.key] && Math.min(Math.max(moves[event.key], 0), last));
  }

  function point(index) {
    chosen = index;
    const at = index === null ? null : points[index];
    for (const plot of plots) plot.setCursor({ left: at === null ? -10 : plot.valToPos(at.start_ms / 1000, "x"), top: 0 });
    if (at === null) tip.hide();
    else tip.show(exactTime(at.start_ms).split(".")[0], tipLines(at), AXIS.left + plots[0].valToPos(at.start_ms / 1000, "x"));
  }

  function tipLines(at) {
    return shown().flatMap(({ series, unit }) => series.map(([word, look, value]) => [word, value(at) === null ? NOTHING : `${compact(value(at))}${unit}`, look]));
  }

  // The lag has a panel where it is known.
  function shown() {
    return points.some((each) => each.lag !== null) ? PANELS : PANELS.slice(0, 1);
  }

  function draw() {
    const width = box.clientWidth;
    if (width === 0 || points.length === 0) return;
    const panels = shown();
    colours.lastChild.hidden = panels.length < PANELS.length;
    if (plots.length !== panels.length) {
      for (const plot of plots) plot.destroy();
      plots = panels.map((panel, at) => create(panel, at === panels.length - 1));
    }
    const times = points.map((each) => each.start_ms / 1000);
    plots.forEach((plot, at) => {
      plot.setSize({ width, height: plot.height });
      plot.setData([times, ...panels[at].series.map(([, , value]) => points.map(value))]);
    });
    if (chosen !== null) point(Math.min(chosen, points.length - 1));
  }

  function create({ height, series }, last) {
    const axis = { stroke: () => getComputedStyle(box).color, font: FONT, ticks: { show: false } };
    return new uPlot({
      width: box.clientWidth,
      height: height + (last ? AXIS.bottom : 0),
      padding: [8, AXIS.right, last ? 0 : 8, 0],
      legend: { show: false },
      scales: {
        x: { time: true, range: () => [now() / 1000 - minutes * 60, now() / 1000] },
        y: { range: (plot, least, most) => [0, Math.max(most ?? 0, 1) * 1.08] },
      },
      axes: [
        { ...axis, show: last, size: AXIS.bottom, space: 64, grid: { show: false }, values: (plot, splits) => splits.map(clock) },
        { ...axis, size: AXIS.left, space: 32, grid: { stroke: () => getComputedStyle(box).borderTopColor, width: 1 }, values: (plot, splits) => splits.map((split) => compact(split)) },
      ],
      series: [{}, ...series.map(([, look]) => ({
        stroke: () => colour(look), fill: () => colour(look).replace("rgb(", "rgba(").replace(")", ", 0.1)"), width: 1.8,
        points: { show: (plot) => plot.data[0].length < 3, fill: () => colour(look) },
      }))],
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      hooks: { ready: [listen] },
    }, [[]], box);
  }

  // The day where it begins, in the view of a week.
  function clock(seconds) {
    const at = new Date(seconds * 1000);
    const midnight = at.getHours() === 0 && at.getMinutes() === 0 && minutes > 1440;
    return midnight ? `${pad(at.getMonth() + 1)}-${pad(at.getDate())}` : `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  }

  function listen(plot) {
    plot.over.addEventListener("pointermove", (event) => point(points.length > 0 ? plot.posToIdx(event.offsetX) : null));
    plot.over.addEventListener("pointerleave", () => point(null));
  }

  return {
    node: h("section", { class: "card throughput" },
      h("div", { class: "card-head" }, h("h2", null, "Throughput"), h("div", { class: "row", role: "group", "aria-label": "Period" }, buttons)),
      problem, content.node),
    stop: () => {
      polling.stop();
      observer.disconnect();
      document.removeEventListener("colours", draw);
      for (const plot of plots) plot.destroy();
    },
  };
}

// Where the job did not run, the line is interrupted.
function withGaps({ points, step_ms: step }) {
  return points.flatMap((each, at) => {
    const before = points[at - 1];
    if (before === undefined || each.start_ms - before.start_ms <= step) return [each];
    return [{ start_ms: before.start_ms + step, in_per_s: null, out_per_s: null, lag: null }, each];
  });
}
