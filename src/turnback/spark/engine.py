"""Runs jobs on a Spark session."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from os.path import abspath, split
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from turnback.checkpoint.source_offsets import open_partitions
from turnback.driver.collection import encode_collection
from turnback.driver.engine import EpochInput, Sources, Task
from turnback.driver.job import JobSpec
from turnback.driver.positions import Positions
from turnback.errors import EpochConflictError, SourceError
from turnback.functions.base import needs_closing
from turnback.plan.bad_records import ErrorPolicy, plain_path
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Channel, Plan, Routing
from turnback.plan.sources import EpochLimit, spark_hash
from turnback.spark.idle import IdleQuery, saving_idle_time
from turnback.spark.internals import (
    OUTPUT_LOST,
    POLLING,
    MicroBatch,
    lost_jvm,
    own_session,
    streaming_query,
)
from turnback.spark.pickling import pickle_by_value
from turnback.spark.session import Scratch, check_spark
from turnback.spark.sources import (
    CORRUPT_COLUMN,
    PERMISSIVE,
    CollectionSource,
    leaf_directories,
    literal_pattern,
    malformed_record,
    no_sources,
    single_file,
    stream_counts,
    union_sources,
)
from turnback.spark.worker import (
    LevelTask,
    close_functions,
    run_tasks,
    send_commands,
    spark_job,
)
from turnback.storage.base import Storage
from turnback.values.columns import stream_columns, stream_ddl
from turnback.values.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import Barrier, EpochCommand, TaskAck, decode_barrier, decode_error
from turnback.worker.program import (
    CHANNEL,
    CONTROL,
    TO,
    LevelProgram,
    RowLayout,
    level_programs,
    pickled,
)

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NONE = str(2**31 - 1)
"""What Spark takes for no limit in bytes."""

_FEW_TASKS = 16

SMALL = 16 << 20
"""Batches up to this size need no limit: it leaves room for rows much larger than any so far."""


class BatchLimit:
    """Does without a limit in bytes while the limit in rows alone keeps batches small.

    Spark measures a batch after every row that it adds, which takes a third of the time of handing
    the rows over. An attempt begins with the limit, until it has seen rows. Were they to grow a
    hundredfold at once, the attempt would fail, and the next one begin with the limit again. A
    limit that the user has set is left alone.
    """

    def __init__(self) -> None:
        self._row_bytes = 0
        self._is_off = False

    def learn(self, row_bytes: int) -> None:
        """Learn how large the rows of an epoch were; 0 if there were too few to tell."""
        self._row_bytes = max(self._row_bytes, row_bytes)

    def apply(self, session: SparkSession) -> None:
        """Set or remove the limit in the session of the next epoch."""
        rows = int(session.conf.get(_ROWS) or 0)
        is_small = 0 < rows * self._row_bytes <= SMALL
        if self._is_off and not is_small:
            session.conf.unset(_BYTES)
            self._is_off = False
        elif is_small and not self._is_off and session.conf.get(_BYTES, None) is None:
            session.conf.set(_BYTES, _NONE)
            self._is_off = True


def epoch_frame(sources: DataFrame, plan: Plan) -> DataFrame:
    """The stream of acknowledgements: level after level over the stream of all sources.

    Before each level is a shuffle, but not before one that reads the sources. It is the same in
    every epoch, so Spark has to build nothing anew; what differs is in the commands.
    """
    frame = sources
    for program in level_programs(plan):
        route = _route(program)
        if route is not None:
            assert program.level.parallelism is not None
            frame = frame.repartitionById(program.level.parallelism, route)
        blob = pickled(program, pickle_by_value)
        task = LevelTask(blob, program.level.index, program.reads_sources)
        # Spark insists on a function; the name is what its UI shows.
        frame = frame.mapInArrow(task.__call__, program.output.ddl())
    return frame


def collect_controls(frame: DataFrame) -> list[bytes]:
    """Run an epoch on a batch of `epoch_frame`; return the one row that each last task gives.

    Spark has planned the batch already, but `DataFrame.collect` plans to read its result once more,
    as a query of its own, which takes 15 to 30 ms. The rows come one by one here, so many of them
    are left to it. Tasks with several rows would give one of them several times.
    """
    rdd = frame._jdf.queryExecution().analyzed().rdd()
    if rdd.getNumPartitions() > _FEW_TASKS:
        return [bytes(row[CONTROL]) for row in frame.collect()]
    column = RowLayout(()).schema.get_field_index(CONTROL)
    return [bytes(row.getBinary(column)) for row in rdd.collect()]


def _route(program: LevelProgram) -> Column | None:
    """The partition of every row: given, or computed from its key columns; None: no shuffle."""
    if program.reads_sources:
        return None
    into = program.level.index
    maximum = program.max_parallelism
    if program.input.bare:
        return F.expr(_key_partition(program.input.channels[0], program.input, maximum))
    cases = [
        f"WHEN {channel.id} THEN {_key_partition(channel, program.input, maximum)}"
        for channel in program.input.channels
        if channel.routing(into) is Routing.KEY_COLUMNS
    ]
    if not cases:
        return F.col(TO)
    return F.expr(f"coalesce({TO}, CASE {CHANNEL} {' '.join(cases)} END)")


def _key_partition(channel: Channel, layout: RowLayout, max_parallelism: int) -> str:
    assert channel.key is not None
    names = [name for name, _ in stream_columns(channel.type)]
    span = layout.spans[channel.id]
    columns = [layout.fields[span.start + names.index(c)][0] for c in channel.key.columns]
    group = f"pmod(xxhash64({', '.join(columns)}), {max_parallelism})"
    return f"CAST({group} * {channel.parallelism} DIV {max_parallelism} AS INT)"


T = TypeVar("T")

_ANY_AGE = "3650000d"
"""Spark leaves out files that are older than a week against the newest, without a word, to forget
their names; those are in our list of files seen anyway."""


class SparkEngine:
    """Runs jobs on a Spark session, unless `check_spark` refuses it."""

    def __init__(self, spark: SparkSession) -> None:
        check_spark(spark)
        self._spark = spark

    @property
    def cores(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    @property
    def is_local(self) -> bool:
        return (self._spark.sparkContext.master or "").startswith("local")

    def file_source(
        self,
        path: str,
        format: str,
        type: RowTypeInfo,
        limit: EpochLimit,
        options: Mapping[str, Any],
        on_malformed: ErrorPolicy | None,
    ) -> DataFrame:
        ddl = stream_ddl(type)
        if on_malformed is not None:
            ddl = f"{ddl}, {CORRUPT_COLUMN} string"
            options = {**options, **PERMISSIVE}
        reader = self._spark.readStream.format(format).schema(ddl).options(**options)
        if not any(name.lower() == "maxfileage" for name in options):
            reader = reader.option("maxFileAge", _ANY_AGE)
        if limit.files is not None:
            reader = reader.option("maxFilesPerTrigger", limit.files)
        if limit.bytes is not None:
            reader = reader.option("maxBytesPerTrigger", limit.bytes)
        if _SCHEME.match(path):
            return reader.load(path)
        local = abspath(path)  # noqa: PTH100 - as Spark: links stay
        if single_file(local):
            # Spark's file source takes directories, and patterns that choose files in them.
            local, name = split(local)
            reader = reader.option("pathGlobFilter", literal_pattern(name))
        # It takes a directory for a pattern, too, and then forgets where partitions begin.
        directory = literal_pattern(local)
        if directory != local and not any(name.lower() == "basepath" for name in options):
            reader = reader.option("basePath", f"file://{local}")
        # Without a scheme, Spark would look in fs.defaultFS, which is HDFS on most clusters.
        return reader.load(f"file://{directory}")

    def collection_source(self, elements: Sequence[Any], type: Any) -> tuple[DataFrame, TypeInfo]:
        data, element_type = encode_collection(elements, type)
        self._spark.dataSource.register(CollectionSource)
        reader = self._spark.readStream.format(CollectionSource.name())
        return reader.schema(stream_ddl(element_type)).option("data", data).load(), element_type

    def stream_counts(self, plan: Plan) -> dict[str, int]:
        return stream_counts(plan)

    def pickle(self, value: object) -> bytes:
        return pickle_by_value(value)

    def run_tasks(self, description: str, tasks: Sequence[Task[T]]) -> list[T]:
        return run_tasks(self._spark, description, tasks)

    def query(self, plan: Plan, spec: JobSpec, storage: Storage, attempt: int) -> SparkQuery:
        return SparkQuery(self._spark, plan, spec, storage, attempt)

    def lost(self) -> str | None:
        return lost_jvm(self._spark)

    def web_ui(self) -> str | None:
        return self._spark.sparkContext.uiWebUrl

    def application(self) -> str | None:
        return None if self.is_local else self._spark.sparkContext.applicationId


class SparkQuery:
    """One streaming query over the union of all sources; each micro-batch is an epoch."""

    def __init__(
        self, spark: SparkSession, plan: Plan, spec: JobSpec, storage: Storage, attempt: int
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._spec = spec
        self._directory = storage.uri
        self._attempt = attempt
        watched = [source.uid for source in plan.sources if source.files is not None]
        self._positions = Positions(storage, attempt, watched)
        self._scratch = Scratch(leaf_directories(plan))
        self._limit = BatchLimit()
        self._reruns = TaskReruns(spark.sparkContext, plan)
        self._running = ExitStack()
        self._query: StreamingQuery | None = None
        self._idle: IdleQuery | None = None

    def restore(self, sources: Sources) -> None:
        known = {leaf: at for leaf, at in sources.items() if leaf in self._scratch.leaves}
        logs = self._positions.restore(known)
        self._scratch.seed({leaf: at.offset for leaf, at in known.items()}, logs)

    def start(self, on_input: Callable[[EpochInput], None]) -> None:
        shuffles = len(self._plan.levels) - 1  # between levels

        def on_batch(batch: MicroBatch) -> None:
            input = SparkEpochInput(batch, shuffles, self._limit, self._scratch, self._positions)
            with self._idle.epoch() if self._idle else nullcontext():
                on_input(input)

        sources = union_sources(self._plan)
        interval_ms = self._spec.epoch_interval_ms
        self._query = self._running.enter_context(
            streaming_query(
                epoch_frame(sources, self._plan),
                on_batch,
                self._scratch.path,
                bounded=self._spec.bounded,
                interval_ms=interval_ms,
            )
        )
        asks_at_will = sources.sparkSession.conf.get(POLLING[0], None) is None
        if asks_at_will and not self._spec.bounded and not interval_ms:
            self._idle = self._running.enter_context(saving_idle_time(self._query, sources))

    def empty_input(self) -> EpochInput:
        return EmptyInput(self._spark, self._plan)

    def wait(self, seconds: float) -> bool:
        assert self._query is not None
        return bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]

    def stop(self) -> None:
        self._running.close()

    def close(self) -> None:
        self._scratch.remove()
        if any(needs_closing(op.function) for op in self._plan.operators()):
            close_functions(self._spark, self._directory, self._attempt)

    def has_rerun(self, acks: Sequence[TaskAck]) -> bool:
        return self._reruns.happened(acks)


@dataclass
class SparkEpochInput:
    """A micro-batch, with what belongs to its query; `shuffles` are those between its levels."""

    batch: MicroBatch
    shuffles: int
    limit: BatchLimit
    scratch: Scratch
    source_positions: Positions
    has_run: bool = False

    def run(self, description: str, commands: Sequence[EpochCommand]) -> list[Barrier]:
        frame = self.batch.anew() if self.has_run else self.batch.frame
        self.has_run = True
        self._new_files()  # notes how large they are, before tasks read them
        self.limit.apply(frame.sparkSession)
        try:
            barriers = _collect(frame, description, commands, collect_controls)
        except Exception as error:
            explained = malformed_record(error) or unreadable_file(error, self._new_files)
            if explained is None:
                raise
            raise explained from None
        row_bytes = (ack.row_bytes for barrier in barriers for ack in barrier.acks)
        self.limit.learn(max(row_bytes, default=0))
        return barriers

    def source_tasks(self) -> int:
        return self.batch.tasks(self.shuffles)

    def positions(self) -> Sources:
        offsets = self.scratch.offsets(self.batch.number)
        return self.source_positions.advance(offsets, self.scratch.log_entries)

    def file_order(self) -> dict[int, int]:
        new = self._new_files().values()
        paths = [json.loads(entry)["path"] for entries in new for entry in entries]
        # Rows have file:/x where the log has file:///x.
        names = [(path, path.replace(":///", ":/", 1)) for path in paths]
        return {spark_hash(name): place for place, both in enumerate(names) for name in both}

    def _new_files(self) -> dict[str, list[str]]:
        """What the epoch adds to each list of files that a source has seen."""
        offsets = self.scratch.offsets(self.batch.number)
        return self.source_positions.new_entries(offsets, self.scratch.log_entries)

    def partitions(self) -> dict[str, Sequence[str]]:
        offsets = self.scratch.offsets(self.batch.number)
        return {leaf: names for leaf, each in offsets.items() if (names := open_partitions(each))}


@dataclass
class EmptyInput:
    """No input at all, for when only time has passed."""

    spark: SparkSession
    plan: Plan

    def run(self, description: str, commands: Sequence[EpochCommand]) -> list[Barrier]:
        frame = epoch_frame(no_sources(own_session(self.spark), self.plan), self.plan)
        return _collect(frame, description, commands, _controls)

    def source_tasks(self) -> int:
        return 1

    def positions(self) -> None:
        return None

    def file_order(self) -> dict[int, int]:
        return {}

    def partitions(self) -> None:
        return None


def _controls(frame: DataFrame) -> list[bytes]:
    return [bytes(row[CONTROL]) for row in frame.select(CONTROL).collect()]


def _collect(
    frame: DataFrame,
    description: str,
    commands: Sequence[EpochCommand],
    collect: Callable[[DataFrame], list[bytes]],
) -> list[Barrier]:
    """Run the levels; return the barriers of the last."""
    context = frame.sparkSession.sparkContext
    try:
        with spark_job(frame.sparkSession, description), send_commands(context, commands):
            controls = collect(frame)
    except Exception as e:
        if OUTPUT_LOST in str(e):
            raise EpochConflictError("output of tasks that other tasks had read was lost") from None
        cause = decode_error(e)
        if isinstance(cause, EpochConflictError):
            raise cause from None
        raise
    return [decode_barrier(control) for control in controls]


class TaskReruns:
    """Tells whether Spark has run tasks of an epoch whose output did not count, or may have.

    Only those matter that write to sinks: what they have prepared, nobody commits.
    """

    def __init__(self, context: SparkContext, plan: Plan) -> None:
        self._levels = {
            level.index
            for level in plan.levels
            if any(op.kind is NodeKind.SINK for op in level.operators)
        }
        self._tracker = context.statusTracker()
        # A copy that lost against the first attempt leaves no trace in what has won.
        self._speculates = context.getConf().get("spark.speculation", "false") == "true"

    def happened(self, acks: Sequence[TaskAck]) -> bool:
        names = [ack.name for ack in acks if ack.level in self._levels]
        if not names:
            return False
        if self._speculates or any(name.tries for name in names):
            return True
        # A stage is run again when its output was lost with an executor.
        stages = map(self._tracker.getStageInfo, {name.stage for name in names})
        return any(s and (s.currentAttemptId > 0 or s.numFailedTasks > 0) for s in stages)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FILE = re.compile(
    r"\[FAILED_READ_FILE(?P<gone>\.FILE_NOT_EXIST)?[^\]]*\].*? file (?P<path>\S+?)\.?(?:\s|$)"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(?P<why>.+)$", re.MULTILINE)


def unreadable_file(
    error: BaseException, new_files: Callable[[], Mapping[str, Iterable[str]]]
) -> SourceError | None:
    """What to say of an error of Spark that is about an input file; None if it is not.

    `new_files` returns what the epoch reads: new entries of sources' lists of files, by name.
    """
    match = _FILE.search(str(error))
    if match is None:
        return None
    path = plain_path(match["path"])
    names = (name for name, entries in new_files().items() if path in map(_path, entries))
    uid = next(names, "?").partition("#")[0]
    if match["gone"] and Path(path).exists():
        return SourceError(
            f"source {uid!r}: an executor does not have the file {path}, which the driver "
            "has. Put the input where the driver and all executors see it at the "
            "same path, or on HDFS or an object store"
        )
    causes = _CAUSE.findall(str(error))
    why = causes[-1].strip() if causes else "Spark does not report the reason"
    return SourceError(
        f"source {uid!r}: cannot read its file {path}: {why}. Repair or remove the file"
    )


def _path(entry: str) -> str:
    return plain_path(json.loads(entry)["path"])
