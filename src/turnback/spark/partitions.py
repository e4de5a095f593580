"""Partitions of sources, as Spark's columns and tasks know them."""

from __future__ import annotations

import xxhash

from turnback.checkpoint.manifest import kafka_positions

PARTITION_COLUMN = "_turnback_partition"
"""From which partition a row comes, as a number; no part of the elements."""
OFFSET_COLUMN = "_turnback_offset"
"""Where it is in its partition."""


def spark_hash(text: str) -> int:
    """What Spark's `xxhash64` gives for a text."""
    number = xxhash.xxh64_intdigest(text.encode(), seed=42)
    return number - (1 << 64) if number >> 63 else number


def partition_number(name: str) -> int:
    """The number of a partition: Spark's `shiftright(xxhash64(name), 2)`, to leave some room."""
    return spark_hash(name) >> 2


def partition_names(offset: str | None) -> tuple[str, ...]:
    """The partitions that an offset of Kafka's connector is about, as Kafka writes them."""
    return tuple(f"{topic}-{number}" for topic, number, _ in kafka_positions(offset))
