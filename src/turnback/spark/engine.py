"""Runs jobs on a Spark session."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from os.path import split
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from turnback.checkpoint.source_offsets import open_partitions
from turnback.core.errors import EpochConflictError, SourceError
from turnback.driver.engine import EpochInput, Sources, Task
from turnback.driver.given_elements import encode_collection
from turnback.driver.job import JobSpec
from turnback.driver.positions import Positions
from turnback.functions.base import needs_closing
from turnback.plan.graph import NodeKind
from turnback.plan.malformed import MalformedPolicy, plain_path
from turnback.plan.plan import Plan
from turnback.plan.sources import EpochLimit, spark_hash
from turnback.spark.frames import BatchLimit, collect_controls, epoch_frame
from turnback.spark.idle import IdleQuery, saving_idle_time
from turnback.spark.internals import (
    OUTPUT_LOST,
    POLLING,
    MicroBatch,
    lost_jvm,
    own_session,
    streaming_query,
)
from turnback.spark.malformed import CORRUPT_COLUMN, PERMISSIVE, malformed_record
from turnback.spark.orders import send_orders
from turnback.spark.pickling import pickle_by_value
from turnback.spark.scratch import Scratch
from turnback.spark.session import check_spark
from turnback.spark.sources import (
    CollectionSource,
    leaf_directories,
    literal_pattern,
    no_sources,
    single_file,
    stream_counts,
    union_sources,
)
from turnback.spark.worker import close_functions, run_tasks, spark_job
from turnback.storage.base import Storage
from turnback.values.columns import stream_ddl
from turnback.values.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import Barrier, Order, TaskAck, decode_barrier, decode_error
from turnback.worker.program import CONTROL

T = TypeVar("T")

_ANY_AGE = "3650000d"
"""Spark leaves out files that are older than a week against the newest, without a word, to forget
their names; those are in our list of files seen anyway."""


class SparkEngine:
    """Runs jobs on a Spark session.

    Raises:
        ConfigurationError: Jobs cannot run on this Spark.
    """

    def __init__(self, spark: SparkSession) -> None:
        check_spark(spark)
        self._spark = spark

    @property
    def cores(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def file_source(
        self,
        path: str,
        format: str,
        type: RowTypeInfo,
        limit: EpochLimit,
        options: Mapping[str, Any],
        on_malformed: MalformedPolicy | None,
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
        if single_file(path):
            # Spark's file source takes directories, and patterns that choose files in them.
            directory, name = map(literal_pattern, split(path))
            reader = reader.option("pathGlobFilter", name)
            path = directory or "."
        return reader.load(path)

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

    def run(self, description: str, orders: Sequence[Order]) -> list[Barrier]:
        frame = self.batch.anew() if self.has_run else self.batch.frame
        self.has_run = True
        self._new_files()  # notes how large they are, before tasks read them
        self.limit.apply(frame.sparkSession)
        try:
            barriers = _collect(frame, description, orders, collect_controls)
        except Exception as error:
            told = malformed_record(error) or unreadable_file(error, self._new_files)
            if told is None:
                raise
            raise told from None
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

    def run(self, description: str, orders: Sequence[Order]) -> list[Barrier]:
        frame = epoch_frame(no_sources(own_session(self.spark), self.plan), self.plan)
        return _collect(frame, description, orders, _controls)

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
    orders: Sequence[Order],
    collect: Callable[[DataFrame], list[bytes]],
) -> list[Barrier]:
    """Run the levels; return the barriers of the last."""
    context = frame.sparkSession.sparkContext
    try:
        with spark_job(frame.sparkSession, description), send_orders(context, orders):
            controls = collect(frame)
    except Exception as e:
        if OUTPUT_LOST in str(e):
            raise EpochConflictError("output of tasks that others had read was lost") from None
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


_FILE = re.compile(r"\[FAILED_READ_FILE[^\]]*\].*? file (?P<path>\S+?)\.?(?:\s|$)")
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(?P<why>.+)$", re.MULTILINE)


def unreadable_file(
    error: BaseException, new_files: Callable[[], Mapping[str, Iterable[str]]]
) -> SourceError | None:
    """What to say of an error of Spark that is about an input file; None if it is not.

    Args:
        error: What Spark raised.
        new_files: Returns what the epoch reads: new entries of sources' lists of files, by name.
    """
    match = _FILE.search(str(error))
    if match is None:
        return None
    path = plain_path(match["path"])
    names = (name for name, entries in new_files().items() if path in map(_path, entries))
    uid = next(names, "?").partition("#")[0]
    causes = _CAUSE.findall(str(error))
    why = causes[-1].strip() if causes else "Spark does not say why"
    return SourceError(
        f"source {uid!r}: its file {path} cannot be read: {why}. Mend or remove the file"
    )


def _path(entry: str) -> str:
    return plain_path(json.loads(entry)["path"])
