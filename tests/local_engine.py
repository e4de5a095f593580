"""Runs any program epoch by epoch, without a driver around it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from manual_clock import ManualClock
from turnback import CollectSink, DataStream, StreamExecutionEnvironment
from turnback.driver.epochs import EpochAcks, check_barriers
from turnback.driver.event_time import EventTime
from turnback.plan.plan import Plan, SourcePlan
from turnback.plan.sources import PARTITION_COLUMN, partition_number
from turnback.sinks.base import CommitterContext
from turnback.state.files import StateFile, StorageRef
from turnback.testing.engine import Levels
from turnback.values.columns import Batch, stream_columns
from turnback.values.hints import as_type
from turnback.worker.event_time import EpochTime
from turnback.worker.message import Barrier, EpochCommand
from turnback.worker.program import StateFileIndex

BACKENDS = ("hashmap", "hashmap", "hashmap", "rocksdb")
"""Seldom the one that takes long to open."""


@dataclass
class FakeFrame:
    """As much of a streaming DataFrame as building a program needs."""

    schema: Any
    partitions: tuple[str, ...] = ()
    isStreaming: bool = True  # noqa: N815 - Spark's name

    @property
    def columns(self) -> list[str]:
        own = [PARTITION_COLUMN] if self.partitions else []
        return [*(name for name, _ in stream_columns(as_type(self.schema))), *own]


def environment(parallelism: int = 2, **configuration: Any) -> StreamExecutionEnvironment:
    """An environment that never starts Spark."""
    env = StreamExecutionEnvironment(None, None, configuration)
    return env.set_parallelism(parallelism)


def source(
    env: StreamExecutionEnvironment, uid: str, schema: Any, partitions: int = 0
) -> DataStream:
    """A stream of the rows that `LocalEngine.epoch` is given under this uid.

    With partitions, they are given under ``uid-0``, ``uid-1`` and so on.
    """
    names = tuple(f"{uid}-{number}" for number in range(partitions))
    stream = env.from_dataframe(FakeFrame("value bigint", names), uid)  # type: ignore[arg-type]
    stream._node.type = as_type(schema)
    return stream


class LocalEngine:
    """One attempt of a job, epoch by epoch."""

    def __init__(
        self,
        plan: Plan,
        root: Path,
        *,
        attempt: int = 1,
        files: Sequence[StateFile] = (),
        epoch: int = 0,
        backend: str = "hashmap",
        source_tasks: int = 2,
        readers: int | None = None,
        watermarks: Mapping[str, int] | None = None,
    ) -> None:
        self.plan, self.attempt, self.backend = plan, attempt, backend
        self.line = f"{attempt}-{uuid.uuid4().hex}"
        self.number, self.source_tasks = epoch, source_tasks
        self.local = root / "local"
        self.storage = StorageRef(str(root / "job"))
        self.levels = Levels(plan, readers=readers)
        self.file_index = StateFileIndex(self.levels.programs)
        self.file_index.restore(files)
        self.letters: tuple[bytes, ...] = ()
        self.acks: EpochAcks | None = None
        self.clock = ManualClock()
        self.time = EventTime(plan, self.clock, watermarks)

    def epoch(
        self,
        inputs: Mapping[str, Sequence[Any]],
        *,
        ended: bool = False,
        letters: Sequence[bytes] = (),
    ) -> None:
        """Run one epoch over the elements of each source, and commit its sinks.

        Args:
            inputs: The elements of each source, or of each of its partitions.
            ended: Whether event time ends with it.
            letters: Dead letters that are fed back.
        """
        self.number += 1
        self.letters = tuple(letters)
        barriers, tasks = self._run(inputs, ended=ended)
        self.acks = check_barriers(barriers, self.plan.levels, tasks)
        self.time.advance(self.acks.segments, self.acks.next_timer_ms())
        for ack in self.acks.acks:
            if ack.state is not None:
                self.file_index.confirm(ack.level, ack.name.partition, ack.state)
        for uid, transactions in self.acks.transactions().items():
            (op,) = (op for op in self.plan.operators() if op.uid == uid)
            context = CommitterContext("job", "id", uid, self.attempt, op.input_type)
            op.function.committer(context).commit(transactions)

    def run_in_vain(self, inputs: Mapping[str, Sequence[Any]]) -> None:
        """Run the next epoch in such a way that it does not count, and has to be run again."""
        self.number += 1
        self._run(inputs, ended=False)
        self.number -= 1

    def _run(
        self, inputs: Mapping[str, Sequence[Any]], *, ended: bool
    ) -> tuple[list[Barrier], int]:
        """Run an epoch; gives its barriers, and how many tasks have read the sources."""
        batches = {each.uid: self._batches(each, inputs) for each in self.plan.sources}
        places = range(sum(map(len, batches.values())))
        partitions = {each.uid: each.dataframe.partitions for each in self.plan.sources}
        files = dict(zip(places, places, strict=True))
        now = self.time.begin(files, partitions, ended=ended)
        commands = [self._command(program.level.index, now) for program in self.levels.programs]
        return self.levels.run(batches, commands), sum(map(len, batches.values()))

    def _batches(
        self, source: SourcePlan, inputs: Mapping[str, Sequence[Any]]
    ) -> list[pa.RecordBatch]:
        """What each task reads of a source."""
        batches = [
            Batch(source.type, part).arrow for part in self._tasks(inputs.get(source.uid, ()))
        ]
        if not source.partitioned:
            return batches
        return [
            batch.append_column(PARTITION_COLUMN, pa.array([number] * len(part), pa.int64()))
            for name in source.dataframe.partitions
            for number in [partition_number(name)]
            for part in self._tasks(inputs.get(name, ()))
            for batch in [Batch(source.type, part).arrow]
        ]

    def _tasks(self, elements: Sequence[Any]) -> list[list[Any]]:
        """The elements of each task; in their order, if it matters."""
        elements, tasks = list(elements), self.source_tasks
        if not self.plan.strategies:
            return [elements[task::tasks] for task in range(tasks)]
        bounds = [len(elements) * task // tasks for task in range(tasks + 1)]
        return [elements[start:end] for start, end in pairwise(bounds)]

    def _command(self, level: int, now: EpochTime) -> EpochCommand:
        files = self.file_index.of_level(level)
        local, storage, line = str(self.local), self.storage, self.line
        return EpochCommand(
            "job", "id", self.attempt, self.number, self.backend, local, storage, files, line, now,
            self.letters,
        )  # fmt: skip


def collected(stream: DataStream, uid: str) -> CollectSink:
    """Gather a stream."""
    sink = CollectSink()
    stream.sink_to(sink).uid(uid)
    return sink
