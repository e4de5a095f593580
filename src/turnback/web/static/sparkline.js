// Records per second of each job, lately, and a small line that shows them.

import { attribute, svg } from "./dom.js";
import { now } from "./format.js";

const MOST = 90;
const APART_MS = 1500;
const WIDTH = 120;
const HEIGHT = 28;
const rates = new Map();

/** Remembers the rate of a job. */
export function recordRate({ name, records_per_s: value }) {
  if (value === null || value === undefined) return;
  if (!rates.has(name)) rates.set(name, []);
  const samples = rates.get(name);
  const at = now();
  if (samples.length > 0 && at - samples.at(-1).at < APART_MS) return;
  samples.push({ at, value });
  if (samples.length > MOST) samples.shift();
}

/** Puts what a job did before the page was opened in front of what was seen. */
export function recallRates(name, points) {
  const samples = rates.get(name) ?? [];
  const first = samples[0]?.at ?? Infinity;
  const earlier = points.filter((point) => point.start_ms < first).map((point) => ({ at: point.start_ms, value: point.in_per_s }));
  rates.set(name, [...earlier, ...samples].slice(-MOST));
}

/** A line without axes; `draw()` brings it up to date. */
export function sparkline(name) {
  const area = svg("path", { class: "spark-area" });
  const line = svg("path", { class: "spark-line" });
  const node = svg("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Records per second of ${name}, lately`,
  }, area, line);

  function draw() {
    const samples = rates.get(name) ?? [];
    if (samples.length < 2) return;
    const first = samples[0].at;
    const span = Math.max(samples.at(-1).at - first, 1);
    const top = Math.max(...samples.map((sample) => sample.value), 1e-9);
    const points = samples.map((sample) => {
      const x = ((sample.at - first) / span) * WIDTH;
      const y = HEIGHT - 2 - (sample.value / top) * (HEIGHT - 5);
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    }).join("L");
    attribute(line, "d", `M${points}`);
    attribute(area, "d", `M0 ${HEIGHT}L${points}L${WIDTH} ${HEIGHT}Z`);
  }

  return { node, draw };
}
