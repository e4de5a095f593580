"""A job with everything that depends on Spark's insides, on the Spark that is installed."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted, eventually
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Savepoint,
    ValueStateDescriptor,
)
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import JobFailedError

KEYS = "aabcab"
FIXED = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 s"}
IDLE_S = 75
"""Spark ends Python workers that have been idle for a minute, and looks every ten seconds."""


class Remember(KeyedProcessFunction):
    """Counts in three kinds of state."""

    count = ValueStateDescriptor("count", int)
    numbers = ListStateDescriptor("numbers", int)
    squares = MapStateDescriptor("squares", int, int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.numbers.add(n)
        self.squares.put(n, n * n)
        assert list(self.numbers.get()) == list(range(1, n + 1))
        assert dict(self.squares.items()) == {i: i * i for i in range(1, n + 1)}
        yield ctx.get_current_key(), n


class CountInProcess(Count):
    """Counts, and marks the processes in which it does."""

    def __init__(self, marks: Any) -> None:
        self.marks = marks

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.marks.add("pids", str(os.getpid()))
        yield from super().process_element(value, ctx)


class FailOnce(Count):
    """Fails at the third element of a key, the first time."""

    def __init__(self, marks: Any) -> None:
        self.marks = marks

    def process_element(self, value: Any, ctx: Any) -> Any:
        if (self.count.value() or 0) == 2 and self.marks.first("failed"):
            raise ValueError("not the third!")
        yield from super().process_element(value, ctx)


def feed(jobs: Jobs, keys: str = KEYS) -> None:
    jobs.feed("events", *({"k": k} for k in keys))


def build(jobs: Jobs, function: Any = None, sink: str = "out", **how: Any) -> Any:
    env = jobs.env(**how)
    events = jobs.files(env, "events", "k string")
    counts = events.key_by("k").process(function or Remember(), COUNTED).uid("count")
    counts.sink_to(jobs.sink(sink)).uid("out")
    return env


@pytest.mark.parametrize(
    ("backend", "format_type"),
    [("hashmap", SavepointFormat.CANONICAL), ("rocksdb", SavepointFormat.NATIVE)],
)
def test_a_job_goes_on_from_its_savepoint(
    jobs: Jobs, backend: str, format_type: SavepointFormat
) -> None:
    feed(jobs)
    how = {"state.backend.type": backend}
    client = jobs.start(build(jobs, **how))
    eventually(lambda: jobs.out() == counted(KEYS))
    path = jobs.directory / "savepoint"
    client.stop_with_savepoint(savepoint_directory=path, format_type=format_type).result(120)
    client.result(120)
    savepoint = Savepoint.load(path, spark=jobs.spark)
    assert savepoint.verify() == []
    rows = savepoint.sql("SELECT key, value FROM count_count ORDER BY key").collect()
    assert [tuple(row) for row in rows] == [("a", 3), ("b", 2), ("c", 1)]
    feed(jobs)
    fork = build(jobs, sink="fork", parallelism=3, **how)
    fork.execute("fork", bounded=True, start_from=path, fork=True)
    assert jobs.out("fork") == [p for p in counted(KEYS * 2) if p not in counted(KEYS)]
    build(jobs, **how).execute("job", bounded=True)
    assert jobs.out() == counted(KEYS * 2)


def test_a_source_with_offsets_goes_on_where_it_was(jobs: Jobs) -> None:
    rate = jobs.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    rows = rate.selectExpr("CAST(value % 3 AS STRING) AS k")
    for run in (1, 2):
        env = jobs.env()
        counts = env.from_dataframe(rows, "rate").key_by("k").process(Count(), COUNTED)
        counts.uid("count").sink_to(jobs.sink()).uid("out")
        client = jobs.start(env)
        eventually(lambda: len(jobs.out()) >= 20 * run)  # noqa: B023
        client.stop().result(120)
        client.result(120)
    out = jobs.out()
    assert out == counted(str(i % 3) for i in range(len(out)))


def test_the_error_of_a_function_restarts_the_job_and_is_shown(jobs: Jobs) -> None:
    feed(jobs)
    build(jobs, FailOnce(jobs.marks), **FIXED).execute("job", bounded=True)
    assert jobs.out() == counted(KEYS)
    feed(jobs, "d")
    feed(jobs, "ddd")
    (jobs.marks.directory / "failed").unlink()
    with pytest.raises(JobFailedError, match=r"(?s)'count'.*ValueError: not the third!"):
        build(jobs, FailOnce(jobs.marks)).execute("job", bounded=True)


def test_a_pause_in_which_spark_ends_its_workers(jobs: Jobs) -> None:
    client = jobs.start(build(jobs, CountInProcess(jobs.marks)))
    workers: set[str] = set()
    for epoch in (1, 2, 3):
        if epoch == 3:
            workers = set(jobs.marks.lines("pids"))
            time.sleep(IDLE_S)
        feed(jobs)
        eventually(lambda: jobs.out() == counted(KEYS * epoch))  # noqa: B023
    eventually(lambda: len(client.report.epochs) == 3)
    assert not workers & set(jobs.marks.lines("pids")[len(KEYS) * 2 :])
    assert client.report.attempts == 1
    assert "rebuilt" not in client.report.epochs[-1].openings
