"""One partition of a level in a worker: it opens the operators, and runs epoch after epoch."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.errors import ElementTypeError, IncompatibleStateError, TooLargeError
from turnback.functions.event_time import MIN_TIME, within_reach
from turnback.plan.bad_records import MALFORMED, MALFORMED_RECORD, Letter, decode_letter, plain_path
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Channel, Input, InputId, Operator, Routing, SourceOrder
from turnback.values.columns import Batch
from turnback.values.freeze import is_mutable
from turnback.values.keys import partition_of
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, type_from_descriptor
from turnback.worker.context import SinkWriters
from turnback.worker.event_time import ASIDE, FED_BACK, PARTITION, Stamps, TaskTime
from turnback.worker.keys import key_reader
from turnback.worker.local_state import LocalState, ran, snapshot
from turnback.worker.message import (
    Barrier,
    EpochCommand,
    TaskAck,
    TaskName,
    TaskSet,
    align,
    decode_barrier,
    encode_barrier,
    user_error,
)
from turnback.worker.operators import OpenOperators
from turnback.worker.program import LevelProgram
from turnback.worker.runners import Runner

_CACHED_KEYS = 100_000
_CACHED_BYTES = 64 << 20
MOST_BYTES = 64 << 20
"""Of a batch on its way to the next level; only a single row may be larger."""


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
        self._reader = channel.reader
        self._partitioning = channel.partitioning
        if self.routing is Routing.KEY_FUNCTION:
            assert channel.key is not None
            self._keys = key_reader(channel.key, channel.type, channel.reader)
            self._codec = channel.key.codec()

    def start(self, partition: int) -> None:
        """Begin an epoch; tasks start the round robin at different partitions."""
        self._turn = partition

    def copies(self, batch: Batch) -> list[pa.Array | None]:
        """The target of each element, for every copy of the batch that is sent."""
        if self.routing is not Routing.BROADCAST:
            return [self.targets(batch)]
        targets = (pa.scalar(target, pa.int32()) for target in range(self.parallelism))
        return [pa.repeat(target, len(batch)) for target in targets]

    def targets(self, batch: Batch) -> pa.Array | None:
        """The target of each element; None where Spark computes it from the key columns."""
        if self.routing is Routing.KEY_COLUMNS:
            return None
        if self.parallelism == 1:
            return pa.array(np.zeros(len(batch), np.int32))
        if self.routing is Routing.KEY_FUNCTION:
            return self._by_key(batch)
        if self.routing is Routing.CUSTOM:
            return self._by_partitioner(batch)
        if self.routing is Routing.TRANSIT and batch.stamps is not None:
            return self._by_place(batch.stamps)
        n = len(batch)
        first = self._turn
        self._turn = (first + n) % self.parallelism
        return pa.array(((first + i) % self.parallelism for i in range(n)), pa.int32(), size=n)

    def _by_place(self, stamps: Stamps) -> pa.Array:
        """The same partition for all that was made from one element: so it stays in its order."""
        return pa.array((stamps.segment + stamps.row) % self.parallelism, pa.int32())

    def _by_partitioner(self, batch: Batch) -> pa.Array:
        how = self._partitioning
        count = self.parallelism
        row = None
        targets = []
        assert how is not None
        assert how.partition is not None
        assert how.key is not None
        try:
            for row in batch.rows:
                targets.append(how.partition(how.key(row), count))
        except Exception as e:
            raise user_error(e, self._reader, "partition_custom", element=row) from e
        for row, target in zip(batch.rows, targets, strict=True):
            if type(target) is not int or not 0 <= target < count:
                raise ElementTypeError(
                    f"operator {self._reader!r}: the partitioner returned {target!r:.40} for "
                    f"{row!r:.80}; it must return a whole number from 0 to {count - 1}"
                )
        return pa.array(targets, pa.int32())

    def _by_key(self, batch: Batch) -> pa.Array:
        known = self._known
        locate = self._locate
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


def redriven(
    letters: Sequence[bytes], program: LevelProgram, partition: int, time: TaskTime
) -> Iterator[tuple[InputId, Batch]]:
    """The elements of dead letters that belong to a task, for the inputs of its operators."""
    operators = {op.uid: op for op in program.level.operators}
    by_input: defaultdict[tuple[str, int], list[Letter]] = defaultdict(list)
    for letter in map(decode_letter, letters):
        by_input[letter.operator, letter.input].append(letter)
    for (uid, number), some in by_input.items():
        operator = operators.get(uid)
        if operator is None:
            continue  # it is in another level
        read = operator.inputs[number]
        tasks = _tasks(operator, read, some, program)
        mine = [letter for letter, task in zip(some, tasks, strict=True) if task == partition]
        if not mine:
            continue
        batch = Batch(read.type, [element_of(letter, read.type) for letter in mine])
        if program.strategies:
            times = [MIN_TIME if each.time is None else within_reach(each.time) for each in mine]
            mark = time.watermark_before(operator.strategies, operator.uid)
            marks = np.full(len(mine), mark, np.int64)
            batch.stamps = Stamps.of(np.array(times, np.int64), marks, FED_BACK)
        yield InputId(operator.id, number), batch


def _tasks(
    operator: Operator, read: Input, letters: Sequence[Letter], program: LevelProgram
) -> list[int]:
    if read.key is None:
        count = 1 if program.reads_sources else operator.parallelism
        return [letter.task % count for letter in letters]
    batch = Batch(read.type, [element_of(letter, read.type) for letter in letters])
    group = read.key.codec().group
    maximum = program.max_parallelism
    return [
        partition_of(group(key, maximum), operator.parallelism, maximum)
        for key in key_reader(read.key, read.type, operator.uid)(batch)
    ]


def element_of(letter: Letter, wanted: TypeInfo) -> Any:
    """The element of a letter as an operator reads elements now.

    Raises:
        IncompatibleStateError: The operator reads something else now.
    """
    was = type_from_descriptor(letter.type)
    if was.describe() == wanted.describe():
        return Serializer(wanted).decode(letter.element)
    if isinstance(was, RowTypeInfo) and isinstance(wanted, RowTypeInfo):
        there = dict(was.fields())
        if all(there.get(name) == type for name, type in wanted.fields()):
            row = Serializer(was).decode(letter.element)
            values = dict(zip(was.names, row, strict=True))
            return tuple(values[name] for name in wanted.names)
    raise IncompatibleStateError(
        f"operator {letter.operator!r} now reads {wanted}, but the dead letter has {was}"
    )


def check_letter(letter: Letter, operator: Operator | None) -> str | None:
    """Why a letter cannot be fed to an operator of its uid; None if it can."""
    if operator is None:
        return f"the program has no operator {letter.operator!r}"
    if letter.input >= len(operator.inputs):
        return f"operator {letter.operator!r} has no input {letter.input + 1}"
    read = operator.inputs[letter.input]
    try:
        element = element_of(letter, read.type)
        if read.key is not None:
            keys = key_reader(read.key, read.type, operator.uid)(Batch(read.type, [element]))
            read.key.codec().group(keys[0], 1)
    except (IncompatibleStateError, ElementTypeError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - of the user's key function, or damaged bytes
        return f"operator {letter.operator!r} cannot process it: {type(error).__name__}: {error}"
    return None


_NEW_OBJECTS = 50_000
"""After so many more, garbage is collected at the end of an epoch."""
_LAST_WAY = 1 << 32
"""What comes from operators of the same level, after what comes from others."""
_SAMPLE_ROWS = 100
"""A batch of fewer rows is not used to estimate the size of a row."""


class LevelInstance(OpenOperators):
    """One partition of a level in one worker; one after the other, if the level has no state.

    It outlives the epoch, so that user functions stay open; the state behind their handles is
    exchanged for every epoch. Nothing relies on it: another worker may run the next epoch.
    """

    def __init__(self, program: LevelProgram, partition: int) -> None:
        super().__init__(program, partition)
        following = program.next_parallelism
        self.routers = {
            channel.id: Router(channel, program.level.index + 1, following, program.max_parallelism)
            for channel in program.output.channels
            if following is not None
        }

    def run(
        self, command: EpochCommand, name: TaskName, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Run one epoch: process the input, align, snapshot, acknowledge."""
        self.partition = name.partition
        epoch = _Epoch(self, command, name)
        collecting = gc.isenabled()
        gc.disable()  # elements are many, short-lived and free of cycles
        try:
            yield from epoch.run(batches, collecting=collecting)
        except BaseException:
            epoch.sinks.abort()
            raise
        finally:
            epoch.state.close()
            if collecting:
                gc.enable()


def _collecting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; what functions have left in cycles is collected after each of them.

    What is alive then has been there before, or is state: it is looked at as rarely as Python
    itself does, so that the work does not grow with the epoch.
    """
    for number, batch in enumerate(batches, start=1):
        yield batch
        del batch
        _, often, rarely = gc.get_threshold()
        oldest = 2 if number % (often * rarely or 1) == 0 else number % (often or 1) == 0
        gc.collect(int(oldest))


@contextlib.contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Let Python collect garbage by itself, after many more new objects than usual.

    At the end of an epoch functions are called in long loops, for timers, windows and all that was
    put off; there are no batches between which it could be done.
    """
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], _NEW_OBJECTS) if usual[0] else 0, *usual[1:])
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
        gc.set_threshold(*usual)


def _with_class(batch: Batch, wanted: TypeInfo) -> Batch:
    """Elements of the class the reader expects: the streams of a union may differ in it."""
    mine, theirs = (getattr(t, "python_class", None) for t in (batch.type, wanted))
    return batch if mine is theirs else batch.copy(wanted)


def _malformed(uid: str, found: Sequence[Mapping[str, str]]) -> Batch:
    """Malformed records of a source as users see them."""
    places = [plain_path(each["place"]) for each in found]
    columns = [uid] * len(found), places, [each["text"] for each in found]
    arrays = [pa.array(column, pa.string()) for column in columns]
    return Batch(MALFORMED_RECORD, pa.RecordBatch.from_arrays(arrays, MALFORMED_RECORD.names))


class _Epoch:
    """One run of a level instance."""

    def __init__(self, instance: LevelInstance, command: EpochCommand, name: TaskName) -> None:
        self.instance = instance
        self.program = instance.program
        self.name = name
        self.barriers: list[Barrier] = []
        self.emitted: list[tuple[int, Batch]] = []
        self.seconds: dict[str, float] = {}
        self.row_bytes = 0
        self.native_records: Counter[int] = Counter()
        self.malformed: Counter[str] = Counter()
        self.time = instance.time
        program = instance.program
        task = name.partition
        ordered = program.reads_sources
        self.time.begin(command.time, command.epoch, program.level.index, task, ordered=ordered)
        self.sinks = SinkWriters(instance.program.level, command, name)
        self.command = command
        self.state = LocalState(
            instance.program, command, name, instance.backends_of(name.partition)
        )
        for runner in instance.runners.values():
            runner.begin()
            if runner.tolerance is not None:
                runner.tolerance.job_id = command.job_id
                runner.tolerance.attempt = command.attempt

    def run(
        self, batches: Iterable[pa.RecordBatch], *, collecting: bool
    ) -> Iterator[pa.RecordBatch]:
        """Run it; with `collecting`, garbage is collected on the way."""
        for router in self.instance.routers.values():
            router.start(self.instance.partition)
        with self._timed("open"):
            self.state.open()
            self.instance.restore(self.command)
        if self.command.letters:
            with self._timed("process"):
                self._redrive()
            yield from self._packed()
        for batch in _collecting(batches) if collecting else batches:
            with self._timed("process"):
                self._process(batch)
            yield from self._packed()
        self.time.learn(segment for barrier in self.barriers for segment in barrier.segments)
        with (
            self._timed("process"),
            _collecting_seldom() if collecting else contextlib.nullcontext(),
        ):
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

    def _redrive(self) -> None:
        letters = self.command.letters
        partition = self.name.partition
        with self.time.within(ASIDE):
            for input, batch in redriven(letters, self.program, partition, self.time):
                self._emit(batch, (input,))

    def _process(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows >= _SAMPLE_ROWS:
            self.row_bytes = max(self.row_bytes, -(-batch.nbytes // batch.num_rows))
        parts, controls = self.program.input.unpack(batch)
        self.barriers += map(decode_barrier, controls)
        here = self.program.level.index
        for channel, elements in parts:
            if channel.last_level > here:
                self.emitted.append((channel.id, elements))
            elif self.program.reads_sources and self.program.strategies:
                order = self.instance.operators[channel.producer].source_order
                for segment in self._segments(elements, order):
                    self._receive(channel, segment)
            else:
                self._receive(channel, elements)

    def _receive(self, channel: Channel, elements: Batch) -> None:
        self.time.way = channel.id
        if channel.malformed_from:
            elements = self._split_malformed(channel, elements)
        if channel.first_level < 0:
            self.native_records[channel.id] += len(elements)
        if len(elements):
            self._emit(elements, channel.consumers)

    def _split_malformed(self, channel: Channel, elements: Batch) -> Batch:
        """What of the records of a source is well-formed; who wants the others gets them."""
        *columns, malformed = elements.arrow.columns
        names = elements.arrow.schema.names[:-1]
        records = pa.RecordBatch.from_arrays(columns, names=names)
        if malformed.null_count < len(malformed):
            records = records.filter(malformed.is_null())
            found = malformed.drop_null().to_pylist()
            self.malformed[channel.malformed_from] += len(found)
            source = self.instance.operators.get(channel.producer)
            side_outputs = (
                {tag: node for tag, node, _ in source.side_outputs} if source is not None else {}
            )
            if MALFORMED in side_outputs:
                aside = _malformed(channel.malformed_from, found)
                self._emit(aside, (InputId(side_outputs[MALFORMED]),))
        return Batch(channel.type, records)

    def _segments(self, elements: Batch, order: SourceOrder) -> Iterator[Batch]:
        """Cut what comes from a source where another part of the source begins."""
        stamps = elements.stamps
        if stamps is None:
            self.time.enter(0, 0, order.partition)
            yield elements
            return
        # In a partition the offset changes from row to row.
        blocks = np.maximum(stamps.mark, PARTITION)
        new = (np.diff(stamps.segment) != 0) | (np.diff(blocks) != 0)
        starts = [0, *(np.flatnonzero(new) + 1).tolist(), len(elements)]
        for start, end in pairwise(starts):
            file = int(stamps.segment[start])
            block = int(stamps.mark[start])
            self.time.enter(file, block, order.partition)
            yield Batch(elements.type, elements.arrow.slice(start, end - start))

    def _finish(self) -> None:
        """Let operators process what they have put off, in the order data flows through them."""
        self.time.way = _LAST_WAY
        for node, operator in self.instance.operators.items():
            runner = self.instance.runners.get(node)
            if runner is None:  # a sink, or an operator without a subtask here
                continue
            out = runner.finish()
            if out is not None:
                self._emit(out, operator.consumers, operator.channels)
            self._emit_beside(operator, runner)

    def _packed(self) -> Iterator[pa.RecordBatch]:
        """What has been emitted since the last call, as it goes to the next level.

        One batch after the other, so that a large output is not held twice.
        """
        emitted = self.emitted
        self.emitted = []
        for channel_id, batch in emitted:
            pieces = bounded(batch)
            while True:
                with self._timed("process"):
                    elements = next(pieces, None)
                    if elements is None:
                        break
                    copies = self.instance.routers[channel_id].copies(elements)
                    pack = self.program.output.pack
                    packed = [pack(channel_id, elements, targets) for targets in copies]
                yield from packed

    def _emit(
        self, batch: Batch, consumers: Sequence[InputId], channels: Sequence[int] = ()
    ) -> None:
        """Give a batch to all its readers, what they make of it to theirs, and so on.

        None sees what another one does to the elements. A loop, because a chain of operators may
        be longer than Python lets calls be nested.
        """
        waiting = self._given(batch, consumers, channels)
        while waiting:
            (node, input), batch = waiting.pop()
            operator = self.instance.operators[node]
            if operator.inputs:
                batch = _with_class(batch, operator.inputs[input].type)
            if operator.kind is NodeKind.SINK:
                self.sinks.write(operator, batch)
                continue
            runner = self.instance.runners[node]
            out = runner.run(batch, input)
            if out is not None:
                waiting += self._given(out, operator.consumers, operator.channels)
            self._emit_beside(operator, runner)

    def _emit_beside(self, operator: Operator, runner: Runner) -> None:
        """What a runner has given besides what it returned."""
        parts = runner.parts
        runner.parts = []
        for part, batch in parts:
            with self.time.within(part):
                self._emit(batch, operator.consumers, operator.channels)
        side_outputs = runner.side_outputs
        runner.side_outputs = []
        for node, batch in side_outputs:
            self._emit(batch, (InputId(node),))

    def _given(
        self, batch: Batch, consumers: Sequence[InputId], channels: Sequence[int]
    ) -> list[tuple[InputId, Batch]]:
        """What each consumer is to read, the last one first; channels have theirs at once."""
        copied = len(consumers) + len(channels) > 1 and is_mutable(batch.type)
        for channel in channels:
            self.emitted.append((channel, batch.copy() if copied else batch))
        return [(consumer, batch.copy() if copied else batch) for consumer in reversed(consumers)]

    def _snapshot(self) -> TaskAck:
        level = self.program.level
        where = f"level {level.index}, partition {self.name.partition}"
        upstream = align(self.barriers, self.program.upstream_tasks, where)
        for node in self.instance.operator_backends:
            if node in self.instance.runners:  # else it has no subtask here
                snapshot(self.instance.operators[node], self.command)
        state = self.state.snapshot()
        transactions = self.sinks.prepare()
        self.instance.ran = ran(self.command, state)
        return TaskAck(
            level.index,
            self.name,
            TaskSet.of(upstream),
            state,
            self.state.schemas(),
            transactions,
            self._records(),
            self.state.opened,
            self.seconds,
            self.row_bytes,
            self._next_timer(),
            self._left_out(),
            dict(self.native_records),
            dict(self.malformed),
            self._busy(),
        )

    def _next_timer(self) -> int | None:
        times = [runner.next_timer() for runner in self.instance.runners.values()]
        return min((time for time in times if time is not None), default=None)

    def _left_out(self) -> dict[str, int]:
        operators = self.instance.operators
        runners = self.instance.runners
        tolerant = {operators[id].uid: r.tolerance for id, r in runners.items()}
        return {uid: each.failed for uid, each in tolerant.items() if each and each.failed}

    def _records(self) -> dict[str, tuple[int, int]]:
        operators = self.instance.operators
        counts = {operators[i].uid: (r.read, r.written) for i, r in self.instance.runners.items()}
        counts.update({uid: (n, n) for uid, n in self.sinks.counts.items()})
        return counts

    def _busy(self) -> dict[str, float]:
        operators = self.instance.operators
        own = {operators[i].uid: runner.busy_s for i, runner in self.instance.runners.items()}
        return own | self.sinks.busy_s

    def _acknowledge(self, ack: TaskAck) -> pa.RecordBatch:
        """Barriers for every downstream partition; one of them carries the acknowledgements."""
        level = self.program.level
        acks = (*(a for b in self.barriers for a in b.acks), ack)
        targets = range(self.program.next_parallelism or 1)
        carrier = self.name.partition % len(targets)
        segments = self.time.segments()
        controls = [
            encode_barrier(Barrier(level.index, self.name, acks if t == carrier else (), segments))
            for t in targets
        ]
        return self.program.output.barriers(targets, controls)
