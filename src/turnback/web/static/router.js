// Addresses: which view each shows, also below a path of a reverse proxy. Links inside the page change the address without a reload.

/** The path below which everything is. */
export const root = new URL("..", import.meta.url).pathname;

let render = null;

/** The address of a route: `to("jobs", name, "state")`. */
export function to(...segments) {
  return root + segments.map(encodeURIComponent).join("/");
}

/** Parameters as a query, those without a value left out. */
export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length === 0 ? "" : `?${new URLSearchParams(given)}`;
}

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
export function setQuery(parameters) {
  history.replaceState(null, "", location.pathname + query(parameters));
}

function draw() {
  render(segments(location.pathname), new URLSearchParams(location.search));
}

function segments(pathname) {
  if (!pathname.startsWith(root)) return null;
  try {
    return pathname.slice(root.length).split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return null;
  }
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
