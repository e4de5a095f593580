"""One partition of a level in a worker: it opens the operators, and runs epoch after epoch."""

from __future__ import annotations

import contextlib
import copy
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from turnback.core.errors import ElementTypeError, PlanError, TooLargeError
from turnback.program.functions import Function, KeyedBatchFunction, declared_states
from turnback.program.graph import NodeKind
from turnback.program.plan import Channel, Operator, Routing
from turnback.state.backend import KeyedStateBackend
from turnback.types.columns import Batch
from turnback.types.frozen import is_mutable
from turnback.types.keys import partition_of
from turnback.types.typeinfo import TypeInfo
from turnback.worker.batch_runners import CombineRunner, KeyedBatchRunner, MapBatchesRunner
from turnback.worker.context import SinkWriters, TaskContext
from turnback.worker.keys import key_reader
from turnback.worker.local_state import LocalState
from turnback.worker.message import (
    Barrier,
    Order,
    TaskAck,
    TaskName,
    align,
    decode_barrier,
    encode_barrier,
    user_error,
)
from turnback.worker.program import LevelProgram
from turnback.worker.runners import (
    FilterRunner,
    FlatMapRunner,
    KeyedProcessRunner,
    MapRunner,
    ReduceRunner,
    Runner,
    SourceRunner,
)

_CACHED_KEYS = 100_000
_CACHED_BYTES = 64 << 20
MOST_BYTES = 64 << 20
"""Of a batch on its way to the next level; only a single row may be larger."""
_SAMPLE_ROWS = 100
"""A batch of fewer rows is not used to estimate the size of a row."""


class LevelInstance:
    """One partition of a level in one worker; one after the other, if the level has no state.

    It outlives the epoch, so that user functions stay open; the state behind their handles is
    exchanged for every epoch. Nothing relies on it: another worker may run the next epoch.
    """

    def __init__(self, program: LevelProgram, partition: int) -> None:
        self.program = program
        self.partition = partition
        self.operators = {op.id: op for op in _unshared(program.level.operators)}
        self.backends: dict[int, KeyedStateBackend] = {}
        self.runners: dict[int, Runner] = {}
        self.opened: list[Function] = []
        for operator in self.operators.values():
            if operator.kind is not NodeKind.SINK:
                self._prepare(operator)
        following = program.next_parallelism
        self.routers = {
            channel.id: Router(channel, program.level.index + 1, following, program.max_parallelism)
            for channel in program.output.channels
            if following is not None
        }

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()

    def run(
        self, order: Order, name: TaskName, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Run one epoch: process the input, align, snapshot, acknowledge."""
        self.partition = name.partition
        epoch = _Epoch(self, order, name)
        collecting = gc.isenabled()
        gc.disable()  # elements are many, short-lived and free of cycles
        try:
            yield from epoch.run(batches)
        except BaseException:
            epoch.sinks.abort()
            raise
        finally:
            epoch.state.close()
            if collecting:
                gc.enable()

    def _prepare(self, operator: Operator) -> None:
        backend = None
        if operator.key is not None:
            backend = KeyedStateBackend(
                operator.uid, operator.key.codec(), self.program.max_parallelism
            )
            self.backends[operator.id] = backend
        function = operator.function
        if isinstance(function, Function):
            context = TaskContext(
                operator, lambda: self.partition, self.program.max_parallelism, backend
            )
            if backend is not None:
                for attribute, descriptor in declared_states(function).items():
                    function.__dict__[attribute] = context.register(descriptor)
            try:
                function.open(context)
            except PlanError:
                raise  # no restart would help
            except Exception as e:
                raise user_error(e, operator.uid, operator.name, where="open()") from e
            self.opened.append(function)
            context.is_open = False
        self.runners[operator.id] = _make_runner(operator, backend)


def _make_runner(operator: Operator, backend: KeyedStateBackend | None) -> Runner:
    if backend is None:
        return _WITHOUT_KEY[operator.kind](operator)
    if operator.kind is NodeKind.REDUCE:
        return ReduceRunner(operator, backend)
    if isinstance(operator.function, KeyedBatchFunction):
        return KeyedBatchRunner(operator)
    return KeyedProcessRunner(operator, backend)


_WITHOUT_KEY: dict[NodeKind, Callable[[Operator], Runner]] = {
    NodeKind.SOURCE: SourceRunner,
    NodeKind.MAP: MapRunner,
    NodeKind.FLAT_MAP: FlatMapRunner,
    NodeKind.FILTER: FilterRunner,
    NodeKind.MAP_BATCHES: MapBatchesRunner,
    NodeKind.COMBINE: CombineRunner,
    NodeKind.PROCESS: FlatMapRunner,
}


class Router:
    """Assigns the elements of a channel to partitions of the next level."""

    def __init__(
        self, channel: Channel, into_level: int, next_parallelism: int, max_parallelism: int
    ):
        self.routing = channel.routing(into_level)
        self.parallelism = channel.parallelism
        if self.routing is Routing.TRANSIT:
            self.parallelism = next_parallelism
        self.max_parallelism = max_parallelism
        self._turn = 0
        self._known: dict[object, int] = {}
        self._known_bytes = 0
        if self.routing is Routing.KEY_FUNCTION:
            assert channel.key is not None
            self._reader = channel.reader
            self._keys = key_reader(channel.key, channel.type, channel.reader)
            self._codec = channel.key.codec()

    def start(self, partition: int) -> None:
        """Begin an epoch; tasks start the round robin at different partitions."""
        self._turn = partition

    def targets(self, batch: Batch) -> pa.Array | None:
        """The target of each element; None where Spark computes it from the key columns."""
        if self.routing is Routing.KEY_COLUMNS:
            return None
        if self.routing is Routing.KEY_FUNCTION:
            return self._by_key(batch)
        n, first = len(batch), self._turn
        self._turn = (first + n) % self.parallelism
        return pa.array(((first + i) % self.parallelism for i in range(n)), pa.int32(), size=n)

    def _by_key(self, batch: Batch) -> pa.Array:
        known, locate = self._known, self._locate
        if len(known) > _CACHED_KEYS or self._known_bytes > _CACHED_BYTES:
            known.clear()
            self._known_bytes = 0
        targets = []
        for key in self._keys(batch):
            target = known.get(key)
            targets.append(locate(key) if target is None else target)
        return pa.array(targets, pa.int32())

    def _locate(self, key: Any) -> int:
        try:
            group = self._codec.group(key, self.max_parallelism)
        except ElementTypeError as e:
            raise type(e)(f"operator {self._reader!r}: {e}") from None
        self._known_bytes += len(self._codec.encode(key))
        target = self._known[key] = partition_of(group, self.parallelism, self.max_parallelism)
        return target


def _with_class(batch: Batch, wanted: TypeInfo | None) -> Batch:
    """Elements of the class the reader expects: the streams of a union may differ in it."""
    mine, theirs = (getattr(t, "python_class", None) for t in (batch.type, wanted))
    return batch if wanted is None or mine is theirs else Batch(wanted, batch.arrow)


def bounded(elements: Batch) -> Iterator[Batch]:
    """The elements in batches that Spark can take: it and Arrow end at 2 GiB."""
    try:
        if elements.arrow.nbytes <= MOST_BYTES or len(elements) == 1:
            yield elements
            return
    except TooLargeError:
        if len(elements) == 1:
            raise
    for half in elements.halves():
        yield from bounded(half)


def _unshared(operators: Iterable[Operator]) -> list[Operator]:
    """Operators that were given one and the same function object get a copy each."""
    seen: set[int] = set()
    unshared = []
    for op in operators:
        if id(op.function) in seen and isinstance(op.function, Function):
            op = replace(op, function=copy.deepcopy(op.function))
        seen.add(id(op.function))
        unshared.append(op)
    return unshared


class _Epoch:
    """One run of a level instance."""

    def __init__(self, instance: LevelInstance, order: Order, name: TaskName) -> None:
        self.instance = instance
        self.program = instance.program
        self.name = name
        self.barriers: list[Barrier] = []
        self.emitted: list[tuple[int, Batch]] = []
        self.seconds: dict[str, float] = {}
        self.row_bytes = 0
        self.sinks = SinkWriters(instance.program.level, order, name)
        self.state = LocalState(instance.program, order, name, list(instance.backends.values()))
        for runner in instance.runners.values():
            runner.begin()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for router in self.instance.routers.values():
            router.start(self.instance.partition)
        with self._timed("open"):
            self.state.open()
        for batch in batches:
            with self._timed("process"):
                self._process(batch)
            yield from self._packed()
        with self._timed("process"):
            self._finish()
        yield from self._packed()
        with self._timed("snapshot"):
            ack = self._snapshot()
        yield self._acknowledge(ack)

    @contextlib.contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start

    def _process(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows >= _SAMPLE_ROWS:
            self.row_bytes = max(self.row_bytes, -(-batch.nbytes // batch.num_rows))
        parts, controls = self.program.input.unpack(batch)
        self.barriers += map(decode_barrier, controls)
        here = self.program.level.index
        for channel, data in parts:
            elements = Batch(channel.type, data)
            if channel.last_level > here:
                self.emitted.append((channel.id, elements))
            else:
                self._emit(elements, channel.consumers)

    def _finish(self) -> None:
        """Let operators process what they have put off, in the order data flows through them."""
        for node, runner in self.instance.runners.items():
            out = runner.finish()
            if out is not None:
                operator = self.instance.operators[node]
                self._emit(out, operator.consumers, operator.channels)

    def _packed(self) -> Iterator[pa.RecordBatch]:
        """What has been emitted since the last call, as it goes to the next level.

        One batch after the other, so that a large output is not held twice.
        """
        emitted, self.emitted = self.emitted, []
        for channel_id, batch in emitted:
            pieces = bounded(batch)
            while True:
                with self._timed("process"):
                    elements = next(pieces, None)
                    if elements is None:
                        break
                    targets = self.instance.routers[channel_id].targets(elements)
                    packed = self.program.output.pack(channel_id, elements.arrow, targets)
                yield packed

    def _emit(self, batch: Batch, consumers: Sequence[int], channels: Sequence[int] = ()) -> None:
        """Give a batch to all its readers, what they make of it to theirs, and so on.

        None sees what another one does to the elements. A loop, because a chain of operators may
        be longer than Python lets calls be nested.
        """
        waiting = self._given(batch, consumers, channels)
        while waiting:
            node, batch = waiting.pop()
            operator = self.instance.operators[node]
            batch = _with_class(batch, operator.input_type)
            if operator.kind is NodeKind.SINK:
                self.sinks.write(operator, batch)
                continue
            out = self.instance.runners[node].run(batch)
            if out is not None:
                waiting += self._given(out, operator.consumers, operator.channels)

    def _given(
        self, batch: Batch, consumers: Sequence[int], channels: Sequence[int]
    ) -> list[tuple[int, Batch]]:
        """What each consumer is to read, the last one first; channels have theirs at once."""
        copied = len(consumers) + len(channels) > 1 and is_mutable(batch.type)
        for channel in channels:
            one = Batch(batch.type, batch.arrow) if copied else batch
            self.emitted.append((channel, one))
        return [
            (consumer, Batch(batch.type, batch.arrow) if copied else batch)
            for consumer in reversed(consumers)
        ]

    def _snapshot(self) -> TaskAck:
        level = self.program.level
        where = f"level {level.index}, partition {self.name.partition}"
        upstream = align(self.barriers, self.program.upstream_tasks, where)
        state = self.state.snapshot()
        transactions = self.sinks.prepare()
        return TaskAck(
            level.index,
            self.name,
            upstream,
            state,
            self.state.schemas(),
            transactions,
            self._records(),
            self.state.opened,
            self.seconds,
            self.row_bytes,
        )

    def _records(self) -> dict[str, tuple[int, int]]:
        operators = self.instance.operators
        counts = {operators[i].uid: (r.read, r.written) for i, r in self.instance.runners.items()}
        counts.update({uid: (n, 0) for uid, n in self.sinks.counts.items()})
        return counts

    def _acknowledge(self, ack: TaskAck) -> pa.RecordBatch:
        """Barriers for every downstream partition; one of them carries the acknowledgements."""
        level = self.program.level
        acks = (*(a for b in self.barriers for a in b.acks), ack)
        targets = range(self.program.next_parallelism or 1)
        carrier = self.name.partition % len(targets)
        controls = [
            encode_barrier(Barrier(level.index, self.name, acks if t == carrier else ()))
            for t in targets
        ]
        return self.program.output.barriers(targets, controls)
