"""Partitions of sources, as Spark's columns and tasks know them."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from turnback.plan.sources import OFFSET_COLUMN, PARTITION_COLUMN
from turnback.values.typeinfo import quote_name


def partition_columns(topic: str, partition: str, offset: str) -> list[Column]:
    """From which partition a record of Kafka comes, and where it is in it, by these columns."""
    name = F.concat_ws("-", quote_name(topic), quote_name(partition))
    number = F.shiftright(F.xxhash64(name), 2)
    return [number.alias(PARTITION_COLUMN), F.col(quote_name(offset)).alias(OFFSET_COLUMN)]
