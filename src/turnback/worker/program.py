"""What a task knows of its level: the columns it reads and writes, and its state files."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

import pyarrow as pa
import pyarrow.compute as pc

from turnback.errors import PlanError
from turnback.plan.plan import Channel, InputId, Level, Operator, Plan
from turnback.state.files import StateFile, clip_files, in_order
from turnback.values.columns import Batch, stream_columns
from turnback.values.keys import group_range
from turnback.values.typeinfo import TypeInfo
from turnback.worker.event_time import Stamps

TO = "_to"
CHANNEL = "_channel"
CONTROL = "_ctl"
STAMPS = ("_time", "_mark", "_segment", "_row")
Parts = list[tuple[Channel, Batch]]


@dataclass(frozen=True)
class RowLayout:
    """The columns of the rows that go from one level to the next.

    `_to` is the partition a row is sent to (null where Spark computes it from the key columns),
    `_channel` the channel it belongs to, `_ctl` a barrier; if the job has event time, the
    columns of `Stamps`; then the typed columns of every channel, null in the rows of the others.

    In what comes from the sources, `_segment` is the file and `_mark` the block of it, if known.

    Attributes:
        bare: Whether the first three are left out: what Spark reads of a single source has neither
            other channels nor barriers among it, and every column costs the JVM for every row.
    """

    channels: tuple[Channel, ...]
    timed: bool = False
    bare: bool = False

    @cached_property
    def fields(self) -> list[tuple[str, TypeInfo]]:
        return [
            # Unique where Spark takes "n" and "N" for one, and without a need for quotes.
            (f"w{channel.id}_{i}_{re.sub('[^A-Za-z0-9_]', '_', name)}", type)
            for channel in self.channels
            for i, (name, type) in enumerate(stream_columns(channel.row_type))
        ]

    @cached_property
    def spans(self) -> dict[int, slice]:
        """Which of the data columns belong to each channel."""
        spans = {}
        at = 0
        for channel in self.channels:
            width = len(stream_columns(channel.row_type))
            spans[channel.id] = slice(at, at + width)
            at += width
        return spans

    @cached_property
    def stamps(self) -> tuple[str, ...]:
        """The columns for event time, if there are any."""
        return STAMPS if self.timed else ()

    @cached_property
    def schema(self) -> pa.Schema:
        control = [(TO, pa.int32()), (CHANNEL, pa.int32()), (CONTROL, pa.binary())]
        control += [(name, pa.int64()) for name in self.stamps]
        columns = [(name, type.arrow()) for name, type in self.fields]
        return pa.schema(columns if self.bare else control + columns)

    def ddl(self) -> str:
        columns = [f"{TO} int", f"{CHANNEL} int", f"{CONTROL} binary"]
        columns += [f"{name} bigint" for name in self.stamps]
        columns += [f"{name} {type.ddl()}" for name, type in self.fields]
        return ", ".join(columns)

    def pack(self, channel_id: int, elements: Batch, to: pa.Array | None) -> pa.RecordBatch:
        data = elements.arrow
        n = len(elements)
        if self.bare:
            return pa.RecordBatch.from_arrays(data.columns, schema=self.schema)
        arrays: list[pa.Array] = [
            pa.nulls(n, pa.int32()) if to is None else to,
            pa.repeat(pa.scalar(channel_id, pa.int32()), n),
            pa.nulls(n, pa.binary()),
        ]
        if self.timed:
            known = elements.stamps
            arrays += (
                [pa.nulls(n, pa.int64())] * len(STAMPS) if known is None else map(pa.array, known)
            )
        span = self.spans[channel_id]
        for i, (_, type) in enumerate(self.fields):
            mine = span.start <= i < span.stop
            arrays.append(data.column(i - span.start) if mine else pa.nulls(n, type.arrow()))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def barriers(self, targets: Sequence[int], controls: Sequence[bytes]) -> pa.RecordBatch:
        n = len(targets)
        arrays: list[pa.Array] = [
            pa.array(targets, pa.int32()),
            pa.nulls(n, pa.int32()),
            pa.array(controls, pa.binary()),
        ]
        arrays += [pa.nulls(n, pa.int64()) for _ in self.stamps]
        arrays += [pa.nulls(n, type.arrow()) for _, type in self.fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def unpack(self, batch: pa.RecordBatch) -> tuple[Parts, list[bytes]]:
        """Split what arrived into the rows of each channel and the barriers among them."""
        if self.bare:
            (only,) = self.channels
            return [(only, self._project(batch, only))] if batch.num_rows else [], []
        channel = batch.column(1)
        control = batch.column(2)
        barriers: list[bytes] = []
        if control.null_count != len(control):
            barriers = control.drop_null().to_pylist()
            keep = pc.is_null(control)
            batch = batch.filter(keep)
            channel = channel.filter(keep)
        if not batch.num_rows:
            return [], barriers
        if len(self.channels) == 1:
            return [(self.channels[0], self._project(batch, self.channels[0]))], barriers
        parts = []
        for each in self.channels:
            part = batch.filter(pc.equal(channel, each.id))
            if part.num_rows:
                parts.append((each, self._project(part, each)))
        return parts, barriers

    def _project(self, batch: pa.RecordBatch, channel: Channel) -> Batch:
        columns = stream_columns(channel.row_type)
        first = self.spans[channel.id].start + (0 if self.bare else 3 + len(self.stamps))
        arrays = []
        for i, (_, type) in enumerate(columns):
            array = batch.column(first + i)
            wanted = type.arrow()
            # Spark labels timestamps with the session's zone and knows only nullable children.
            arrays.append(array if array.type == wanted else array.cast(wanted))
        names = [name for name, _ in columns]
        elements = Batch(channel.row_type, pa.RecordBatch.from_arrays(arrays, names=names))
        if self.timed and batch.column(3).null_count < batch.num_rows:
            elements.stamps = Stamps(*(batch.column(3 + i).to_numpy() for i in range(len(STAMPS))))
        return elements


PartitionId = tuple[int, int]
"""Level and partition."""


class StateFileIndex:
    """For every partition of every level, the confirmed files its state consists of."""

    def __init__(self, programs: Sequence[LevelProgram]) -> None:
        self._programs = programs
        self._chains: dict[PartitionId, tuple[StateFile, ...]] = {}
        self._whole: dict[str, StateFile] = {}
        self._uses: Counter[str] = Counter()
        """How often files are in chains, so that no change has to look at all of them."""

    def restore(self, files: Iterable[StateFile]) -> None:
        """Assign a snapshot's files to the partitions of this program."""
        ordered = in_order(files)
        for program in self._programs:
            for partition in range(program.level.parallelism or 0):
                chain = clip_files(ordered, program.group_ranges(partition))
                if chain:
                    self._chains[program.level.index, partition] = chain
                    self._uses.update(file.path for file in chain)
        self._whole = {file.path: file for file in ordered if file.path in self._uses}

    def confirm(self, level: int, partition: int, file: StateFile) -> None:
        """Add what a task wrote in an epoch that is now confirmed."""
        self._whole[file.path] = file
        self._uses[file.path] += 1
        self._chains[level, partition] = (*self._chains.get((level, partition), ()), file)

    def replace(self, id: PartitionId, merged: Sequence[StateFile], by: StateFile) -> list[str]:
        """Replace files by the one they were merged into; return paths no chain needs any more."""
        gone = {file.path for file in merged}
        chain = [file for file in self._chains[id] if file.path not in gone]
        self._uses.subtract(file.path for file in self._chains[id] if file.path in gone)
        self._whole[by.path] = by
        self._uses[by.path] += 1
        self._chains[id] = tuple(in_order([*chain, by]))
        unused = sorted(path for path in gone if self._uses[path] == 0)
        for path in unused:
            del self._whole[path]
            del self._uses[path]
        return unused

    def of_level(self, level: int) -> dict[int, tuple[StateFile, ...]]:
        return {p: files for (at, p), files in self._chains.items() if at == level}

    def items(self) -> list[tuple[PartitionId, tuple[StateFile, ...]]]:
        return list(self._chains.items())

    def live(self) -> tuple[StateFile, ...]:
        """Every file some partition needs, whole, each once."""
        return tuple(self._whole.values())


@dataclass(frozen=True)
class LevelProgram:
    """Everything a task must know about its level; the same in every epoch.

    Attributes:
        reads_sources: Whether it runs in the sources' own tasks, before any shuffle.
        upstream_tasks: Number of tasks of the level before, 0 for the first level; None if only
            the driver knows it, for tasks that read the sources.
        next_parallelism: Number of tasks of the next level; None for the last.
        strategies: How late elements may be, by uid of all watermark strategies of the job; None
            for no watermarks.
    """

    level: Level
    input: RowLayout
    output: RowLayout
    reads_sources: bool
    upstream_tasks: int | None
    next_parallelism: int | None
    max_parallelism: int
    strategies: dict[str, int | None] = field(default_factory=dict)

    def group_ranges(self, partition: int) -> dict[str, tuple[int, int]]:
        """The first and last key group of a partition, by uid of its operators with state."""
        return {
            op.uid: group_range(partition, op.parallelism, self.max_parallelism)
            for op in self.level.stateful
            if partition < op.parallelism
        }

    def groups(self, partition: int) -> tuple[int, int]:
        """The key groups a partition may see, over all operators with state; (0, -1) for none."""
        ranges = self.group_ranges(partition).values()
        return (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else (0, -1)

    def layout(self) -> str:
        """What decides which rows of each operator a partition holds."""
        return " ".join(
            f"{op.uid!r}:{op.parallelism}{'*' if op.has_operator_state else ''}"
            for op in self.level.stateful
        )

    def asked_late(self) -> frozenset[str]:
        """The operators that ask for their states when these can be read already, by uid."""
        return frozenset(op.uid for op in self.level.operators if op.has_operator_state)


def source_layout(plan: Plan) -> RowLayout:
    """The columns in which all sources arrive: one channel per source."""
    if plan.native:
        channels = tuple(w for w in plan.channels if w.first_level == -1)
    else:
        channels = tuple(
            Channel(
                i, s.id, (InputId(s.id),), s.read, None, 1, -1, 0, malformed_from=s.malformed_from
            )
            for i, s in enumerate(plan.sources)
        )
    timed = bool(plan.strategies)
    return RowLayout(channels, timed, bare=len(channels) == 1 and not timed)


def level_programs(plan: Plan) -> list[LevelProgram]:
    """The program of every level."""
    by_id = {channel.id: channel for channel in plan.channels}
    strategies = {uid: strategy.bound_ms for uid, strategy in plan.strategies.items()}
    layouts = [
        RowLayout(tuple(by_id[i] for i in level.outputs), bool(strategies)) for level in plan.levels
    ]
    return [
        LevelProgram(
            level,
            input,
            output,
            reads_sources=level.index == 0 and not plan.native,
            upstream_tasks=before.parallelism if before else 0,
            next_parallelism=following.parallelism if following else None,
            max_parallelism=plan.max_parallelism,
            strategies=strategies,
        )
        for level, before, following, input, output in zip_longest(
            plan.levels,
            (None, *plan.levels[:-1]),
            plan.levels[1:],
            [source_layout(plan), *layouts[:-1]],
            layouts,
        )
    ]


def load_program(blob: bytes) -> LevelProgram:
    """Read a pickled program, in a worker."""
    try:
        program: LevelProgram = pickle.loads(blob)
    except (ImportError, AttributeError) as e:
        raise PlanError(
            f"the workers cannot load the program: {e}. Ship your own modules with "
            "spark.addArtifacts(..., pyfile=True) or --py-files, or run where they can be "
            "imported"
        ) from e
    return program


def pickled(program: LevelProgram, pickle_by_value: Callable[[object], bytes]) -> bytes:
    """A program as it is sent to the workers; engines know how to pickle what a script defines."""
    try:
        return pickle_by_value(program)
    except (pickle.PicklingError, TypeError) as e:
        names = [
            op.uid for op in program.level.operators if not _can_be_pickled(op, pickle_by_value)
        ]
        which = f"operator {names[0]!r}" if len(names) == 1 else f"one of the operators {names}"
        raise PlanError(
            f"cannot send {which} to the workers: {e}. It references objects that exist only in "
            "this process: open connections, files, locks and the like in open(), not in the "
            "constructor or around the function"
        ) from e


def _can_be_pickled(operator: Operator, pickle_by_value: Callable[[object], bytes]) -> bool:
    try:
        pickle_by_value(operator)
    except (pickle.PicklingError, TypeError):
        return False
    return True
