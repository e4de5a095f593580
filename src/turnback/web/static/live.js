// Keeps a view up to date: asks again and again, less often while the server is away.

import { ApiError } from "./api.js";
import * as connection from "./connection.js";

const SLOWEST_MS = 30_000;

export class Live {
  /**
   * @param load (signal) => Promise of the data
   * @param show called with the data
   * @param fail called with the error, once per failure
   * @param interval between two loads, in ms
   */
  constructor({ load, show, fail, interval = 2000 }) {
    this.load = load;
    this.show = show;
    this.fail = fail;
    this.interval = interval;
    this.failures = 0;
    this.timer = null;
    this.flight = null;
    this.stopped = false;
    this.onVisible = () => {
      if (!document.hidden) this.now();
    };
    document.addEventListener("visibilitychange", this.onVisible);
    this.retry = () => this.now();
    connection.onRetry(this.retry);
    this.now();
  }

  /** Loads at once, instead of what is under way or planned. */
  async now() {
    if (this.stopped) return;
    clearTimeout(this.timer);
    this.flight?.abort();
    const flight = new AbortController();
    this.flight = flight;
    try {
      const data = await this.load(flight.signal);
      if (flight.signal.aborted) return;
      this.succeeded(data);
    } catch (error) {
      if (flight.signal.aborted) return;
      this.failed(error);
    }
    this.plan();
  }

  succeeded(data) {
    this.failures = 0;
    connection.here();
    this.show(data);
  }

  failed(error) {
    this.failures += 1;
    if (!(error instanceof ApiError)) console.error(error);
    if (error.status === 0) connection.away(this.delay());
    else if (error instanceof ApiError) connection.here();
    this.fail(error);
  }

  delay() {
    return Math.min(this.interval * 2 ** Math.min(this.failures, 8), SLOWEST_MS);
  }

  plan() {
    if (this.stopped || document.hidden) return;
    this.timer = setTimeout(() => this.now(), this.failures ? this.delay() : this.interval);
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.flight?.abort();
    document.removeEventListener("visibilitychange", this.onVisible);
    connection.offRetry(this.retry);
  }
}
