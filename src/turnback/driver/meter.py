"""What an attempt has done so far, counted for its status."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.core.clock import Clock
from turnback.driver.load import LoadMeter
from turnback.job.status import Metrics
from turnback.plan.plan import Plan
from turnback.state.files import StateFile
from turnback.worker.message import TaskAck
from turnback.worker.program import Chains

_WINDOW_S = 10.0

Records = Mapping[str, tuple[int, int]]
"""Elements read and written, by operator uid."""


def total(records: Iterable[Records]) -> Records:
    """What several tasks, or several epochs, have read and written together."""
    totals: dict[str, tuple[int, int]] = {}
    for each in records:
        for uid, (read, written) in each.items():
            before = totals.get(uid, (0, 0))
            totals[uid] = (before[0] + read, before[1] + written)
    return totals


class Meter:
    """Counts what an attempt does, for its status. Thread-safe."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._lock = threading.Lock()
        self._started_ms = clock.now_ms()
        self._read = 0
        self._records: Records = {}
        self._left_out: Counter[str] = Counter()
        self._malformed: Mapping[str, int] = {}
        self._state_bytes: dict[str, int] = {}
        self._recent: deque[tuple[float, int]] = deque([(clock.monotonic(), 0)])
        self._sources = _sources(plan)
        self._load = LoadMeter(plan, clock)
        self.watermarks: Mapping[str, int] = {}
        """How far event time has come in operators and sources, by uid."""

    def count(
        self,
        records: Records,
        state: Iterable[StateFile],
        left_out: Mapping[str, int] | None = None,
        fed: Mapping[int, int] | None = None,
        malformed: Mapping[str, int] | None = None,
    ) -> int:
        """Take an epoch into account; return how many elements the sources gave in it.

        Malformed records are those up to the end of it, not only its own.
        """
        given = fed or {}
        from_sources = {
            uid: records.get(uid, (0, 0))[0] if channel is None else given.get(channel, 0)
            for uid, channel in self._sources.items()
        }
        read = sum(from_sources.values())
        counted = {**records, **{uid: (n, n) for uid, n in from_sources.items()}}
        sizes = _sizes(state)
        with self._lock:
            self._read += read
            self._records = total([self._records, counted])
            self._left_out.update(left_out or {})
            self._malformed = malformed or {}
            self._state_bytes = sizes
            self._recent.append((self._clock.monotonic(), self._read))
        return read

    def count_load(self, acks: Iterable[TaskAck], seconds: float, chains: Chains) -> None:
        """Take into account how busy each task was in an epoch that took some seconds."""
        with self._lock:
            self._load.count(acks, seconds, chains)

    def metrics(
        self,
        coordinator: CheckpointCoordinator,
        completed: int,
        failed: int,
        epoch_s: float = 0.0,
    ) -> Metrics:
        """The numbers as they are now; checkpoints of earlier attempts are given, and added.

        `epoch_s` is for how long an epoch has been running that is not counted yet.
        """
        under_way = coordinator.under_way()
        with self._lock:
            return Metrics(
                started_ms=self._started_ms,
                read=self._read,
                per_s=self._per_s(),
                records=dict(self._records),
                left_out=dict(self._left_out),
                malformed=dict(self._malformed),
                state_bytes=self._state_bytes,
                watermarks=dict(self.watermarks),
                busy=self._load.busy(epoch_s),
                load=self._load.operators(epoch_s),
                completed=completed + coordinator.completed,
                failed=failed + coordinator.failed,
                under_way=under_way,
            )

    def _per_s(self) -> float:
        """Elements of the last few seconds; one point older than that is kept to count from."""
        now = self._clock.monotonic()
        while len(self._recent) > 1 and now - self._recent[1][0] >= _WINDOW_S:
            self._recent.popleft()
        since, before = self._recent[0]
        return (self._read - before) / max(now - since, 1.0)


def _sources(plan: Plan) -> dict[str, int | None]:
    """The sources; where Spark feeds the first shuffle, with the channel that tells what they gave.

    Elsewhere they run in Python, and count themselves.
    """
    uids = {source.id: source.uid for source in plan.sources}
    channels: dict[str, int | None] = {}
    if not plan.native:
        return channels | dict.fromkeys(uids.values())
    for channel in plan.channels:
        if channel.first_level < 0:
            channels.setdefault(uids[channel.producer], channel.id)
    return channels


def _sizes(state: Iterable[StateFile]) -> dict[str, int]:
    """Bytes by operator; what several have in one file is divided among them."""
    sizes: Counter[str] = Counter()
    for file in {file.path: file for file in state}.values():
        for uid in file.operators:
            sizes[uid] += file.length // len(file.operators)
    return dict(sizes)
