// Charts over checkpoints, drawn by uPlot: panels one above the other that share the checkpoints and a tooltip.
/* global uPlot */

import { h } from "./dom.js";
import { legend, tooltip } from "./parts.js";

const AXIS = { left: 64, right: 12, bottom: 24 };
const NARROWEST = 5;
const WIDEST = 28;
const FONT = "12px system-ui, sans-serif"; // uPlot makes only whole pixels larger on a fine screen
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500];

/** Steps of an axis whose round numbers are powers of 2. */
export const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);

/**
 * A chart with its legend.
 *
 * @param label for screen readers
 * @param panels `{height, format, steps?, total?, series}`; series are `{name, kind: "bar"|"line", look, value(row)}`, and bars of
 *   one panel stand on each other; `total(row)` is the tooltip's first line
 * @param title (row) => of the tooltip; failure(row) => why a checkpoint failed, null if it did not
 */
export function chart({ label, panels, title, failure }) {
  const colours = legend([...panels.flatMap((panel) => panel.series.map(({ name, look }) => [name, look])), ["failed", "look-failed"]]);
  const note = h("p", { class: "hint chart-note" });
  const box = h("div", {
    class: "chart", tabindex: "0", role: "group", "aria-label": `${label}. Arrow keys go through the checkpoints.`, onkeydown: move, onblur: () => point(null),
  });
  const tip = tooltip(box);
  const observer = new ResizeObserver(draw);
  observer.observe(box);
  document.addEventListener("colours", draw);
  let all = [];
  let rows = [];
  let plots = [];
  let chosen = null;

  // A canvas needs plain colours: they are read off the legend and the box, whose style follows the theme.
  const colour = (look) => getComputedStyle(colours.querySelector(`.${look}`)).backgroundColor;
  const ink = () => getComputedStyle(box).color;
  const gridColour = () => getComputedStyle(box).borderTopColor;

  function move(event) {
    const last = rows.length - 1;
    const from = chosen ?? last + 1;
    const moves = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, Escape: null };
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(moves[event.key] && Math.min(Math.max(moves[event.key], 0), last));
  }

  // Moves the cursor of every panel, and the tooltip, to a row.
  function point(index) {
    chosen = index;
    for (const plot of plots) plot.setCursor({ left: index === null ? -10 : plot.valToPos(index, "x"), top: 0 });
    if (index === null) tip.hide();
    else tip.show(title(rows[index]), tipLines(rows[index]), AXIS.left + plots[0].valToPos(index, "x"));
  }

  function tipLines(row) {
    const lines = panels.flatMap(({ total, format, series }) => [
      ...(total ? [["total", format(total(row)), ""]] : []), ...series.map(({ name, value, look }) => [name, format(value(row)), look]),
    ]);
    return failure(row) === null ? lines : [...lines, ["failed", failure(row), "look-failed"]];
  }

  function draw() {
    const width = box.clientWidth;
    const room = width - AXIS.left - AXIS.right;
    if (room <= 0 || all.length === 0) return;
    rows = all.slice(-Math.floor(room / NARROWEST));
    if (plots.length === 0) plots = panels.map((panel, at) => create(panel, at === panels.length - 1));
    plots.forEach((plot, at) => {
      plot.setSize({ width, height: plot.height });
      plot.setData([rows.map((_, index) => index), ...stacked(panels[at].series)]);
    });
    note.textContent = rows.length < all.length ? `The newest ${rows.length} of ${all.length} checkpoints.` : "";
    if (chosen !== null) point(Math.min(chosen, rows.length - 1));
  }

  // Every bar reaches down to zero; those below it come later and are drawn over it.
  function stacked(series) {
    return series.map(({ kind, value }, at) => rows.map((row) => (kind === "line" || value(row) === null
      ? value(row)
      : series.slice(0, at + 1).reduce((sum, below) => sum + (below.value(row) ?? 0), 0)))).reverse();
  }

  function create({ height, format, steps, series }, last) {
    const axis = { stroke: ink, font: FONT, ticks: { show: false } };
    return new uPlot({
      width: box.clientWidth,
      height: height + (last ? AXIS.bottom : 0),
      padding: [8, AXIS.right, last ? 0 : 8, 0],
      legend: { show: false },
      scales: {
        x: { time: false, range: (plot) => [-0.5, Math.max(rows.length, (plot.width - AXIS.left - AXIS.right) / WIDEST) - 0.5] },
        y: { range: (plot, least, most) => [0, Math.max(most, 1) * 1.05] },
      },
      axes: [
        { ...axis, show: last, size: AXIS.bottom, space: 90, incrs: WHOLE, grid: { show: false }, values: (plot, splits) => splits.map(nameAt) },
        { ...axis, size: AXIS.left, space: 30, incrs: steps, grid: { stroke: gridColour, width: 1 }, values: (plot, splits) => splits.map(format) },
      ],
      series: [{}, ...series.map(lookOf).reverse()],
      cursor: {
        y: false, points: { show: false }, drag: { x: false, y: false },
        move: (plot, left, top) => [left < 0 ? left : plot.valToPos(plot.posToIdx(left), "x"), top],
      },
      hooks: { draw: [markFailures], ready: [listen] },
    }, [[]], box);
  }

  function nameAt(index) {
    const number = rows[index]?.number ?? null;
    return number === null ? "" : `chk-${number}`;
  }

  function lookOf({ kind, look }) {
    if (kind === "bar") return { fill: () => colour(look), width: 0, paths: uPlot.paths.bars({ size: [1, WIDEST], gap: 1 }), points: { show: false } };
    return {
      stroke: () => colour(look), fill: () => colour(look).replace("rgb(", "rgba(").replace(")", ", 0.14)"), width: 2, spanGaps: true,
      points: { show: (plot) => plot.data[0].length === 1, fill: () => colour(look) },
    };
  }

  function markFailures({ ctx, bbox, valToPos }) {
    ctx.save();
    ctx.fillStyle = colour("look-failed");
    ctx.font = `bold ${14 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    rows.forEach((row, index) => {
      if (failure(row) !== null) ctx.fillText("×", valToPos(index, "x", true), bbox.top + bbox.height - 3 * devicePixelRatio);
    });
    ctx.restore();
  }

  function listen(plot) {
    plot.over.addEventListener("pointermove", (event) => point(plot.posToIdx(event.offsetX)));
    plot.over.addEventListener("pointerleave", () => point(null));
  }

  return {
    node: h("div", null, colours, box, note),
    show: (given) => {
      all = given;
      draw();
    },
    stop: () => {
      observer.disconnect();
      document.removeEventListener("colours", draw);
      for (const plot of plots) plot.destroy();
    },
  };
}
