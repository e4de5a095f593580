from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

from turnback.core.errors import TurnbackError
from turnback.runtime.failure import marked, unmarked

T_co = TypeVar("T_co", covariant=True)


class Task(Protocol[T_co]):
    """Work for some executor; frozen and picklable."""

    def run(self) -> T_co:
        """Do it."""


def run_tasks(spark: SparkSession, what: str, tasks: Sequence[Task[T_co]]) -> list[T_co]:
    """Run tasks as one Spark job, each as a task of its own.

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
    context = spark.sparkContext
    context.setJobDescription(what)
    try:
        found: list[T_co] = context.parallelize(tasks, len(tasks)).map(_run).collect()
    except Exception as e:
        cause = unmarked(e)
        if cause is e:
            raise
        raise cause from None
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    return found


def _run(task: Task[T_co]) -> T_co:
    try:
        return task.run()
    except TurnbackError as e:
        raise marked(e) from e
