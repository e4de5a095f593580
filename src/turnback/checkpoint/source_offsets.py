"""What the offsets of sources say about their partitions.

A checkpoint keeps an offset as its source writes it. Only the connector of that source can read it:
a function of the connector, found by name here, or for connectors of others by an entry point of
the group `turnback.offsets`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

_GROUP = "turnback.offsets"
_OWN = (
    "turnback.connectors.kafka.positions:partition_positions",
    "turnback.connectors.rabbitmq.positions:partition_positions",
    "turnback.connectors.kinesis.positions:partition_positions",
)


@dataclass(frozen=True)
class PartitionPosition:
    """Where a source resumes in one of its partitions.

    Attributes:
        partition: Its name, unique within the source.
        text: It and its position, for people.
        ended: Whether nothing more will come from it.
    """

    partition: str
    text: str
    ended: bool = False


OffsetReader = Callable[[str], Sequence[PartitionPosition]]
"""Returns the positions in an offset; none if another connector has written it."""


def partition_positions(offset: str | None) -> list[PartitionPosition]:
    """Return the positions in an offset, by partition; none if its source has no partitions."""
    if offset is None:
        return []
    return [position for read in _readers() for position in read(offset)]


def open_partitions(offset: str | None) -> tuple[str, ...]:
    """Return the partitions in an offset from which more may come: event time waits for them."""
    return tuple(each.partition for each in partition_positions(offset) if not each.ended)


def offset_of(offset: str | None, source: str) -> dict[str, Any]:
    """Return the offset of a source that is written in Python, if it is of this kind."""
    try:
        position = json.loads(offset or "")
    except ValueError:
        return {}
    if isinstance(position, dict) and position.get("source") == source:
        return position
    return {}


@lru_cache(maxsize=1)
def _readers() -> tuple[OffsetReader, ...]:
    own = (path.partition(":") for path in _OWN)
    others = (point.load() for point in entry_points(group=_GROUP))
    return (*(getattr(import_module(module), name) for module, _, name in own), *others)
