"""Spark counting per key and window: its own `window`, or `transformWithState` with timers.

A window comes out in the batch after the one with which the watermark has passed its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.engines import arguments, spark_query
from benchmarks.window_dataset import DISORDER_MS, SPARK_SCHEMA, WINDOW_MS, WindowDataset

OWN = "spark-window"
STATEFUL = "spark-transform-with-state"
DELAY = f"{DISORDER_MS} milliseconds"
SIZE = f"{WINDOW_MS} milliseconds"


class Count(StatefulProcessor):
    """Per record one read and one update of a count per window, and a timer for its end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.counts = handle.getMapState("counts", "end bigint", "n bigint")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        for row in rows:
            end = row.at_ms - row.at_ms % WINDOW_MS + WINDOW_MS
            before = self.counts.getValue((end,))
            self.counts.updateValue((end,), ((before[0] if before else 0) + 1,))
            self.handle.registerTimer(end)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        end = expiredTimerInfo.getExpiryTimeInMs()
        count = self.counts.getValue((end,))
        self.counts.removeKey((end,))
        yield Row(post=key[0], n=count[0])

    def close(self) -> None:
        pass


def own(events: DataFrame) -> DataFrame:
    stamped = events.withWatermark("at", DELAY)
    return stamped.groupBy("post", sf.window("at", SIZE)).agg(sf.count(sf.lit(1)).alias("n"))


def stateful(events: DataFrame) -> DataFrame:
    stamped = events.withWatermark("at", DELAY).withColumn("at_ms", sf.unix_millis("at"))
    return stamped.groupBy("post").transformWithState(
        statefulProcessor=Count(),
        outputStructType="post string, n bigint",
        outputMode="Append",
        timeMode="EventTime",
    )


if __name__ == "__main__":
    given = arguments.parse_with(__doc__ or "", (OWN, STATEFUL), WindowDataset.load)
    answer = given.dataset.answer
    expected = sum(answer.keys[: answer.closed]), sum(answer.records[: answer.closed])
    plan = own if given.variant == OWN else stateful
    spark_query.run_in_mode(
        given.variant, given, plan, expected, SPARK_SCHEMA, "append"
    ).print()  # fmt: skip
