"""How far time has come in an attempt, and when time alone is a reason for an epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import chain

from turnback.core.clock import Clock
from turnback.functions.event_time import MAX_TIME, MIN_TIME
from turnback.plan.plan import Plan, is_time_driven
from turnback.plan.sources import partition_number, whole_source
from turnback.worker.event_time import (
    EpochTime,
    Partitions,
    Segment,
    advance,
    still_idle,
    watermark_of,
)

_LOG = logging.getLogger(__name__)
_NEVER_S = 3600.0
_SILENT_S = 60.0


class EventTime:
    """Watermarks and timers, as the driver knows them.

    Those `restored` are of the snapshot that the attempt starts from, if any; of partitions they
    are under ``STRATEGY#PARTITION``. `MIN_TIME` is that of an operator which has not got anywhere
    yet; one that is new begins where its streams are.
    """

    def __init__(self, plan: Plan, clock: Clock, restored: Mapping[str, int] | None) -> None:
        self._clock = clock
        self._strategies = plan.strategies
        self._operators = {
            op.uid: op.strategies for op in plan.operators() if "" not in op.strategies
        }
        self._partitioned = {source.uid for source in plan.sources if source.partitioned}
        self._sources = {
            uid: sources
            for uid, sources in plan.strategy_sources.items()
            if len(sources) > 1 or self._partitioned.intersection(sources)
        }
        """Of strategies that tell several sources or partitions apart."""
        self._read_by = plan.strategy_sources
        self._partitions_of: dict[str, tuple[str, ...]] = {}
        """The names of the partitions of sources that have any."""
        self._greatest: dict[str, int] = {}
        self._partitions: Partitions = {}
        self._names: dict[int, str] = {}
        """Of partitions, by their numbers."""
        for uid in self._strategies:
            self._restore(uid, restored or {})
        self._reached = {
            uid: watermark
            for uid, watermark in (restored or {}).items()
            if uid in self._operators.keys() - self._strategies.keys()
            and MIN_TIME <= watermark < MAX_TIME
        }
        """The watermark that each operator has reached, from which it does not go back."""
        for uid, sources in self._sources.items():
            if not self._partitioned.intersection(sources):
                self._wait_for(uid, map(whole_source, sources))
        self._started_s = clock.monotonic()
        self._active_s = dict.fromkeys(self._strategies, self._started_s)
        self._partitions_active_s: dict[tuple[str, int], float] = {}
        self._has_warned: set[str] = set()
        self._epoch = EpochTime()
        self._was_idle: tuple[str, ...] = ()
        self._now_ms = 0
        self._ended = False
        by_time = any(is_time_driven(op) for op in plan.operators())
        self._next_timer_ms = 0 if by_time and restored is not None else None
        self.has_end = by_time
        """Whether the end of event time makes any difference."""

    def begin(
        self,
        files: dict[int, int],
        partitions: Mapping[str, Iterable[str]] | None = None,
        *,
        ended: bool,
    ) -> EpochTime:
        """What time it is for an epoch that begins now, with which event time may be `ended`.

        `files` has the place of every new file in its source, `partitions` the names of those of
        each source that has any; None for those it had.
        """
        self._was_idle = self._idle()
        self._ended = ended
        if partitions is not None:
            self._partitions_of = {uid: tuple(names) for uid, names in partitions.items()}
            for uid, sources in self._sources.items():
                names = [self._names_of(source, partitions) for source in sources]
                self._wait_for(uid, chain.from_iterable(names))
        # Never back: what has expired in one epoch may be gone in the next.
        self._now_ms = max(self._now_ms, self._clock.now_ms())
        self._epoch = EpochTime(
            now_ms=self._now_ms,
            greatest=dict(self._greatest),
            idle=self._was_idle,
            ended=ended,
            files=files,
            partitions={uid: dict(known) for uid, known in self._partitions.items()},
            idle_partitions=self._idle_partitions(),
            reached=dict(self._reached),
        )
        return self._epoch

    def advance(self, segments: Iterable[Segment], next_timer_ms: int | None) -> None:
        """Take into account what an epoch has seen."""
        segments = tuple(segments)
        self._greatest, self._partitions = advance(self._epoch, segments)
        self._was_idle = still_idle(self._was_idle, segments)
        if not self._ended:
            self._reached = {uid: self._at_operator(uid) for uid in self._operators}
        now = self._clock.monotonic()
        self._active_s.update({segment.strategy: now for segment in segments})
        self._partitions_active_s.update({(s.strategy, s.partition): now for s in segments})
        self._next_timer_ms = next_timer_ms
        self._warn_of_silence(now)

    def watermarks(self) -> dict[str, int]:
        """The watermark of every operator that has one, and of the partitions of its source."""
        marks = {uid: self._at_operator(uid) for uid in self._operators}
        marks |= {uid: self._combined([uid]) for uid in self._strategies}
        for uid, known in ({} if self._ended else self._partitions).items():
            bound = self._strategies[uid].bound_ms
            marks |= {
                f"{uid}#{self._names[number]}": watermark_of(greatest, bound)
                for number, greatest in known.items()
                if number in self._names
            }
        return {uid: mark for uid, mark in marks.items() if mark > MIN_TIME}

    def of_operators(self) -> dict[str, int]:
        """The watermark of every operator that has one, and of every source of such operators.

        A source is as far as the slowest strategy that reads it, which may tell it apart from
        other sources.
        """
        known = {*self._operators, *self._strategies}
        marks = {uid: mark for uid, mark in self.watermarks().items() if uid in known}
        for uid, sources in self._read_by.items():
            for source in sources:
                marks[source] = min(marks.get(source, MAX_TIME), self._of_source(uid, source))
        return {uid: mark for uid, mark in marks.items() if mark > MIN_TIME}

    def due_in_s(self) -> float:
        """How long it is until an epoch without input is due; 0 if it is."""
        waits = [_NEVER_S]
        if self._next_timer_ms is not None:
            waits.append((self._next_timer_ms - self._clock.now_ms()) / 1000)
        if len(self._strategies) > 1 and self._idle() != self._was_idle:
            waits.append(0.0)
        left_out = self._epoch.idle_partitions
        for uid, idle in self._idle_partitions().items():
            if not set(idle).issubset(left_out.get(uid, ())):
                waits.append(0.0)
        return max(min(waits), 0.0)

    def _at_operator(self, uid: str) -> int:
        return max(self._reached.get(uid, MIN_TIME), self._combined(self._operators[uid]))

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

    def _of_source(self, uid: str, source: str) -> int:
        """How far a strategy is in what it reads of one source."""
        if self._ended:
            return MAX_TIME
        known = self._partitions.get(uid, {})
        bound = self._strategies[uid].bound_ms
        numbers = {partition_number(name) for name in self._names_of(source, self._partitions_of)}
        own = {number: known[number] for number in numbers & known.keys()}
        if not own:
            return watermark_of(self._greatest.get(uid, MIN_TIME), bound)
        idle = self._epoch.idle_partitions.get(uid, ())
        active = [greatest for number, greatest in own.items() if number not in idle]
        return watermark_of(min(active or own.values()), bound)

    def _idle(self) -> tuple[str, ...]:
        """The strategies that had no elements for longer than they allow."""
        now = self._clock.monotonic()
        return tuple(
            uid
            for uid, strategy in self._strategies.items()
            if strategy.idle_ms is not None
            and (now - self._active_s[uid]) * 1000 >= strategy.idle_ms
        )

    def _idle_partitions(self) -> dict[str, tuple[int, ...]]:
        """Partitions that had no elements for longer than their strategy allows.

        If all of a strategy are idle there is nothing to go by, and all are waited for.
        """
        now = self._clock.monotonic()
        found = {}
        for uid, known in self._partitions.items():
            idle_ms = self._strategies[uid].idle_ms
            if idle_ms is None:
                continue
            since = {n: self._partitions_active_s.setdefault((uid, n), now) for n in known}
            idle = tuple(n for n, active in since.items() if (now - active) * 1000 >= idle_ms)
            if 0 < len(idle) < len(known):
                found[uid] = idle
        return found

    def _restore(self, uid: str, watermarks: Mapping[str, int]) -> None:
        """Begin where a strategy and the partitions of its sources were."""
        bound = self._strategies[uid].bound_ms
        if bound is None:
            return
        for key, watermark in watermarks.items():
            if not MIN_TIME < watermark < MAX_TIME:
                continue
            # A bound that has changed since then does not move the watermark.
            greatest = watermark + bound + 1
            if key in (uid, self._only_part(uid)):
                self._greatest[uid] = max(self._greatest.get(uid, MIN_TIME), greatest)
            elif key.startswith(f"{uid}#") and uid in self._sources:
                number = self._number(key.removeprefix(f"{uid}#"))
                self._partitions.setdefault(uid, {})[number] = greatest

    def _only_part(self, uid: str) -> str | None:
        """What the only source of a strategy was called when there were others beside it."""
        sources = self._read_by.get(uid, ())
        if uid in self._sources or len(sources) != 1:
            return None
        return f"{uid}#{whole_source(sources[0])}"

    def _names_of(self, source: str, partitions: Mapping[str, Iterable[str]]) -> Iterable[str]:
        """The names of the partitions of a source, which is one itself if it has none."""
        return partitions.get(source, ()) if source in self._partitioned else [whole_source(source)]

    def _wait_for(self, uid: str, names: Iterable[str]) -> None:
        """Let a strategy wait for these partitions, and for no others."""
        numbers = [self._number(name) for name in names]
        known = self._partitions.get(uid, {})
        if numbers:
            self._partitions[uid] = {number: known.get(number, MIN_TIME) for number in numbers}

    def _number(self, name: str) -> int:
        number = partition_number(name)
        self._names[number] = name
        return number

    def _warn_of_silence(self, now: float) -> None:
        """Say once that watermarks wait for partitions in which nothing has ever come."""
        for uid, known in self._partitions.items():
            silent = sorted(self._names.get(n, "?") for n, t in known.items() if t == MIN_TIME)
            long = now - self._started_s > _SILENT_S
            if long and 0 < len(silent) < len(known) and uid not in self._has_warned:
                self._has_warned.add(uid)
                _LOG.warning(
                    "event time does not advance in %r: no data yet from %s. To stop waiting for "
                    "partitions without data, use WatermarkStrategy.with_idleness",
                    uid, ", ".join(silent),
                )  # fmt: skip
