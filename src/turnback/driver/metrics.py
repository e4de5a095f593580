"""What an attempt has done so far, counted for its status."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.core.clock import Clock
from turnback.job.status import Metrics, OperatorLoad, TaskLoad
from turnback.plan.plan import Plan
from turnback.state.files import StateFile
from turnback.worker.message import TaskAck
from turnback.worker.program import StateFileIndex

_LOAD_WINDOW_S = 60.0
_SLICE_S = 5.0
_STATE_S = 2.0
_MOST_TASKS = 32
"""Tasks of an operator that are shown one by one: those with the most work."""
_ENOUGH = 10
"""With fewer elements a task on average, chance alone divides them unevenly."""

Task = tuple[str, int]
"""Uid of an operator, and number of the task."""


@dataclass
class _Slice:
    """What some epochs have done, one right after the other."""

    start_s: float
    end_s: float
    epochs_s: float = 0.0
    read: Counter[Task] = field(default_factory=Counter)
    busy_s: defaultdict[Task, float] = field(default_factory=lambda: defaultdict(float))


class LoadMeter:
    """Adds up how long tasks have worked in the last minute; at least in the newest epoch."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._clock = clock
        self._parallelism = {
            op.uid: op.parallelism if level.parallelism is not None else 0
            for level in plan.levels
            for op in level.operators
        }
        self._slices: deque[_Slice] = deque()
        self._records: dict[Task, tuple[int, int]] = {}
        self._state_bytes: Counter[Task] = Counter()
        self._state_due = 0.0

    def count(self, acks: Iterable[TaskAck], seconds: float, file_index: StateFileIndex) -> None:
        """Take an epoch into account that has ended now and took some seconds."""
        now = self._clock.monotonic()
        newest = self._slices[-1] if self._slices else None
        if newest is None or now - newest.start_s > _SLICE_S:
            newest = _Slice(now - seconds, now)
            self._slices.append(newest)
        newest.end_s = now
        newest.epochs_s += seconds
        for ack in acks:
            number = ack.name.partition
            for uid, (read, written) in ack.records.items():
                task = uid, number
                newest.read[task] += read
                newest.busy_s[task] += ack.busy.get(uid, 0.0)
                before = self._records.get(task, (0, 0))
                self._records[task] = before[0] + read, before[1] + written
        if now >= self._state_due:
            self._state_due = now + _STATE_S
            self._state_bytes = _state_bytes(file_index)

    def busy(self, epoch_s: float = 0.0) -> float | None:
        """The share of time in which epochs ran; None before the first has ended.

        `epoch_s` is for how long one has been running that is not counted yet.
        """
        seconds = self._seconds(epoch_s)
        if seconds is None:
            return None
        return _share(sum(each.epochs_s for each in self._slices), seconds)

    def operators(self, epoch_s: float = 0.0) -> dict[str, OperatorLoad]:
        """How busy each operator is that runs in Python, by uid."""
        seconds = self._seconds(epoch_s)
        if seconds is None:
            return {}
        read: Counter[Task] = Counter()
        busy: defaultdict[Task, float] = defaultdict(float)
        for each in self._slices:
            read.update(each.read)
            for task, spent in each.busy_s.items():
                busy[task] += spent
        tasks: defaultdict[str, list[TaskLoad]] = defaultdict(list)
        for (uid, number), (records_in, records_out) in sorted(self._records.items()):
            task = uid, number
            load = TaskLoad(
                task=number,
                records_in=records_in,
                records_out=records_out,
                per_s=round(read[task] / seconds, 2),
                busy=_share(busy[task], seconds),
                state_bytes=self._state_bytes.get(task),
            )
            tasks[uid].append(load)
        return {
            uid: _operator_load(loads, max(len(loads), self._parallelism.get(uid, 0)), seconds)
            for uid, loads in tasks.items()
        }

    def _seconds(self, epoch_s: float) -> float | None:
        """How long the time is that is looked at, without that of an epoch that is running."""
        now = self._clock.monotonic()
        until = now - epoch_s
        while len(self._slices) > 1 and self._slices[0].end_s < until - _LOAD_WINDOW_S:
            self._slices.popleft()
        if not self._slices:
            return None
        return max(until - self._slices[0].start_s, 1.0)


def _operator_load(loads: list[TaskLoad], tasks: int, seconds: float) -> OperatorLoad:
    """Sum up the tasks of an operator; `tasks` is how many it has, some maybe without work."""
    fullest = max(loads, key=lambda load: load.per_s)
    mean = sum(load.per_s for load in loads) / tasks
    enough = tasks > 1 and mean * seconds >= _ENOUGH
    shown = sorted(loads, key=lambda load: (load.busy, load.per_s), reverse=True)[:_MOST_TASKS]
    return OperatorLoad(
        tasks=tasks,
        busy=round(sum(load.busy for load in loads) / tasks, 4),
        busiest=max(load.busy for load in loads),
        skew=round(fullest.per_s / mean, 2) if enough else None,
        skewed=fullest.task if enough else None,
        by_task=tuple(sorted(shown, key=lambda load: load.task)),
    )


def _share(spent: float, seconds: float) -> float:
    return round(min(spent / seconds, 1.0), 4)


def _state_bytes(file_index: StateFileIndex) -> Counter[Task]:
    """About how much the state of each task takes up in files, which operators may share."""
    sizes: Counter[Task] = Counter()
    for (_, partition), files in file_index.items():
        for file in files:
            for uid in file.operators:
                sizes[uid, partition] += file.length // len(file.operators)
    return sizes


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

    def count_load(
        self, acks: Iterable[TaskAck], seconds: float, file_index: StateFileIndex
    ) -> None:
        """Take into account how busy each task was in an epoch that took some seconds."""
        with self._lock:
            self._load.count(acks, seconds, file_index)

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
