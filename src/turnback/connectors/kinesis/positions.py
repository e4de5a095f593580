"""Positions in a Kinesis stream, as `KinesisSource` writes them into an offset."""

from __future__ import annotations

from typing import Any

from turnback.checkpoint.source_offsets import PartitionPosition, offset_of


def kinesis_position(offset: str | None) -> dict[str, Any]:
    """An offset of a `KinesisSource`; empty for others."""
    return offset_of(offset, "kinesis")


def partition_positions(offset: str) -> list[PartitionPosition]:
    """The positions in an offset; shards are partitions."""
    position = kinesis_position(offset)
    return [
        PartitionPosition(f"{position['stream']}/{shard}", f"{shard}: {_text(at)}", _ended(at))
        for shard, at in position.get("shards", {}).items()
    ]


def _ended(at: dict[str, Any]) -> bool:
    return bool(at.get("ended"))


def _text(at: dict[str, Any]) -> str:
    if _ended(at):
        return "read to its end"
    kind, value = at["at"]
    name: str = kind.lower().replace("_", " ")
    return name if value is None else f"{name} {value}"
