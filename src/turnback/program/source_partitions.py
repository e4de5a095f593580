"""The numbers of a source's partitions, each of which has a watermark of its own."""

from __future__ import annotations

import xxhash

WHOLE = 0
"""The partition of what is as good as one, wherever it comes from."""

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


def whole_source(uid: str) -> str:
    """The name of the one partition that a source without any is; none of Kafka's has a colon."""
    return f"source:{uid}"
