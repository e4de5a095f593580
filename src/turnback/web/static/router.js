// Which view an address shows. Links inside the page change the address without a reload.

import { segments } from "./address.js";

let render = null;

/** Starts: `show(segments, query)` is called for every address; segments are null for a bad one. */
export function start(show) {
  render = show;
  addEventListener("popstate", draw);
  document.addEventListener("click", follow);
  draw();
}

/** Goes to an address of ours. */
export function go(address) {
  history.pushState(null, "", address);
  draw();
  scrollTo(0, 0);
}

/** Changes the query of the address, without a new entry in the history. */
export function note(parameters) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  history.replaceState(null, "", url);
}

function draw() {
  render(segments(location.pathname), new URLSearchParams(location.search));
}

function follow(event) {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (link === null || link.target || link.origin !== location.origin) return;
  if (link.hash || segments(link.pathname) === null || link.hasAttribute("download")) return;
  event.preventDefault();
  go(link.href);
}
