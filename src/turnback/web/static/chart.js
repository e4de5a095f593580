// Charts over checkpoints: panels one above the other that share the checkpoints and a tooltip.

import { attribute, h, replace, svg } from "./dom.js";

const MARGIN = { left: 68, right: 12, top: 10, bottom: 22 };
const GAP = 18;
const PITCH = 5;
const WIDEST = 28;

/**
 * A chart.
 *
 * @param label for screen readers
 * @param panels `{height, format, ticks, series: [{name, kind: "bar"|"line", look, value(row)}]}`;
 *   bars of one panel stand on each other
 * @param lines (row) => [[name, text, look?]] for the tooltip
 * @param caption (row) => string under the axis; failed(row) => whether to mark it
 */
export function chart({ label, panels, lines, caption, failed }) {
  const height = MARGIN.top + panels.reduce((sum, panel) => sum + panel.height + GAP, -GAP) + MARGIN.bottom;
  const layers = { grid: svg("g"), marks: svg("g"), cursor: svg("rect", { class: "chart-cursor", visibility: "hidden" }) };
  const picture = svg("svg", { class: "chart-svg", height, role: "img", "aria-label": label }, layers.cursor, layers.grid, layers.marks);
  const tip = h("div", { class: "tip", hidden: true, role: "status" });
  const shown = h("p", { class: "hint chart-note" });
  const box = h("div", {
    class: "chart", tabindex: "0", "aria-label": `${label}. Arrow keys go through the checkpoints.`, role: "group",
    onpointermove: (event) => point(at(event)), onpointerleave: () => point(null), onblur: () => point(null), onkeydown: key,
  }, picture, tip);
  let all = [];
  let rows = [];
  let step = PITCH;
  let chosen = null;
  const observer = new ResizeObserver(() => draw());
  observer.observe(box);

  const left = (index) => MARGIN.left + index * step;

  function at(event) {
    const x = event.clientX - picture.getBoundingClientRect().left - MARGIN.left;
    const index = Math.floor(x / step);
    return index >= 0 && index < rows.length ? index : null;
  }

  function key(event) {
    const last = rows.length - 1;
    const from = chosen ?? last + 1;
    const moves = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last };
    if (event.key === "Escape") point(null);
    else if (event.key in moves) point(Math.min(Math.max(moves[event.key], 0), last));
    else return;
    event.preventDefault();
  }

  function point(index) {
    chosen = index;
    const row = index === null ? undefined : rows[index];
    attribute(layers.cursor, "visibility", row ? "visible" : "hidden");
    tip.hidden = row === undefined;
    if (row === undefined) return;
    attribute(layers.cursor, "x", left(index));
    attribute(layers.cursor, "width", step);
    replace(tip, h("p", { class: "tip-title" }, caption(row)),
      lines(row).map(([name, value, look]) => h("p", { class: "tip-line" }, h("span", { class: look ? `swatch ${look}` : "swatch" }), h("span", null, name), h("span", { class: "tip-value" }, value))));
    const middle = left(index) + step / 2;
    tip.style.left = `${Math.min(Math.max(middle - tip.offsetWidth / 2, 0), Math.max(box.clientWidth - tip.offsetWidth, 0))}px`;
  }

  function draw() {
    const width = box.clientWidth;
    if (width === 0) return;
    const room = width - MARGIN.left - MARGIN.right;
    rows = all.slice(-Math.max(Math.floor(room / PITCH), 1));
    step = Math.min(room / Math.max(rows.length, 1), WIDEST);
    attribute(picture, "width", width);
    attribute(layers.cursor, "y", MARGIN.top);
    attribute(layers.cursor, "height", height - MARGIN.top - MARGIN.bottom);
    replace(layers.grid);
    replace(layers.marks);
    let top = MARGIN.top;
    panels.forEach((panel) => {
      drawPanel(panel, top, width);
      top += panel.height + GAP;
    });
    drawAxis(top - GAP);
    shown.textContent = rows.length < all.length ? `The newest ${rows.length} of ${all.length} checkpoints.` : "";
    if (chosen !== null) point(Math.min(chosen, rows.length - 1));
  }

  function drawPanel(panel, top, width) {
    const stack = (row) => panel.series.filter((one) => one.kind === "bar").reduce((sum, one) => sum + (one.value(row) ?? 0), 0);
    const peak = (row) => Math.max(stack(row), ...panel.series.filter((one) => one.kind === "line").map((one) => one.value(row) ?? 0));
    const ticks = panel.ticks(Math.max(...rows.map(peak), 0));
    const ceiling = ticks.at(-1);
    const y = (value) => top + panel.height - (value / ceiling) * panel.height;
    for (const tick of ticks) {
      layers.grid.append(svg("line", { class: "chart-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        svg("text", { class: "chart-text", x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, panel.format(tick)));
    }
    rows.forEach((row, index) => {
      let base = 0;
      for (const one of panel.series) {
        const value = one.value(row);
        if (one.kind !== "bar" || !value) continue;
        layers.marks.append(bar(one.look, index, y(base + value), y(base)));
        base += value;
      }
      if (failed(row)) layers.marks.append(cross(left(index) + step / 2, top + panel.height - 7));
    });
    for (const one of panel.series) if (one.kind === "line") drawLine(one, y);
  }

  function bar(look, index, from, to) {
    const inset = step > 8 ? 1.5 : 0.5;
    return svg("rect", { class: look, x: left(index) + inset, width: step - 2 * inset, y: from, height: Math.max(to - from, 0.75) });
  }

  function drawLine(one, y) {
    const points = rows.flatMap((row, index) => {
      const value = one.value(row);
      return value === null ? [] : [[left(index) + step / 2, y(value)]];
    });
    if (points.length === 0) return;
    const joined = points.map((pair) => pair.map((part) => part.toFixed(1)).join(" ")).join("L");
    layers.marks.append(
      svg("path", { class: `${one.look} is-area`, d: `M${points[0][0].toFixed(1)} ${y(0)}L${joined}L${points.at(-1)[0].toFixed(1)} ${y(0)}Z` }),
      svg("path", { class: `${one.look} is-line`, d: `M${joined}` }));
    if (points.length === 1) layers.marks.append(svg("circle", { class: `${one.look} is-line`, cx: points[0][0], cy: points[0][1], r: 2.5 }));
  }

  function drawAxis(bottom) {
    const every = Math.max(Math.ceil(96 / step), 1);
    rows.forEach((row, index) => {
      if (index % every !== 0 || row.number === null || left(index) > MARGIN.left + rows.length * step - 24) return;
      layers.grid.append(svg("text", { class: "chart-text", x: left(index), y: bottom + 16 }, `chk-${row.number}`));
    });
  }

  return {
    node: h("div", null, box, shown),
    show: (given) => {
      all = given;
      draw();
    },
    stop: () => observer.disconnect(),
  };
}

function cross(x, y) {
  return svg("path", { class: "chart-failed", d: `M${x - 3} ${y - 3}l6 6M${x + 3} ${y - 3}l-6 6` });
}

/** Up to five round numbers from 0 to at least `most`. */
export function decimalTicks(most) {
  return ticks(most, [1, 2, 5], 10);
}

/** The same for bytes, whose round numbers are powers of 2. */
export function binaryTicks(most) {
  return ticks(Math.max(most, 16), [1, 2, 4], 8);
}

function ticks(most, rounds, base) {
  const rough = Math.max(most, 1e-3) / 4;
  let power = base ** Math.floor(Math.log(rough) / Math.log(base));
  if (power > rough) power /= base;
  const step = power * (rounds.find((round) => round * power >= rough) ?? base);
  return Array.from({ length: Math.ceil(most / step) || 1 }, (_, at) => at + 1).reduce((list, at) => [...list, at * step], [0]);
}
