"""What a job needs of whatever runs it: Spark, or one process in tests.

An `Engine` makes sources, runs tasks, and opens a `Query` for each attempt. The query reads all
sources together and calls back with one `EpochInput` after the other; the attempt runs the epoch
on it. Nothing above this module knows which engine it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from turnback.checkpoint.manifest import SourcePosition
from turnback.core.errors import EpochConflictError
from turnback.program.graph import NodeKind
from turnback.program.plan import Plan
from turnback.spark.frames import EpochFrames
from turnback.spark.internals import OUTPUT_LOST, lost_jvm, streaming_query
from turnback.spark.job import JobSpec
from turnback.spark.scratch import Positions, Scratch
from turnback.spark.session import check_spark
from turnback.spark.sources import collection_frame, file_frame, leaf_directories, united
from turnback.spark.worker import Task, run_tasks
from turnback.storage.base import Storage
from turnback.types.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import Barrier, Order, TaskAck, decode_barrier, unmarked
from turnback.worker.program import CONTROL

T = TypeVar("T")
Sources = Mapping[str, SourcePosition]
"""The position of every stream, by its name; see `leaf_directories`."""


class EpochInput(Protocol):
    """The input of one epoch."""

    def run(self, description: str, orders: Sequence[Order]) -> list[Barrier]:
        """Run all levels once, each as its order says; may be called again to replay the epoch.

        Returns:
            The barriers of the last level, with the acknowledgements of all tasks.

        Raises:
            EpochConflictError: Output of a task was lost after others had read it.
            TurnbackError: What a task raised.
        """

    def positions(self) -> Sources:
        """Where each stream goes on after this epoch; durable when this returns."""


class Query(Protocol):
    """Reads all sources of one attempt."""

    def restore(self, sources: Sources) -> None:
        """Go on from these positions; called at most once, before `start`."""

    def start(self, on_input: Callable[[EpochInput], None]) -> None:
        """Begin to read; `on_input` runs an epoch, one at a time, in a thread of the query."""

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the input, or at most so long; return whether it has ended.

        Raises:
            Exception: What `on_input` or the source raised.
        """

    def stop(self) -> None:
        """End it, also in the middle of an epoch."""

    def close(self) -> None:
        """Give up what it has on this machine."""

    def has_rerun(self, acks: Sequence[TaskAck]) -> bool:
        """Whether tasks that acknowledge to sinks were run more than once, or may have been."""


class Engine(Protocol):
    """Runs jobs."""

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""

    def file_source(
        self,
        path: str,
        format: str,
        type: RowTypeInfo,
        max_files: int | None,
        options: Mapping[str, Any],
    ) -> Any:
        """A stream of the records of files; see `StreamExecutionEnvironment.from_files`."""

    def collection_source(self, elements: Sequence[Any], type: Any) -> tuple[Any, TypeInfo]:
        """A stream of the elements of a list, and their type."""

    def run_tasks(self, description: str, tasks: Sequence[Task[T]]) -> list[T]:
        """Run tasks, beside the epochs; return their results in order.

        Raises:
            TurnbackError: What a task raised.
        """

    def query(self, plan: Plan, spec: JobSpec, storage: Storage, attempt: int) -> Query:
        """The query of an attempt, whose sources may keep files in the job's storage."""

    def lost(self) -> str | None:
        """What has become of the engine, if nothing can be run on it any more."""


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
        max_files: int | None,
        options: Mapping[str, Any],
    ) -> DataFrame:
        return file_frame(self._spark, path, format, type, max_files, options)

    def collection_source(self, elements: Sequence[Any], type: Any) -> tuple[DataFrame, TypeInfo]:
        return collection_frame(self._spark, elements, type)

    def run_tasks(self, description: str, tasks: Sequence[Task[T]]) -> list[T]:
        return run_tasks(self._spark, description, tasks)

    def query(self, plan: Plan, spec: JobSpec, storage: Storage, attempt: int) -> SparkQuery:
        return SparkQuery(self._spark, plan, spec, Positions(storage, attempt))

    def lost(self) -> str | None:
        return lost_jvm(self._spark)


class SparkQuery:
    """One streaming query over the union of all sources; each micro-batch is an epoch."""

    def __init__(
        self, spark: SparkSession, plan: Plan, spec: JobSpec, positions: Positions
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._spec = spec
        self._positions = positions
        self._scratch = Scratch(leaf_directories(plan))
        self._frames = EpochFrames(spark, plan)
        self._reruns = TaskReruns(spark, plan)
        self._running = ExitStack()
        self._query: StreamingQuery | None = None

    def restore(self, sources: Sources) -> None:
        known = {leaf: at for leaf, at in sources.items() if leaf in self._scratch.leaves}
        logs = self._positions.restore(known)
        self._scratch.seed({leaf: at.offset for leaf, at in known.items()}, logs)

    def start(self, on_input: Callable[[EpochInput], None]) -> None:
        def on_batch(batch: DataFrame, batch_id: int) -> None:
            on_input(SparkEpochInput(self, batch, batch_id))

        self._query = self._running.enter_context(
            streaming_query(
                united(self._plan),
                on_batch,
                self._scratch.path,
                bounded=self._spec.bounded,
                interval_ms=self._spec.epoch_interval_ms,
            )
        )

    def wait(self, seconds: float) -> bool:
        assert self._query is not None
        return bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]

    def stop(self) -> None:
        self._running.close()

    def close(self) -> None:
        self._scratch.remove()

    def has_rerun(self, acks: Sequence[TaskAck]) -> bool:
        return self._reruns.happened(acks)

    def run(self, batch: DataFrame, description: str, orders: Sequence[Order]) -> list[Barrier]:
        self._spark.sparkContext.setJobDescription(description)
        try:
            rows = self._frames.build(batch, orders).collect()
        except Exception as e:
            cause = unmarked(e)
            if cause is not e:
                raise cause from None
            if OUTPUT_LOST in str(e):
                raise EpochConflictError("output of tasks that others had read was lost") from None
            raise
        barriers = [decode_barrier(bytes(row[CONTROL])) for row in rows]
        row_bytes = (ack.row_bytes for barrier in barriers for ack in barrier.acks)
        self._frames.limit.learn(max(row_bytes, default=0))
        return barriers

    def positions(self, batch_id: int) -> Sources:
        """Where each stream goes on after a micro-batch."""
        offsets = self._scratch.offsets(batch_id)
        return self._positions.advance(offsets, self._scratch.log_entries)


class SparkEpochInput:
    """A micro-batch."""

    def __init__(self, query: SparkQuery, batch: DataFrame, batch_id: int) -> None:
        self._query = query
        self._batch = batch
        self._batch_id = batch_id

    def run(self, description: str, orders: Sequence[Order]) -> list[Barrier]:
        return self._query.run(self._batch, description, orders)

    def positions(self) -> Sources:
        return self._query.positions(self._batch_id)


class TaskReruns:
    """Tells whether Spark has run tasks of an epoch whose output did not count.

    Only those matter that write to sinks: what they have prepared, nobody commits.
    """

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self._levels = {
            level.index
            for level in plan.levels
            if any(op.kind is NodeKind.SINK for op in level.operators)
        }
        context = spark.sparkContext
        self._tracker = context.statusTracker()
        # A copy that lost against the first attempt leaves no trace in what has won.
        self._speculates = context.getConf().get("spark.speculation", "false") == "true"

    def happened(self, acks: Sequence[TaskAck]) -> bool:
        """Return whether a task was run more than once, or may have been."""
        names = [ack.name for ack in acks if ack.level in self._levels]
        if not names:
            return False
        if self._speculates or any(name.tries for name in names):
            return True
        return any(map(self._was_retried, {name.stage for name in names}))

    def _was_retried(self, stage: int) -> bool:
        """Whether a stage was run again, after its output was lost with an executor."""
        info = self._tracker.getStageInfo(stage)
        return info is not None and (info.currentAttemptId > 0 or info.numFailedTasks > 0)
