"""Table sinks on Spark: tasks in other processes write, the driver commits, a restart goes on."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable

from job_support import COUNTED, Count, Jobs
from turnback.connectors.tables import DeltaSink


def run(jobs: Jobs) -> None:
    env = jobs.env()
    counts = jobs.files(env, "events", "k string").key_by("k").process(Count(), COUNTED)
    counts.uid("count").sink_to(DeltaSink(jobs.directory / "all", partition_by=["key"])).uid(
        "to-all"
    )
    last = DeltaSink(jobs.directory / "last", mode="upsert", key=["key"])
    counts.key_by("key").map(lambda row: row, COUNTED).sink_to(last).uid("to-last")
    jobs.start(env, bounded=True).result(120)


def rows(jobs: Jobs, name: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(jobs.directory / name)).to_pyarrow_table().to_pylist()
    return sorted((row["key"], row["n"]) for row in table)


def test_delta_tables_over_two_runs(jobs: Jobs) -> None:
    jobs.feed("events", *({"k": k} for k in "aab"))
    run(jobs)
    assert rows(jobs, "all") == [("a", 1), ("a", 2), ("b", 1)]
    jobs.feed("events", *({"k": k} for k in "abc"))
    run(jobs)
    assert rows(jobs, "all") == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]
    assert rows(jobs, "last") == [("a", 3), ("b", 2), ("c", 1)]
    versions = jobs.log().targets(jobs.checkpoints()[-1].number)
    for name in ("all", "last"):
        assert versions[f"to-{name}"] == str(DeltaTable(str(jobs.directory / name)).version())
    read = jobs.spark.read.parquet(*DeltaTable(str(jobs.directory / "all")).file_uris())
    assert sorted(row.n for row in read.collect()) == [1, 1, 1, 2, 2, 3]
