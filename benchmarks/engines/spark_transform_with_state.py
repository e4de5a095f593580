"""Spark's `transformWithState` in rows: per record one read and one update of a value state.

The variant `-per-key` reads and writes once per key and batch instead, the best a Spark user can
do when the function allows it; it is shown because per-record access is not Spark's habit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
)

from benchmarks.dataset import Answer
from benchmarks.engines import arguments, spark_query

PER_RECORD = "spark-transform-with-state"
PER_KEY = "spark-transform-with-state-per-key"


class Count(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        for row in rows:
            state = self.count.get()
            n = (state[0] if state else 0) + 1
            self.count.update((n,))
            yield Row(post=row.post, n=n)

    def close(self) -> None:
        pass


class CountPerKey(Count):
    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        state = self.count.get()
        n = state[0] if state else 0
        for row in rows:
            n += 1
            yield Row(post=row.post, n=n)
        self.count.update((n,))


def plan_with(processor: StatefulProcessor) -> spark_query.Plan:
    def plan(events: DataFrame) -> DataFrame:
        return events.groupBy("post").transformWithState(
            statefulProcessor=processor,
            outputStructType="post string, n bigint",
            outputMode="Update",
            timeMode="None",
        )

    return plan


def checksum(answer: Answer) -> tuple[int, int]:
    return answer.rows_per_record, answer.sum_per_record


if __name__ == "__main__":
    given = arguments.parse(__doc__, (PER_RECORD, PER_KEY))
    processor = CountPerKey() if given.variant == PER_KEY else Count()
    spark_query.run(given.variant, given, plan_with(processor), checksum).print()
