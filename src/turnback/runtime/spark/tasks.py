from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from turnback.core.errors import TurnbackError
from turnback.runtime.failure import marked, unmarked

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

    Args:
        spark: The session.
        what: What Spark's UI shows.
        tasks: The work.

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
