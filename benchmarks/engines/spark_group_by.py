"""Spark's own `groupBy.count`, all of it in the JVM: the ceiling, not a rival for user functions.

It emits one row per key and batch, where the others run a function and emit a row per record.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from benchmarks.dataset import Answer
from benchmarks.engines import arguments, spark_query


def plan(events: DataFrame) -> DataFrame:
    return events.groupBy("post").agg(sf.count(sf.lit(1)).alias("n"))


def checksum(answer: Answer) -> tuple[int, int]:
    return answer.rows_per_touched_key, answer.sum_per_touched_key


if __name__ == "__main__":
    given = arguments.parse(__doc__, ("spark-group-by",))
    spark_query.run(given.variant, given, plan, checksum).print()
