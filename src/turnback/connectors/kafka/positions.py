"""Positions in Kafka, as Spark's connector writes them into an offset."""

from __future__ import annotations

import json

from turnback.checkpoint.source_offsets import PartitionPosition


def kafka_positions(offset: str | None) -> list[tuple[str, int, int]]:
    """Topic, partition and next offset of an offset of Spark's Kafka connector; none of others."""
    try:
        topics = json.loads(offset or "")
        return sorted(
            (topic, int(partition), int(position))
            for topic, partitions in topics.items()
            for partition, position in partitions.items()
        )
    except (ValueError, TypeError, AttributeError):
        return []


def partition_positions(offset: str) -> list[PartitionPosition]:
    """The positions in an offset, with partitions named as Kafka names them."""
    return [
        PartitionPosition(f"{topic}-{number}", f"{topic} {number}: {at}")
        for topic, number, at in kafka_positions(offset)
    ]
