// Talks to the server.

import * as address from "./address.js";

const TOKEN = "turnback.token";
const PATIENCE_MS = 30_000;

/** What the server refused, or that it could not be reached (`status` 0). */
export class ApiError extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

let typed = null;

/** The token that was typed into the page, if any. */
export function token() {
  try {
    return sessionStorage.getItem(TOKEN) ?? typed;
  } catch {
    return typed;
  }
}

/** Keeps a token for as long as the tab is open; null forgets it. */
export function keepToken(value) {
  typed = value;
  try {
    if (value === null) sessionStorage.removeItem(TOKEN);
    else sessionStorage.setItem(TOKEN, value);
  } catch {
    // Without storage the token lasts until the page is left.
  }
}

/** Reads: `get(["jobs", name, "state"], {snapshot: "chk-7"})`. */
export function get(segments, parameters, signal) {
  return send(address.api(segments, parameters), { signal });
}

/** Asks for something to be done. */
export function post(segments, body) {
  return send(address.api(segments), {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Turnback": "1" },
  });
}

async function send(url, options) {
  const headers = { Accept: "application/json", ...options.headers };
  const key = token();
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  const limit = AbortSignal.timeout(PATIENCE_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  let response;
  let content;
  try {
    response = await fetch(url, { ...options, headers, signal, credentials: "same-origin" });
    content = await response.text();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The dashboard's server does not answer.");
  }
  return read(response, content);
}

function read(response, content) {
  let document = null;
  try {
    document = JSON.parse(content);
  } catch {
    if (response.ok) throw new ApiError(response.status, "unreadable", "The server answered with something that is not JSON.");
  }
  if (response.ok) return document;
  const error = document?.error;
  throw new ApiError(
    response.status,
    error?.kind ?? "error",
    error?.message ?? `The server answered ${response.status} ${response.statusText}`.trim(),
  );
}
