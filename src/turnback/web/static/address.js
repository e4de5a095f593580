// Where the page lives, also below a path of a reverse proxy.

const root = new URL("..", import.meta.url).pathname;

/** The address of a route: `to("jobs", name, "state")`. */
export function to(...segments) {
  return root + segments.map(encodeURIComponent).join("/");
}

/** The address of something in the API. */
export function api(segments, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const search = query.toString();
  return `${root}api/v1/${segments.map(encodeURIComponent).join("/")}${search && `?${search}`}`;
}

/** The segments of an address of ours, decoded; null if it is not a proper one. */
export function segments(pathname) {
  if (!pathname.startsWith(root)) return null;
  try {
    return pathname.slice(root.length).split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return null;
  }
}
