// Talks to the server, and knows what it says of itself.

import { setServerTime } from "./format.js";
import { query, root } from "./router.js";

const TOKEN = "turnback.token";
const TIMEOUT_MS = 30_000;

/** What the server refused, or that it could not be reached (`status` 0). */
export class ApiError extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

/** The token that was typed into the page, if any. */
export let token = null;
try {
  token = sessionStorage.getItem(TOKEN);
} catch {
  // Without storage a token lasts until the page is left.
}

/** Keeps a token for as long as the tab is open; null forgets it. */
export function keepToken(value) {
  token = value;
  try {
    if (value === null) sessionStorage.removeItem(TOKEN);
    else sessionStorage.setItem(TOKEN, value);
  } catch {
    // As above.
  }
}

/** Reads: `get(["jobs", name, "state"], {snapshot: "chk-7"})`. */
export function get(segments, parameters = {}, signal = undefined) {
  return send(segments, parameters, { signal });
}

/** Asks for something to be done, which may take up to `limit` ms. */
export function post(segments, body, limit = TIMEOUT_MS) {
  return send(segments, {}, {
    limit,
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Turnback": "1" },
  });
}

/** The address of something in the API. */
export function address(segments, parameters = {}) {
  return `${root}api/v1/${segments.map(encodeURIComponent).join("/")}${query(parameters)}`;
}

async function send(segments, parameters, { limit = TIMEOUT_MS, ...options }) {
  const url = address(segments, parameters);
  const headers = { Accept: "application/json", ...options.headers };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  const timeout = AbortSignal.timeout(limit);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  let response;
  let content;
  try {
    response = await fetch(url, { ...options, headers, signal, credentials: "same-origin" });
    content = await response.text();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The dashboard's server does not respond.");
  }
  let document = null;
  try {
    document = JSON.parse(content);
  } catch {
    if (response.ok) throw new ApiError(response.status, "unreadable", "The server's response is not JSON.");
  }
  if (response.ok) return document;
  const message = document?.error?.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
  throw new ApiError(response.status, document?.error?.kind ?? "error", message);
}

const listeners = new Set();

/** What the server last said of itself; null before the first answer. */
export let about = null;

/** Asks the server what it serves, and what this page may do. */
export async function loadAbout(signal) {
  about = await get(["about"], {}, signal);
  setServerTime(about.now_ms);
  for (const listener of [...listeners]) listener(about);
  return about;
}

/** Calls back with every such answer, at once if there is one; returns how to end that. */
export function onAbout(listener) {
  listeners.add(listener);
  if (about !== null) listener(about);
  return () => listeners.delete(listener);
}
