"""Jobs with sinks on the write-ahead and the idempotent template, killed at every point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from latest_sink import LatestSink
from ledger_sink import LedgerSink
from turnback.errors import JobFailedError
from turnback.sinks.base import Sink
from turnback.testing import DriverCrash, JobHarness, source

POINTS = ["before-manifest", "after-manifest", "after-sink-commit"]


def counting(sink: Sink) -> Callable[[Any], None]:
    def program(env: Any) -> None:
        events = source(env, "events", "k string")
        events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(sink).uid("out")

    return program


def harness(sink: Sink, tmp_path: Path) -> JobHarness:
    return JobHarness(counting(sink), tmp_path, real_sinks=["out"])


@pytest.mark.parametrize("point", POINTS)
def test_write_ahead_through_a_kill(tmp_path: Path, point: str) -> None:
    sink = LedgerSink(str(tmp_path / "likes.db"))
    with harness(sink, tmp_path) as job:
        job.push("events", ("a",), ("b",))
        job.crash_at(point)
        with pytest.raises(DriverCrash):
            job.push("events", ("a",), ("c",))
        job.start()
        job.push("events", ("a",))
        assert sorted(sink.likes()) == counted("abaca")
    assert list((tmp_path / "jobs").glob("job/sinks/**/*.arrow")) == []
    assert sink.calls[-1] == "close"


@pytest.mark.parametrize("point", POINTS)
def test_idempotent_through_a_kill(tmp_path: Path, point: str) -> None:
    sink = LatestSink(str(tmp_path / "latest.db"))
    with harness(sink, tmp_path) as job:
        job.push("events", ("a",), ("b",))
        job.crash_at(point)
        with pytest.raises(DriverCrash):
            job.push("events", ("a",), ("c",))
        job.start()
        job.push("events", ("a",))
        assert sink.latest() == [("a", 3), ("b", 1), ("c", 1)]


def test_a_job_that_is_turned_back_publishes_its_epochs_again(tmp_path: Path) -> None:
    sink = LedgerSink(str(tmp_path / "likes.db"))
    with harness(sink, tmp_path) as job:
        job.push("events", ("a",))
        saved = job.savepoint()
        job.push("events", ("a",))
        job.push("events", ("a",))
        job.restart(start_from=saved)
        job.push("events", ("b",))
    # The two epochs after the savepoint are read again, under the same numbers.
    assert sorted(sink.likes()) == sorted([*counted("aaa"), ("a", 2), ("a", 3), ("b", 1)])


def test_checkpoints_in_the_drivers_memory(jobs: Jobs) -> None:
    sink = LedgerSink(str(jobs.directory / "likes.db"))
    for key in "aba":
        jobs.feed("events", {"k": key})
    env = jobs.env(**{"execution.checkpointing.storage": "jobmanager"})
    stream = jobs.files(env, "events", "k string")
    stream.key_by("k").process(Count(), COUNTED).uid("count").sink_to(sink).uid("out")
    env.execute("in-memory", bounded=True)
    assert sorted(sink.likes()) == counted("aba")


def test_a_target_that_cannot_be_reached_at_the_start(jobs: Jobs) -> None:
    class Unreachable(LedgerSink):
        def open(self, ctx: Any) -> None:
            raise ConnectionError("no route")

    env = jobs.env()
    jobs.feed("events", {"k": "a"})
    sink = Unreachable(str(jobs.directory / "likes.db"))
    jobs.files(env, "events", "k string").sink_to(sink).uid("out")
    with pytest.raises(JobFailedError, match=r"Unreachable.open failed.*no route"):
        env.execute("job", bounded=True)
