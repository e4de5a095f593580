"""Spark's own reader of a Delta table, in a session of another time zone; prints what it reads."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession


def main(table: str, settings: str, *filters: str) -> None:
    """Print all rows, then those that each filter finds, as [microseconds since 1970, number]."""
    builder = SparkSession.builder.master("local[1]")
    for key, value in json.loads(settings).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = spark.read.format("delta").load(table)
    print(json.dumps([_found(rows), *(_found(rows.where(each)) for each in filters)]))
    spark.stop()


def _found(rows: DataFrame) -> list[list[int]]:
    return sorted([*row] for row in rows.selectExpr("unix_micros(at)", "n").collect())


if __name__ == "__main__":
    main(*sys.argv[1:])
