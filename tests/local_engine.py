"""Runs any program level by level in this process: the real planner, tasks, barriers and chains.

Only Spark's part is done here: splitting the sources into tasks, and the shuffle.
"""

from __future__ import annotations

import pickle
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from turnback import CollectSink, DataStream, StreamExecutionEnvironment
from turnback.program.plan import Plan, Routing
from turnback.sinks.base import CommitterContext
from turnback.spark.epochs import EpochAcks, run_epoch
from turnback.state.files import StateFile, StorageRef
from turnback.types.columns import Batch, stream_columns
from turnback.types.hints import as_type
from turnback.types.keys import partition_of
from turnback.types.typeinfo import TypeInfo
from turnback.worker.level import LevelInstance
from turnback.worker.message import INJECTED, Order, TaskName, encode_barrier
from turnback.worker.program import Chains, LevelProgram, level_programs, source_hop
from turnback.worker.routing import Hop

Parts = dict[int, list[pa.RecordBatch]]


@dataclass
class FakeFrame:
    """As much of a streaming DataFrame as building a program needs."""

    schema: Any
    isStreaming: bool = True  # noqa: N815 - Spark's name

    @property
    def columns(self) -> list[str]:
        return [name for name, _ in stream_columns(as_type(self.schema))]

    @property
    def _jdf(self) -> Any:
        """A query plan that is one stream."""
        no_children = SimpleNamespace(size=lambda: 0)
        leaf = SimpleNamespace(
            nodeName=lambda: "StreamingRelation",
            children=lambda: no_children,
            isStreaming=lambda: self.isStreaming,
        )
        return SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: leaf))


def environment(parallelism: int = 2, **configuration: Any) -> StreamExecutionEnvironment:
    """An environment that never starts Spark."""
    env = StreamExecutionEnvironment(None, None, configuration)
    return env.set_parallelism(parallelism)


def source(env: StreamExecutionEnvironment, uid: str, schema: Any) -> DataStream:
    """A stream of the rows that `LocalEngine.epoch` is given under this uid."""
    stream = env.from_dataframe(FakeFrame("value bigint"), uid)  # type: ignore[arg-type]
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
        backend: str = "rocksdb",
        source_tasks: int = 2,
    ) -> None:
        self.plan, self.attempt, self.backend = plan, attempt, backend
        self.line = f"{attempt}-{uuid.uuid4().hex}"
        self.number, self.source_tasks, self.tasks = epoch, source_tasks, attempt * 1_000_000
        self.local = root / "local"
        self.storage = StorageRef(str(root / "job"))
        self.programs = level_programs(plan)
        self.instances: dict[tuple[int, int], LevelInstance] = {}
        self.chains = Chains(self.programs, plan.max_parallelism)
        self.chains.restore(files)
        self.acks: EpochAcks | None = None

    def epoch(self, inputs: Mapping[str, Sequence[Any]]) -> None:
        """Run one epoch over the elements of each source, and commit its sinks."""
        self.number += 1
        parts = self._inputs(inputs)
        for program in self.programs:
            parts = self._level(program, parts)
        last = [batch for batches in parts.values() for batch in batches]
        rows = [row for batch in last for row in batch.to_pylist()]
        frame: Any = SimpleNamespace(collect=lambda: rows)
        self.acks = run_epoch(frame, self.plan.levels)
        for ack in self.acks.acks:
            if ack.state is not None:
                self.chains.confirm(ack.level, ack.name.partition, ack.state)
        for uid, transactions in self.acks.transactions().items():
            (op,) = (op for op in self.plan.operators() if op.uid == uid)
            context = CommitterContext("job", "id", uid, self.attempt, op.input_type)
            op.function.committer(context).commit(transactions)

    def _inputs(self, inputs: Mapping[str, Sequence[Any]]) -> Parts:
        """The rows of the source hop, as Spark would give them to the first level's tasks."""
        hop, parts = source_hop(self.plan), defaultdict[int, list[pa.RecordBatch]](list)
        by_producer = {wire.producer: wire for wire in hop.wires}
        for number, each in enumerate(self.plan.sources):
            wire, rows = by_producer[each.id], list(inputs.get(each.uid, ()))
            for task in range(self.source_tasks):
                data = Batch(each.type, rows[task :: self.source_tasks]).arrow
                packed = hop.pack(wire, data, None)
                parts[number * self.source_tasks + task].append(packed)
        barrier = encode_barrier(INJECTED)
        if not self.plan.native:
            parts[max(parts) + 1] = [hop.barriers([0], [barrier])]
            return parts
        shuffled = self._shuffled(self.programs[0], parts)
        for partition in range(self.programs[0].level.parallelism or 0):
            shuffled[partition].append(hop.barriers([partition], [barrier]))
        return shuffled

    def _level(self, program: LevelProgram, parts: Parts) -> Parts:
        level = program.level
        if level.parallelism is not None and not (level.index == 0 and self.plan.native):
            parts = self._shuffled(program, parts)
        out: Parts = {}
        count = len(parts) if level.parallelism is None else level.parallelism
        for partition in range(count):
            key = (level.index, -1 if program.reads_sources else partition)
            if key not in self.instances:
                # As in a worker: the functions are its own.
                own = pickle.loads(cloudpickle.dumps(program))
                self.instances[key] = LevelInstance(own, partition)
            self.tasks += 1
            out[partition] = list(
                self.instances[key].run(
                    self._order(level.index),
                    TaskName(partition, self.tasks),
                    parts.get(partition, []),
                )
            )
        return out

    def _order(self, level: int) -> Order:
        files = self.chains.of_level(level)
        local, storage = str(self.local), self.storage
        return Order(
            "job", "id", self.attempt, self.number, self.backend, local, storage, files, self.line
        )  # fmt: skip

    def _shuffled(self, program: LevelProgram, parts: Parts) -> Parts:
        """What `repartitionById` does."""
        shuffled = defaultdict[int, list[pa.RecordBatch]](list)
        for batches in parts.values():
            for batch in batches:
                targets = self._targets(program, batch)
                for partition in sorted(set(targets)):
                    mine = pa.array([t == partition for t in targets])
                    shuffled[partition].append(batch.filter(mine))
        return shuffled

    def _targets(self, program: LevelProgram, batch: pa.RecordBatch) -> list[int]:
        hop, maximum = program.input, program.max_parallelism
        targets: list[int] = batch.column(0).to_pylist()
        for wire in hop.wires:
            if wire.routing(program.level.index) is not Routing.KEY_COLUMNS:
                continue
            assert wire.key is not None
            codec = wire.key.codec()
            for i, (target, number) in enumerate(zip(targets, batch.column(1).to_pylist(),
                                                     strict=True)):  # fmt: skip
                if target is None and number == wire.id:
                    key = self._key(hop, wire, batch.slice(i, 1))
                    group = codec.group(key, maximum)
                    targets[i] = partition_of(group, wire.parallelism, maximum)
        return targets

    def _key(self, hop: Hop, wire: Any, row: pa.RecordBatch) -> Any:
        ((_, data),) = hop.unpack(row)[0]
        names = [name for name, _ in stream_columns(wire.type)]
        columns = {n: data.column(i).to_pylist()[0] for i, n in enumerate(names)}
        key = tuple(columns[c] for c in wire.key.columns)
        return key if len(key) > 1 else key[0]


def collected(stream: DataStream, uid: str) -> CollectSink:
    """Gather a stream."""
    sink = CollectSink()
    stream.sink_to(sink).uid(uid)
    return sink


def columns_of(type_: TypeInfo) -> list[str]:
    """The names of a stream's columns."""
    return [name for name, _ in stream_columns(type_)]
