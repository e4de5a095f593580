"""The counting job in Turnback, and the same job reading its state back to check it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from turnback import (
    DiscardSink,
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)

from benchmarks.engines import spark_query
from benchmarks.result import WrongAnswerError
from benchmarks.workload import PARALLELISM


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


def count(spark: SparkSession, root: Path, backend: str, files: str) -> int:
    """Count the records of `files`, with a checkpoint after every epoch; return how many."""
    env = _environment(spark, root, backend)
    env.enable_checkpointing("10 ms")
    return _execute(env, files, Count())


def check_state(spark: SparkSession, root: Path, backend: str, files: str) -> int:
    """Resume the job and check its state with those of `files` it has not seen.

    Without checkpoints there are no restarts either, so a wrong count fails the job at once.
    """
    return _execute(_environment(spark, root, backend), files, Check())


def _environment(spark: SparkSession, root: Path, backend: str) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark, root=root)
    return env.set_parallelism(PARALLELISM).set_state_backend(backend)


def _execute(env: StreamExecutionEnvironment, files: str, function: Count) -> int:
    events = env.from_dataframe(spark_query.read(env.spark, files), uid="events")
    counts = events.key_by("post").process(function, output_type="post string, n bigint")
    counts.uid("count").sink_to(DiscardSink()).uid("out")
    return sum(epoch.records for epoch in env.execute("bench", bounded=True).epochs)
