"""Whole jobs with table sinks, without Spark: restarts, savepoints, and what a dead one left."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from table_support import DeltaPlace, Job

from fake_job import FakeJob, schema
from job_support import Jobs, eventually
from turnback.connectors.tables import DeltaSink
from turnback.connectors.tables.delta import DeltaTarget
from turnback.driver.sinks import record_sinks
from turnback.errors import ConfigurationError, JobFailedError, SinkError
from turnback.operations.transactions import Action, list_transactions, settle
from turnback.snapshot.find import load_savepoint
from turnback.views.snapshots import describe

EXAMPLE = Path(__file__).parents[3] / "examples" / "tables.py"
DAY = "2026-01-0"


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.close()


def pay(jobs: Jobs, *payments: tuple[str, int, int]) -> None:
    jobs.feed("in", *({"account": a, "day": f"{DAY}{d}", "amount": n} for a, d, n in payments))


def start(jobs: Jobs, **options: Any) -> Any:
    env = jobs.env()
    build = runpy.run_path(str(EXAMPLE))["build"]
    build(env, str(jobs.input("in")), str(jobs.directory / "tables"))
    return jobs.start(env, "tables", **options)


def table(jobs: Jobs, name: str, version: int | None = None) -> list[tuple[Any, ...]]:
    rows = DeltaTable(str(jobs.directory / "tables" / name), version=version).to_pyarrow_table()
    names = ["account", "day", "amount"] if name == "payments" else ["account", "balance"]
    return sorted(zip(*(rows[column].to_pylist() for column in names), strict=True))


def test_the_example_over_two_runs(jobs: Jobs) -> None:
    pay(jobs, ("ann", 1, 10), ("bob", 1, 5), ("ann", 2, 1))
    start(jobs, bounded=True).result(60)
    assert table(jobs, "balances") == [("ann", 11), ("bob", 5)]
    pay(jobs, ("ann", 2, 100))
    start(jobs, bounded=True).result(60)
    start(jobs, bounded=True).result(60)  # nothing new
    assert table(jobs, "payments") == [
        ("ann", "2026-01-01", 10),
        ("ann", "2026-01-02", 1),
        ("ann", "2026-01-02", 100),
        ("bob", "2026-01-01", 5),
    ]
    assert table(jobs, "balances") == [("ann", 111), ("bob", 5)]


def test_a_savepoint_tells_the_versions_that_match_it(jobs: Jobs) -> None:
    pay(jobs, ("ann", 1, 10))
    client = start(jobs)
    eventually(lambda: written(jobs) and table(jobs, "balances") == [("ann", 10)])
    where = client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
    client.result(60)
    then = {name: table(jobs, name) for name in ("payments", "balances")}
    pay(jobs, ("ann", 1, 20))
    start(jobs, bounded=True).result(60)
    targets = describe(load_savepoint(where, {})).targets
    assert set(targets) == {"to-payments", "to-balances"}
    for name, rows in then.items():
        assert table(jobs, name) != rows
        assert table(jobs, name, int(targets[f"to-{name}"])) == rows


def written(jobs: Jobs) -> bool:
    return DeltaTable.is_deltatable(str(jobs.directory / "tables" / "balances"))


def test_a_savepoint_writes_what_waits(jobs: Jobs) -> None:
    """A job that would write its table in an hour: its savepoint matches a version all the same."""
    env = jobs.env(interval=100)
    place = DeltaPlace(jobs.directory)
    stream = jobs.files(env, "in", "account string, day string, amount bigint")
    stream.sink_to(place.sink(write_every=1000)).uid("out")
    for account in ("ann", "bob", "cid"):
        pay(jobs, (account, 1, 10))
    client = jobs.start(env, "patient")
    eventually(lambda: len(list(place.root.glob("part-*.parquet"))) == 3)
    assert place.read().num_rows == 0
    where = client.trigger_savepoint(jobs.directory / "sp").result(60)
    assert sorted(place.read()["account"].to_pylist()) == ["ann", "bob", "cid"]
    assert len(place.referenced()) == 1  # was 3
    (version,) = describe(load_savepoint(where, {})).targets.values()
    pay(jobs, ("dan", 1, 10))
    eventually(lambda: len(list(place.root.glob("part-*.parquet"))) == 2)
    assert place.read().num_rows == 3
    client.stop().result(60)
    client.result(60)
    assert place.read().num_rows == 4
    assert DeltaTable(str(place.root), version=int(version)).to_pyarrow_table().num_rows == 3


def test_a_job_without_checkpoints_cannot_let_output_wait(jobs: Jobs) -> None:
    env = jobs.env(interval=None)
    stream = jobs.files(env, "in", "account string")
    stream.sink_to(DeltaPlace(jobs.directory).sink(write_every=2)).uid("out")
    with pytest.raises(ConfigurationError, match="enable_checkpointing"):
        env.execute("forgetful")


class NoAnswer(DeltaTarget):
    """A table of which one commit is not heard of again, though it has landed."""

    def append(self, *arguments: Any) -> None:
        super().append(*arguments)
        if self._table.to_pyarrow_table().num_rows == 2:
            raise SinkError("no answer")


class NoAnswerSink(DeltaSink):
    def target(self, ctx: Any) -> DeltaTarget:
        return NoAnswer(self, ctx)


def test_a_commit_without_an_answer_is_not_rolled_back(jobs: Jobs) -> None:
    """Without checkpoints: the driver does not know whether the table has the epoch."""
    place = DeltaPlace(jobs.directory)
    for account in ("ann", "bob"):
        pay(jobs, (account, 1, 10))
    env = jobs.env(interval=None)
    stream = jobs.files(env, "in", "account string, day string, amount bigint")
    stream.sink_to(NoAnswerSink(place.root)).uid("out")
    with pytest.raises(JobFailedError, match="no answer"):
        jobs.start(env, bounded=True).result(60)
    assert sorted(place.read()["account"].to_pylist()) == ["ann", "bob"]


def test_a_job_that_was_restored_from_a_backup_is_refused(jobs: Jobs) -> None:
    def accounts() -> list[str]:
        return sorted(account for account, *_ in table(jobs, "payments"))

    pay(jobs, ("ann", 1, 10))
    start(jobs, bounded=True).result(60)
    backup = jobs.directory / "backup"
    shutil.copytree(jobs.path("tables"), backup)
    pay(jobs, ("bob", 1, 10))
    start(jobs, bounded=True).result(60)
    shutil.rmtree(jobs.path("tables"))
    shutil.copytree(backup, jobs.path("tables"))
    pay(jobs, ("cid", 1, 10))
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        start(jobs, bounded=True).result(60)
    assert accounts() == ["ann", "bob"]
    # The user knows, and goes on: what was written since then is written again.
    start(jobs, bounded=True, take_over_sinks=True).result(60)
    assert accounts() == ["ann", "bob", "bob", "cid"]
    pay(jobs, ("dan", 1, 10))
    start(jobs, bounded=True).result(60)
    assert accounts() == ["ann", "bob", "bob", "cid", "dan"]


class DeadJob:
    """A job that died with one epoch promised and one that no checkpoint has."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.job = FakeJob(str(tmp_path / "jobs"))
        self.job.attempt()
        self.output = Job(DeltaPlace(tmp_path), **options)
        self.output.directory = self.job.directory.storage.uri
        ctx = self.output.context(self.job.number, job_id=self.job.info.job_id)
        self.output.sink.acquire_target(ctx)
        self.output.sink.committer(ctx).recover(())
        record_sinks(self.job.directory, self.job.number, {"out": self.output.sink})
        promised = self.write(("a", 1, "mon"), ("b", 2, "tue"), epoch=2)
        self.job.checkpoint((schema(), {"a": 1}), transactions={"out": (promised,)})
        self.write(("c", 3, None), epoch=3)

    def write(self, *rows: Any, epoch: int) -> bytes:
        job_id = self.job.info.job_id
        return self.output.write(*rows, job_id=job_id, attempt=self.job.number, epoch=epoch)


def test_what_a_dead_job_promised_is_listed(tmp_path: Path) -> None:
    dead = DeadJob(tmp_path)
    row, left = list_transactions(dead.job)
    assert (row.sink, row.kind, row.state, row.epoch, row.rows) == (
        "out",
        "delta",
        "in doubt",
        2,
        2,
    )
    assert str(dead.output.place.root) in row.what
    assert row.bytes
    assert (left.state, left.epoch) == ("orphaned", 3)


def test_what_a_dead_job_promised_is_committed_without_its_program(tmp_path: Path) -> None:
    dead = DeadJob(tmp_path)
    settle(dead.job, Action.COMMIT)
    assert dead.output.rows() == [("a", 1, "mon"), ("b", 2, "tue")]
    assert dead.output.files() == dead.output.place.referenced()
    assert list_transactions(dead.job) == []


def test_what_waited_is_joined_without_the_program(tmp_path: Path) -> None:
    dead = DeadJob(tmp_path, write_every=5)
    more = tuple(dead.write((f"r{epoch}", epoch, None), epoch=epoch) for epoch in (4, 5))
    dead.job.checkpoint((schema(), {"a": 1}), transactions={"out": more})
    assert len(list_transactions(dead.job)) == 4
    settle(dead.job, Action.COMMIT)
    assert dead.output.rows() == [("r4", 4, None), ("r5", 5, None)]
    assert len(dead.output.files()) == 1
    assert dead.output.files() == dead.output.place.referenced()
    assert list_transactions(dead.job) == []


def test_what_the_table_has_already_is_not_dropped(tmp_path: Path) -> None:
    """The driver was killed while another sink committed, before that was recorded."""
    dead = DeadJob(tmp_path)
    promised = dead.job.log.latest().transactions["out"]
    ctx = dead.output.context(dead.job.number, job_id=dead.job.info.job_id)
    dead.output.sink.committer(ctx).commit(promised)
    settle(dead.job, Action.ABORT)
    assert dead.output.rows() == [("a", 1, "mon"), ("b", 2, "tue")]
    assert dead.output.files() == dead.output.place.referenced()


def test_what_a_dead_job_promised_is_dropped(tmp_path: Path) -> None:
    dead = DeadJob(tmp_path)
    settle(dead.job, Action.ABORT)
    assert dead.output.rows() == []
    assert dead.output.files() == set()
