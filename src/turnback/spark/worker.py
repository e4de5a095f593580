from __future__ import annotations

import atexit
import logging
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from turnback.core.errors import TurnbackError
from turnback.worker.level import LevelInstance
from turnback.worker.message import Order, TaskName, marked, unmarked
from turnback.worker.program import load_program

T_co = TypeVar("T_co", covariant=True)

_RESULTS = pa.schema([("number", pa.int64()), ("result", pa.binary())])


class Task(Protocol[T_co]):
    """Work for some executor; frozen and picklable."""

    def run(self) -> T_co:
        """Do it."""


def run_tasks(spark: SparkSession, what: str, tasks: Sequence[Task[T_co]]) -> list[T_co]:
    """Run tasks as one Spark job, each as a task of its own.

    They go through a DataFrame, as epochs do: Spark gives functions of RDDs other workers, which
    would have to be started, and load everything, besides those that are there.

    Returns:
        The results, in the order of the tasks.

    Raises:
        TurnbackError: What a task raised, without Spark's stack trace around it.
    """
    if not tasks:
        return []
    spark.sparkContext.setJobDescription(what)
    try:
        numbers = spark.range(0, len(tasks), 1, len(tasks))
        worker = _Worker(tuple(tasks))
        rows = numbers.mapInArrow(worker.__call__, "number bigint, result binary").collect()
    except Exception as e:
        cause = unmarked(e)
        if cause is e:
            raise
        raise cause from None
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    found = {row["number"]: pickle.loads(row["result"]) for row in rows}
    return [found[number] for number in range(len(tasks))]


@dataclass(frozen=True)
class _Worker:
    tasks: tuple[Task[Any], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    result = pickle.dumps(self.tasks[number].run())
                except TurnbackError as e:
                    raise marked(e) from e
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([result], pa.binary())],
                    schema=_RESULTS,
                )


_LOG = logging.getLogger(__name__)
_KEPT = 64


class InstanceKey(NamedTuple):
    """Whose functions are open: those of one attempt of one driver, in one partition of a level.

    Copies of a job directory share id and attempt numbers, so neither tells two jobs apart.
    """

    directory: str
    attempt: int
    line: str
    level: int
    partition: int


_instances: OrderedDict[InstanceKey, LevelInstance] = OrderedDict()


@dataclass(frozen=True)
class LevelTask:
    """What Spark calls in each task of a level.

    Attributes:
        blob: The pickled `LevelProgram`, the same bytes in every epoch.
        level: Index of the level.
        shared: Whether one instance serves all partitions (a level without state).
        order: What to do in this epoch.
    """

    blob: bytes
    level: int
    shared: bool
    order: Order

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        name = TaskName(
            context.partitionId(),
            context.taskAttemptId(),
            context.stageId(),
            context.attemptNumber(),
        )
        partition = -1 if self.shared else name.partition
        order = self.order
        key = InstanceKey(order.storage.uri, order.attempt, order.line, self.level, partition)
        try:
            yield from self._instance(key, name.partition).run(self.order, name, batches)
        except TurnbackError as e:
            _discard(key)
            raise marked(e) from e
        except BaseException:
            _discard(key)
            raise

    def _instance(self, key: InstanceKey, partition: int) -> LevelInstance:
        instance = _instances.get(key)
        if instance is None:
            instance = _instances[key] = LevelInstance(load_program(self.blob), partition)
            _evict(key)
        _instances.move_to_end(key)
        return instance


def _discard(key: InstanceKey) -> None:
    """Give an instance up: what its functions hold may be half done."""
    instance = _instances.pop(key, None)
    if instance is not None:
        try:
            instance.close()
        except Exception:  # noqa: BLE001 - the failure before it is what matters
            _LOG.exception("close() failed after a failure")


def _evict(newest: InstanceKey) -> None:
    for key in list(_instances):
        same_job = key.directory == newest.directory
        if same_job and key.line != newest.line and key.attempt <= newest.attempt:
            _instances.pop(key).close()
    while len(_instances) > _KEPT:
        _instances.popitem(last=False)[1].close()


@atexit.register
def _close_all() -> None:
    while _instances:
        _instances.popitem()[1].close()
