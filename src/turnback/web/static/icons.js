// Icons, drawn on a grid of 16 by 16 with one stroke.

import { svg } from "./dom.js";

const SHAPES = {
  play: "M5 3.5v9l7.5-4.5z",
  check: "M3 8.5l3.2 3.2L13 5",
  cross: "M4 4l8 8M12 4l-8 8",
  stop: "M4.5 4.5h7v7h-7z",
  restart: "M3.2 6.2A5.3 5.3 0 1 1 2.8 9M3 2.8v3.6h3.6",
  question: "M5.8 6a2.3 2.3 0 1 1 3.4 2c-.8.5-1.2.9-1.2 1.7M8 12.4v.1",
  warning: "M8 2.5l6 10.7H2zM8 6.6v3M8 11.4v.1",
  clock: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3.2l2 1.3",
  copy: "M6 6h7v7H6zM3 10V3h7",
  search: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM10 10l3.5 3.5",
  sun: "M8 5.3a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4zM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
  moon: "M13 9.6A5.5 5.5 0 0 1 6.4 3 5.5 5.5 0 1 0 13 9.6z",
  screen: "M2.5 3.5h11v7.5h-11zM6 13.5h4",
  key: "M10.5 2.8a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4zM8.6 7.4L3 13M5 11l1.5 1.5",
  right: "M6 3.5L10.5 8 6 12.5",
  left: "M10 3.5L5.5 8 10 12.5",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  save: "M8 2.5v7M5 6.8l3 3 3-3M3 12.8h10",
  lock: "M4 7.5h8v5.5H4zM5.5 7.5V5.5a2.5 2.5 0 0 1 5 0v2",
};

/** An icon; it says nothing to a screen reader, the text beside it does. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: SHAPES[name] }));
}
