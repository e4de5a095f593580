"""Runs the levels of a program in this process: the real tasks and barriers, without Spark.

Only Spark's part is done here: splitting the sources into tasks, and the shuffle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.core.errors import TurnbackError
from turnback.plan.plan import Channel, Plan, Routing
from turnback.plan.sources import PARTITION_COLUMN
from turnback.spark.pickling import pickle_by_value
from turnback.values.columns import Batch, from_column, stream_columns
from turnback.values.keys import partition_of
from turnback.worker.level import LevelInstance
from turnback.worker.message import (
    Barrier,
    Order,
    TaskName,
    decode_barrier,
    decode_error,
    encode_error,
)
from turnback.worker.program import (
    LevelProgram,
    level_programs,
    load_program,
    pickled,
    source_layout,
)
from turnback.worker.stamps import PARTITION, Stamps

_MOST_ROWS = 10_000
"""The default of spark.sql.execution.arrow.maxRecordsPerBatch."""

Partitions = dict[int, list[pa.RecordBatch]]
BeforeTask = Callable[[LevelProgram], None]


class Levels:
    """The levels of one attempt, run one task after the other; `before_task` may raise.

    Args:
        readers: How many tasks read the sources, each of them several batches; None for a task per
            batch.
    """

    def __init__(
        self,
        plan: Plan,
        before_task: BeforeTask = lambda program: None,
        *,
        readers: int | None = None,
    ):
        self.programs = level_programs(plan)
        self._plan = plan
        self._before_task = before_task
        self._readers = readers
        self._blobs = [pickled(program, pickle_by_value) for program in self.programs]
        self._instances: dict[tuple[int, int], LevelInstance] = {}
        self._tasks = 0

    def run(
        self, inputs: Mapping[str, Sequence[pa.RecordBatch]], orders: Sequence[Order]
    ) -> list[Barrier]:
        """Run one epoch over the batches of each source."""
        parts = self._source_tasks(inputs) or {0: []}
        for program, order in zip(self.programs, orders, strict=True):
            parts = self._run_level(program, order, parts)
        batches = [batch for batches in parts.values() for batch in batches]
        controls = [c for batch in batches for c in self.programs[-1].output.unpack(batch)[1]]
        return [decode_barrier(control) for control in controls]

    def close(self) -> None:
        while self._instances:
            self._instances.popitem()[1].close()

    def _source_tasks(self, inputs: Mapping[str, Sequence[pa.RecordBatch]]) -> Partitions:
        """The input of the first level."""
        layout = source_layout(self._plan)
        channels = {channel.producer: channel for channel in layout.channels}
        tasks: Partitions = {}
        for source in self._plan.sources:
            channel = channels[source.id]
            columns = [name for name, _ in stream_columns(channel.row_type)]
            for batch in inputs.get(source.uid, ()):
                elements = Batch(channel.row_type, batch.select(columns))
                # Batches are in the order of their source, or of their partition.
                number = np.full(len(elements), len(tasks), np.int64)
                part = number
                block = 0 * number
                if PARTITION_COLUMN in batch.schema.names:
                    part = batch[PARTITION_COLUMN].to_numpy()
                    block = PARTITION - number
                elements.stamps = Stamps(number, block, part, 0 * number)
                tasks[len(tasks)] = [layout.pack(channel.id, elements, None)]
        return self._read_together(tasks)

    def _read_together(self, tasks: Partitions) -> Partitions:
        """The batches of so many tasks in the first of them; the others have nothing to read.

        Each reads some that follow one another, as it does of a partition.
        """
        if self._readers is None or len(tasks) <= self._readers:
            return tasks
        shared: Partitions = {task: [] for task in tasks}
        for task, batches in tasks.items():
            shared[task * self._readers // len(tasks)] += batches
        return shared

    def _run_level(self, program: LevelProgram, order: Order, parts: Partitions) -> Partitions:
        level = program.level
        if level.parallelism is not None:
            parts = self._shuffle(program, parts)
        count = len(parts) if level.parallelism is None else level.parallelism
        return {
            partition: self._run_task(program, order, partition, parts.get(partition, []))
            for partition in range(count)
        }

    def _run_task(
        self, program: LevelProgram, order: Order, partition: int, batches: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        key = (program.level.index, -1 if program.reads_sources else partition)
        self._tasks += 1
        try:
            self._before_task(program)
            if key not in self._instances:
                # As in a worker: the functions are its own.
                own = load_program(self._blobs[program.level.index])
                self._instances[key] = LevelInstance(own, partition)
            name = TaskName(partition, order.attempt * 1_000_000 + self._tasks)
            pieces = [piece for batch in batches for piece in _as_spark_gives_them(batch)]
            return list(self._instances[key].run(order, name, pieces))
        except BaseException as error:
            # What the functions of the instance hold may be half done.
            with suppress(Exception):
                self._instances.pop(key).close()
            if isinstance(error, TurnbackError):
                # As it would come back from a worker: its class and its text, nothing else.
                raise decode_error(encode_error(error)) from None
            raise

    def _shuffle(self, program: LevelProgram, parts: Partitions) -> Partitions:
        shuffled: Partitions = defaultdict(list)
        for batches in parts.values():
            for batch in batches:
                targets = self._targets(program, batch)
                for partition in sorted(set(targets)):
                    mine = pa.array([target == partition for target in targets])
                    shuffled[partition].append(batch.filter(mine))
        return shuffled

    def _targets(self, program: LevelProgram, batch: pa.RecordBatch) -> list[int]:
        """The partition of each row: given, or computed from its key columns."""
        if program.input.bare:
            parts, _ = program.input.unpack(batch)  # none, if there are no rows
            maximum = program.max_parallelism
            return [p for channel, e in parts for p in _key_partitions(channel, e.arrow, maximum)]
        targets: list[int] = batch.column(0).to_pylist()
        for channel in program.input.channels:
            if channel.routing(program.level.index) is Routing.KEY_COLUMNS:
                rows = np.flatnonzero(pc.equal(batch.column(1), channel.id).fill_null(False))
                if len(rows):
                    ((_, elements),) = program.input.unpack(batch.take(pa.array(rows)))[0]
                    partitions = _key_partitions(channel, elements.arrow, program.max_parallelism)
                    for row, partition in zip(rows, partitions, strict=True):
                        targets[row] = partition
        return targets


def _as_spark_gives_them(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """A batch in pieces of at most as many rows as Spark puts into one."""
    starts = range(0, batch.num_rows, _MOST_ROWS)
    return [batch.slice(start, _MOST_ROWS) for start in starts] or [batch]


def _key_partitions(channel: Channel, data: pa.RecordBatch, max_parallelism: int) -> list[int]:
    assert channel.key is not None
    group = channel.key.codec().group
    names = [name for name, _ in stream_columns(channel.type)]
    columns = [
        from_column(data.column(names.index(name)), type)
        for name, type in zip(channel.key.columns, channel.key.types, strict=True)
    ]
    keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    partitions = []
    for key in keys:
        # Null keys have to go somewhere: the operator refuses them, and names itself.
        is_null = key is None or (len(columns) > 1 and None in key)
        number = 0 if is_null else group(key, max_parallelism)
        partitions.append(partition_of(number, channel.parallelism, max_parallelism))
    return partitions
