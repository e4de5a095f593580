// A small line without axes.

import { attribute, svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 28;

/** A line; `show(samples)` draws it. */
export function sparkline(label) {
  const area = svg("path", { class: "spark-area" });
  const line = svg("path", { class: "spark-line" });
  const node = svg("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label,
  }, area, line);

  function show(samples) {
    if (samples.length < 2) {
      attribute(line, "d", null);
      attribute(area, "d", null);
      return;
    }
    const first = samples[0].at;
    const span = Math.max(samples.at(-1).at - first, 1);
    const top = Math.max(...samples.map((sample) => sample.value), 1e-9);
    const points = samples.map((sample) => {
      const x = ((sample.at - first) / span) * WIDTH;
      const y = HEIGHT - 2 - (sample.value / top) * (HEIGHT - 5);
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    attribute(line, "d", `M${points.join("L")}`);
    attribute(area, "d", `M0 ${HEIGHT}L${points.join("L")}L${WIDTH} ${HEIGHT}Z`);
  }

  return { node, show };
}
