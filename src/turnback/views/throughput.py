"""How fast a job was, minutes and days ago."""

from __future__ import annotations

from turnback.job.throughput import condense, read_throughput, width_at
from turnback.storage.base import Storage
from turnback.views.model import View


class ThroughputPoint(View, frozen=True, kw_only=True):
    """What a job did in some seconds or minutes.

    Attributes:
        start_ms: When these begin, by the driver's clock.
        in_per_s: Elements that the sources gave in a second, on average.
        out_per_s: Elements that the sinks were given.
        lag: Records that the sources had not processed at the end; None if that was not known.
    """

    start_ms: int
    in_per_s: float
    out_per_s: float
    lag: int | None = None


class ThroughputHistory(View, frozen=True, kw_only=True):
    """How fast a job was, also before this attempt and before this driver.

    Elements that a restart has processed again are counted again.

    Attributes:
        step_ms: How long the time of each point is.
        points: Oldest first, without times in which the job did not run.
    """

    step_ms: int
    points: tuple[ThroughputPoint, ...] = ()


def throughput_history(
    storage: Storage, job_id: str, minutes: int, now_ms: int
) -> ThroughputHistory:
    """Return how fast a job was in the last minutes; raises as `read_throughput` does."""
    since = now_ms - minutes * 60_000
    step = width_at(minutes * 60_000 - 1)
    buckets = condense(read_throughput(storage, job_id), now_ms, step)
    points = tuple(
        ThroughputPoint(
            start_ms=each.start_ms,
            in_per_s=round(each.records_in * 1000 / each.span_ms, 2),
            out_per_s=round(each.records_out * 1000 / each.span_ms, 2),
            lag=each.lag,
        )
        for each in buckets
        if each.start_ms > since - step
    )
    return ThroughputHistory(step_ms=step, points=points)
