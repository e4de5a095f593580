"""Positions in streams of RabbitMQ, as `RabbitMQSource` writes them into an offset."""

from __future__ import annotations

from turnback.checkpoint.source_offsets import PartitionPosition, offset_of


def rabbitmq_positions(offset: str | None) -> list[tuple[str, int]]:
    """Stream and next offset of an offset of a `RabbitMQSource`; none of others."""
    position = offset_of(offset, "rabbitmq")
    return sorted((stream, int(at)) for stream, at in position.get("next", {}).items())


def rabbitmq_chunks(offset: str | None) -> dict[str, tuple[int, int]]:
    """By which chunk each stream is recognized; see `turnback.connectors.rabbitmq.reader`."""
    chunks = offset_of(offset, "rabbitmq").get("chunks", {})
    return {stream: (int(first), int(written)) for stream, (first, written) in chunks.items()}


def partition_positions(offset: str) -> list[PartitionPosition]:
    """The positions in an offset; streams are partitions."""
    return [
        PartitionPosition(stream, f"{stream}: {at}") for stream, at in rabbitmq_positions(offset)
    ]
