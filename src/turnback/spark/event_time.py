"""How far time has come in an attempt, and when time alone is a reason for an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from turnback.core.clock import Clock
from turnback.program.plan import Plan
from turnback.program.time import MAX_TIME, MIN_TIME
from turnback.program.timers import goes_by_time
from turnback.worker.time import EpochTime, Partitions, Segment, advance, watermark_of

_NEVER_S = 3600.0


class EventTime:
    """Watermarks and timers, as the driver knows them.

    Args:
        plan: The program.
        clock: What time it is.
        restored: The watermarks of the snapshot that the attempt starts from; None without one.
    """

    def __init__(self, plan: Plan, clock: Clock, restored: Mapping[str, int] | None) -> None:
        self._clock = clock
        self._strategies = plan.strategies
        self._operators = {
            op.uid: op.strategies for op in plan.operators() if "" not in op.strategies
        }
        self._greatest: dict[str, int] = {}
        for uid, strategy in self._strategies.items():
            watermark = (restored or {}).get(uid, MIN_TIME)
            if strategy.bound_ms is not None and MIN_TIME < watermark < MAX_TIME:
                # A bound that has changed since then does not move the watermark.
                self._greatest[uid] = watermark + strategy.bound_ms + 1
        self._partitions: Partitions = {}
        self._partitioned: tuple[tuple[int, ...], ...] = ()
        self._active_s = dict.fromkeys(self._strategies, clock.monotonic())
        self._partitions_active_s: dict[tuple[str, int], float] = {}
        self._epoch = EpochTime()
        self._was_idle: tuple[str, ...] = ()
        self._now_ms = 0
        self._ended = False
        by_time = any(goes_by_time(op.function) for op in plan.operators())
        self._next_timer_ms = 0 if by_time and restored is not None else None
        self.has_end = by_time
        """Whether the end of event time makes any difference."""

    def begin(
        self,
        files: dict[int, int],
        partitioned: tuple[tuple[int, ...], ...] | None = None,
        *,
        ended: bool,
    ) -> EpochTime:
        """What time it is for an epoch that begins now.

        Args:
            files: The place of every new file in its source.
            partitioned: The partitions of each source that has any; None for those it had.
            ended: Whether event time ends with this epoch.
        """
        self._was_idle, self._ended = self._idle(), ended
        if partitioned is not None:
            self._partitioned = partitioned
        self._drop_idle_partitions()
        # Never back: what has expired in one epoch may be gone in the next.
        self._now_ms = max(self._now_ms, self._clock.now_ms())
        self._epoch = EpochTime(
            now_ms=self._now_ms,
            greatest=dict(self._greatest),
            idle=self._was_idle,
            ended=ended,
            files=files,
            partitions={uid: dict(known) for uid, known in self._partitions.items()},
            partitioned=self._partitioned,
        )
        return self._epoch

    def advance(self, segments: Iterable[Segment], next_timer_ms: int | None) -> None:
        """Take into account what an epoch has seen."""
        segments = tuple(segments)
        self._greatest, self._partitions = advance(self._epoch, segments)
        now = self._clock.monotonic()
        self._active_s.update({segment.strategy: now for segment in segments})
        spoken = {(s.strategy, s.partition): now for s in segments if s.partition is not None}
        self._partitions_active_s.update(spoken)
        self._next_timer_ms = next_timer_ms

    def watermarks(self) -> dict[str, int]:
        """The watermark of every operator that has one."""
        marks = {uid: self._combined(uids) for uid, uids in self._operators.items()}
        marks |= {uid: self._combined([uid]) for uid in self._strategies}
        return {uid: mark for uid, mark in marks.items() if mark > MIN_TIME}

    def due_in_s(self) -> float:
        """How long it is until an epoch without input is due; 0 if it is."""
        waits = [_NEVER_S]
        if self._next_timer_ms is not None:
            waits.append((self._next_timer_ms - self._clock.now_ms()) / 1000)
        if len(self._strategies) > 1 and self._idle() != self._was_idle:
            waits.append(0.0)
        if any(self._idle_partitions()):
            waits.append(0.0)
        return max(min(waits), 0.0)

    def _combined(self, uids: Iterable[str]) -> int:
        if self._ended:
            return MAX_TIME
        uids = list(uids)
        active = [uid for uid in uids if uid not in self._was_idle] or uids
        return min(
            (
                watermark_of(self._greatest.get(uid, MIN_TIME), self._strategies[uid].bound_ms)
                for uid in active
            ),
            default=MIN_TIME,
        )

    def _idle(self) -> tuple[str, ...]:
        """The strategies that had no elements for longer than they allow."""
        now = self._clock.monotonic()
        return tuple(
            uid
            for uid, strategy in self._strategies.items()
            if strategy.idle_ms is not None
            and (now - self._active_s[uid]) * 1000 >= strategy.idle_ms
        )

    def _idle_partitions(self) -> Iterator[tuple[str, int]]:
        """Partitions that had no elements for longer than their strategy allows.

        If all of a strategy are idle there is nothing to go by, and all stay.
        """
        now = self._clock.monotonic()
        for uid, known in self._partitions.items():
            idle_ms = self._strategies[uid].idle_ms
            if idle_ms is None:
                continue
            since = {n: self._partitions_active_s.setdefault((uid, n), now) for n in known}
            idle = [n for n, active in since.items() if (now - active) * 1000 >= idle_ms]
            if len(idle) < len(known):
                yield from ((uid, number) for number in idle)

    def _drop_idle_partitions(self) -> None:
        """Do not wait for idle partitions until they have elements again."""
        for uid, number in list(self._idle_partitions()):
            known = self._partitions[uid]
            del known[number]
            self._greatest[uid] = max(self._greatest.get(uid, MIN_TIME), min(known.values()))
