"""Any Spark writer as a sink: Parquet directories by version, and a table through JDBC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engine.test_recipes import recipe
from job_support import COUNTED, Count, Jobs, counted
from turnback.errors import JobFailedError
from turnback.spark import BatchEpoch

spark_writers = recipe("spark_writers")


def count(jobs: Jobs, function: Any, job: str = "job", **configuration: Any) -> None:
    env = jobs.env(**configuration)
    events = jobs.files(env, "events", "k string")
    events.key_by("k").process(Count(), COUNTED).uid("count").for_each_batch(function).uid("out")
    env.execute(job, bounded=True)


def test_parquet_by_version_and_a_function_that_fails_once(jobs: Jobs) -> None:
    calls: list[BatchEpoch] = []
    out = jobs.directory / "out"
    to_parquet = spark_writers.parquet(str(out))

    def write(frame: DataFrame, epoch: BatchEpoch) -> None:
        calls.append(epoch)
        to_parquet(frame, epoch)
        if len(calls) == 2:
            raise RuntimeError("lost the connection after writing")

    jobs.feed("events", {"k": "a"}, {"k": "b"})
    jobs.feed("events", {"k": "a"}, {"k": "c"})
    with pytest.raises(JobFailedError, match="lost the connection"):
        count(jobs, write)
    count(jobs, write)
    frame = jobs.spark.read.parquet(str(out))
    assert frame.columns == ["key", "n", "writer", "version"]
    assert sorted(tuple(row)[:2] for row in frame.collect()) == counted("abac")
    assert [(c.job, c.sink, c.epoch) for c in calls] == [("job", "out", e) for e in (1, 2, 2)]
    assert calls[1] == calls[2]
    assert list((jobs.path() / "sinks").rglob("*.arrow")) == []
    count(jobs, write)
    assert len(calls) == 3


def test_a_second_job_overwrites_nothing(jobs: Jobs) -> None:
    """Such as a fork: it counts attempts and epochs as the first one does."""
    out = str(jobs.directory / "out")
    jobs.feed("events", {"k": "a"}, {"k": "b"})
    for job in ("job", "fork"):
        count(jobs, spark_writers.parquet(out), job)
    rows = jobs.spark.read.parquet(out).collect()
    assert sorted((row.key, row.n) for row in rows) == sorted(counted("ab") * 2)
    assert len({row.writer for row in rows}) == 2
    assert len({row.version for row in rows}) == 1


def test_a_table_through_jdbc_that_remembers_its_version(jobs: Jobs) -> None:
    url = f"jdbc:derby:{jobs.directory}/derby;create=true"
    manager = jobs.spark._jvm.java.sql.DriverManager  # type: ignore[union-attr]
    connection = manager.getConnection(url)
    statement = connection.createStatement()
    statement.execute("create table likes (k varchar(20), n bigint)")
    statement.execute("create table done (writer varchar(80), version bigint)")
    connection.close()
    to_table, calls = spark_writers.jdbc(url, "likes"), []

    def write(frame: DataFrame, epoch: BatchEpoch) -> None:
        calls.append(epoch.version)
        to_table(frame, epoch)
        if len(calls) == 2:
            raise RuntimeError("lost the connection after the commit")

    jobs.feed("events", {"k": "a"}, {"k": "b"})
    jobs.feed("events", {"k": "a"})
    with pytest.raises(JobFailedError, match="lost the connection"):
        count(jobs, write)
    count(jobs, write)
    assert calls[1] == calls[2]
    table = jobs.spark.read.jdbc(url, "likes")
    assert sorted(map(tuple, table.collect())) == counted("aba")


def test_checkpoints_in_the_drivers_memory(jobs: Jobs) -> None:
    rows: list[Any] = []
    jobs.feed("events", {"k": "a"})
    count(
        jobs,
        lambda frame, epoch: rows.extend(map(tuple, frame.collect())),
        **{"execution.checkpointing.storage": "jobmanager"},
    )
    assert rows == [("a", 1)]


def test_a_damaged_staged_file_is_named(jobs: Jobs) -> None:
    def damage(frame: DataFrame, epoch: BatchEpoch) -> None:
        [path] = Path(jobs.path()).glob("sinks/out/staged/*/*.arrow")
        path.write_bytes(path.read_bytes()[:-1])
        frame.collect()

    jobs.feed("events", {"k": "a"})
    with pytest.raises(JobFailedError, match=r"arrow is damaged"):
        count(jobs, damage)
