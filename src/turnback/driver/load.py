"""How busy the tasks of operators were lately, and how unevenly the work is divided."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from turnback.core.clock import Clock
from turnback.job.status import OperatorLoad, TaskLoad
from turnback.plan.plan import Plan
from turnback.worker.message import TaskAck
from turnback.worker.program import Chains

_WINDOW_S = 60.0
_SLICE_S = 5.0
_STATE_S = 2.0
_MOST_TASKS = 32
"""Tasks of an operator that are told one by one: those with the most work."""
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

    def count(self, acks: Iterable[TaskAck], seconds: float, chains: Chains) -> None:
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
            self._state_bytes = _state_bytes(chains)

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
        while len(self._slices) > 1 and self._slices[0].end_s < until - _WINDOW_S:
            self._slices.popleft()
        if not self._slices:
            return None
        return max(until - self._slices[0].start_s, 1.0)


def _operator_load(loads: list[TaskLoad], tasks: int, seconds: float) -> OperatorLoad:
    """Sum up the tasks of an operator; `tasks` is how many it has, some maybe without work."""
    fullest = max(loads, key=lambda load: load.per_s)
    mean = sum(load.per_s for load in loads) / tasks
    enough = tasks > 1 and mean * seconds >= _ENOUGH
    told = sorted(loads, key=lambda load: (load.busy, load.per_s), reverse=True)[:_MOST_TASKS]
    return OperatorLoad(
        tasks=tasks,
        busy=round(sum(load.busy for load in loads) / tasks, 4),
        busiest=max(load.busy for load in loads),
        skew=round(fullest.per_s / mean, 2) if enough else None,
        skewed=fullest.task if enough else None,
        by_task=tuple(sorted(told, key=lambda load: load.task)),
    )


def _share(spent: float, seconds: float) -> float:
    return round(min(spent / seconds, 1.0), 4)


def _state_bytes(chains: Chains) -> Counter[Task]:
    """About how much the state of each task takes up in files, which operators may share."""
    sizes: Counter[Task] = Counter()
    for (_, partition), files in chains.items():
        for file in files:
            for uid in file.operators:
                sizes[uid, partition] += file.length // len(file.operators)
    return sizes
