from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from turnback.core.errors import EpochConflictError
from turnback.planner import Level
from turnback.runtime.failure import unmarked
from turnback.runtime.hop import CONTROL
from turnback.runtime.message import Barrier, TaskAck, align, decode_barrier

_NO_WAY_BACK = "Spark cannot rollback"
"""How Spark puts it that output was lost with an executor after some had read it."""


@dataclass(frozen=True)
class EpochAcks:
    """The acknowledgements of all tasks of an epoch, each of the attempt whose output counted."""

    acks: tuple[TaskAck, ...]

    def transactions(self) -> dict[str, tuple[bytes, ...]]:
        """Everything sinks prepared, by sink uid."""
        found: dict[str, tuple[bytes, ...]] = {}
        for ack in self.acks:
            for uid, handles in ack.transactions.items():
                found[uid] = (*found.get(uid, ()), *handles)
        return found

    def records(self) -> dict[str, tuple[int, int]]:
        """Elements read and written by operator uid."""
        totals: dict[str, tuple[int, int]] = {}
        for ack in self.acks:
            for uid, (read, written) in ack.records.items():
                before = totals.get(uid, (0, 0))
                totals[uid] = (before[0] + read, before[1] + written)
        return totals

    def sync_ms(self) -> int:
        """How long the slowest task took to snapshot its state."""
        slowest = max((ack.seconds.get("snapshot", 0.0) for ack in self.acks), default=0.0)
        return round(slowest * 1000)

    def row_bytes(self) -> int:
        """The size of the largest rows that were handed to tasks; 0 if there were too few."""
        return max((ack.row_bytes for ack in self.acks), default=0)

    def found(self) -> dict[str, int]:
        """How often a task found its state at home, had to catch up, or rebuilt it."""
        counts: dict[str, int] = {}
        for ack in self.acks:
            if ack.found:
                counts[ack.found] = counts.get(ack.found, 0) + 1
        return counts


def run_epoch(frame: DataFrame, levels: Sequence[Level]) -> EpochAcks:
    """Run the epoch's one Spark job and check what came back.

    Raises:
        EpochConflictError: Two attempts of a task were read; nothing is confirmed.
    """
    try:
        rows = frame.collect()
    except Exception as e:
        cause = unmarked(e)
        if cause is not e:
            raise cause from None
        if _NO_WAY_BACK in str(e):
            raise EpochConflictError("output of tasks that others had read was lost") from None
        raise
    return _checked([decode_barrier(bytes(row[CONTROL])) for row in rows], levels)


def _checked(barriers: list[Barrier], levels: Sequence[Level]) -> EpochAcks:
    acks = [ack for barrier in barriers for ack in barrier.acks]
    names = align(barriers, "the driver")
    for level in reversed(levels):
        mine = sorted((a for a in acks if a.level == level.index), key=lambda a: a.name.partition)
        if tuple(a.name for a in mine) != names:
            raise EpochConflictError(
                f"level {level.index}: the tasks that acknowledged are not those whose output was "
                f"read: {_told(a.name for a in mine)} against {_told(names)}"
            )
        seen = {a.upstream for a in mine}
        if len(seen) > 1:
            raise EpochConflictError(
                f"level {level.index}: tasks have read different attempts of the level before: "
                f"{sorted(str(_told(s)) for s in seen)}"
            )
        if level.index > 0:
            names = seen.pop()
    return EpochAcks(tuple(acks))


def _told(names: Iterable[object]) -> list[str]:
    return [str(name) for name in names]
