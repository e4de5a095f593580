"""Counting jobs in Turnback, and the same jobs going on from their state to check it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks.engines import spark_query
from benchmarks.result import WrongAnswerError, check_counts
from benchmarks.workload import PARALLELISM
from turnback import (
    CollectSink,
    DataStream,
    JobClient,
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.driver.job import JobReport
from turnback.sinks import DiscardSink
from turnback.sinks.base import Sink

JOB = "bench"
Counting = Callable[[DataStream], DataStream]
"""Makes rows with post and n of the events."""


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield Row(value.post, n)


class Check(Count):
    """Takes the place of `Count` over records whose `amount` is the count their key must have."""

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n = self.count.value() or 0
        if n != value.amount:
            raise WrongAnswerError(f"{value.post} counted {n} times, expected {value.amount}")
        yield Row(value.post, n)


def with_function(function: Count) -> Counting:
    """Count with a function that sees one record after the other."""

    def counting(events: DataStream) -> DataStream:
        return events.key_by("post").process(function, output_type="post string, n bigint")

    return counting


@dataclass(frozen=True)
class Place:
    """Where the job keeps its state.

    Attributes:
        root: Parent of the job's directory, which holds checkpoints and state files.
        local: Parent of the local stores; an empty one makes the job rebuild them from the files.
    """

    backend: str
    root: Path
    local: Path


@dataclass(frozen=True)
class Ran:
    """What a run took in, and how many checkpoints it completed."""

    records: int
    checkpoints: int


@contextmanager
def local_directory(backend: str) -> Iterator[Path]:
    """A temporary directory where Turnback itself would put local stores of `backend`."""
    memory = Path("/dev/shm")
    parent = memory if backend == "hashmap" and memory.is_dir() else None
    with TemporaryDirectory(prefix="turnback-bench-", dir=parent) as directory:
        yield Path(directory)


def count(spark: SparkSession, place: Place, files: str, counting: Counting | None = None) -> Ran:
    """Count the records of `files`; the interval is less than an epoch: a checkpoint after each."""
    env = _environment(spark, place)
    env.enable_checkpointing("10 ms")
    return _execute(env, files, counting or with_function(Count()))


def go_on(spark: SparkSession, place: Place, files: str) -> JobClient:
    """Start the job of `count` again, over more files, and leave it running."""
    env = _environment(spark, place)
    env.enable_checkpointing("10 ms")
    _build(env, files, with_function(Count()))
    return env.execute_async(JOB)


def check_state(spark: SparkSession, place: Place, files: str) -> Ran:
    """Resume the job and check its state with those of `files` it has not seen.

    Without checkpoints there are no restarts either, so a wrong count fails the job at once.
    """
    return _execute(_environment(spark, place), files, with_function(Check()))


def check_counts_from(
    spark: SparkSession, place: Place, files: str, counting: Counting, expected: Mapping[str, int]
) -> None:
    """Resume the job, and check what it counts keys to with those of `files` it has not seen."""
    env, rows = _environment(spark, place), CollectSink()
    _execute(env, files, counting, rows)
    check_counts({row.post: row.n for row in rows.results}, expected)


def start_from(spark: SparkSession, place: Place, files: str, savepoint: Path | None) -> Ran:
    """Start another job from a savepoint, or empty, and check its state with `files`."""
    env = _environment(spark, place)
    _build(env, files, with_function(Check()))
    report = env.execute("restored", bounded=True, start_from=savepoint, fork=True)
    return _ran(report)


def _environment(spark: SparkSession, place: Place) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(
        {"state.backend.local-dir": str(place.local)}, spark=spark, root=place.root
    )
    return env.set_parallelism(PARALLELISM).set_state_backend(place.backend)


def _execute(
    env: StreamExecutionEnvironment, files: str, counting: Counting, sink: Sink | None = None
) -> Ran:
    _build(env, files, counting, sink)
    return _ran(env.execute(JOB, bounded=True))


def _build(
    env: StreamExecutionEnvironment, files: str, counting: Counting, sink: Sink | None = None
) -> None:
    events = env.from_dataframe(spark_query.read(env.spark, files), uid="events")
    counting(events).uid("count").sink_to(sink or DiscardSink()).uid("out")


def _ran(report: JobReport) -> Ran:
    return Ran(sum(epoch.records for epoch in report.epochs), report.checkpoints)
