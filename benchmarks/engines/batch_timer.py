"""The stopwatch of all Spark-based engines: Spark's own duration of each trigger."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from benchmarks.saved import Span

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class BatchTimer(StreamingQueryListener):
    """Collects the wall time of every batch that had input, offsets and commit included.

    Turnback runs inside a streaming query too, so it is timed from outside by the same clock.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.spans: list[Span] = []
        self.observed: list[Row] = []
        self._terminated = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        if progress.numInputRows > 0:
            seconds = progress.durationMs["triggerExecution"] / 1000
            start = datetime.fromisoformat(progress.timestamp).timestamp()
            self.seconds.append(seconds)
            self.spans.append(Span(start, start + seconds, progress.numInputRows))
            self.observed.extend(progress.observedMetrics.values())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._terminated.set()

    def wait(self) -> None:
        """Return when the events of the finished query, which arrive late, are all in."""
        if not self._terminated.wait(timeout=60):
            raise TimeoutError("Spark did not report the end of the query within 60 s")
