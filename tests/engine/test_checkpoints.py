"""When checkpoints are taken, which are kept, and starting from any of them."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted, eventually
from turnback import CheckpointingMode, StreamExecutionEnvironment
from turnback.api.environment import error_text
from turnback.config import ExternalizedCheckpointRetention
from turnback.errors import CheckpointNotFoundError
from turnback.job.history import AttemptStarted, CheckpointStats, JobEnded

HOUR = 3_600_000


def count(jobs: Jobs, env: StreamExecutionEnvironment, out: str = "out") -> None:
    events = jobs.files(env, "events", "k string")
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink(out)).uid("out")


def run(jobs: Jobs, out: str = "out", interval: int | None = 10, **how: Any) -> Any:
    env = jobs.env(interval)
    env.get_checkpoint_config().set_num_retained_checkpoints(20)
    count(jobs, env, out)
    return env.execute("job", bounded=True, **how)


def test_they_are_off_by_default_and_that_is_said(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.feed("events", {"k": "a"}, {"k": "a"})
    with caplog.at_level(logging.WARNING):
        report = run(jobs, interval=None)
    assert "job 'job': checkpoints are disabled, so delivery is at-most-once" in caplog.text
    assert jobs.out() == counted("aa")
    assert (report.checkpoints, report.last_checkpoint) == (0, None)
    assert jobs.checkpoints() == []
    caplog.clear()
    run(jobs)  # on: everything is read again, because no position was kept
    assert "at-most-once" not in caplog.text
    assert jobs.out() == sorted(counted("aa") * 2)


def test_a_bounded_job_ends_with_one(jobs: Jobs) -> None:
    for _ in range(3):
        jobs.feed("events", {"k": "a"})
    report = run(jobs, interval=HOUR)
    (only,) = jobs.checkpoints()
    assert (only.epoch, only.trigger, only.number) == (3, "final", report.last_checkpoint)
    assert report.checkpoints == 1
    started, done, ended = jobs.events()
    assert started == AttemptStarted(None, None)
    assert isinstance(done, CheckpointStats)
    assert (done.number, done.epoch, done.trigger) == (only.number, 3, "final")
    assert ended == JobEnded("FINISHED")


def test_as_many_are_kept_as_wanted(jobs: Jobs) -> None:
    def kept(number: int | None) -> list[int]:
        jobs.feed("events", {"k": "a"})
        env = jobs.env()
        if number is not None:
            env.get_checkpoint_config().set_num_retained_checkpoints(number)
        count(jobs, env)
        env.execute("job", bounded=True)
        return [manifest.epoch for manifest in jobs.checkpoints()]

    assert kept(3) == [1]
    assert kept(3) == [1, 2]
    assert kept(3) == [1, 2, 3]
    assert kept(3) == [2, 3, 4]
    assert kept(None) == [5]
    assert jobs.out() == counted("aaaaa")
    referenced = {path for manifest in jobs.checkpoints() for path in manifest.files()}
    stored = [p for sub in ("state", "offsets") for p in (jobs.path() / sub).rglob("*")]
    found = {p.relative_to(jobs.path()).as_posix() for p in stored if p.is_file()}
    assert found == referenced


def test_any_of_them_can_be_started_from(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"}, {"k": "b"})
    run(jobs)
    time.sleep(0.01)
    between = datetime.now(UTC)
    jobs.feed("events", {"k": "a"})
    run(jobs)
    (old, new) = jobs.checkpoints()
    assert [old.epoch, new.epoch] == [1, 2]
    ways: list[Any] = [
        old.number,
        f"chk-{old.number}",
        jobs.path() / "checkpoints" / f"chk-{old.number}.json",
        between,
        between.isoformat(),
    ]
    for i, way in enumerate(ways):
        report = run(jobs, f"replay {i}", start_from=way)
        assert report.restored_from == old.name, way
        assert [e.number for e in report.epochs] == [2], way
        assert jobs.out(f"replay {i}") == [("a", 2)], way
    assert jobs.out() == counted("aba")
    # What follows goes on from the newest, and what was replayed is not read again.
    jobs.feed("events", {"k": "a"})
    report = run(jobs, "after")
    assert report.restored_from == jobs.checkpoints()[-2].name
    assert jobs.out("after") == [("a", 3)]


@pytest.mark.parametrize(
    "which",
    [999, "chk-999", "nonsense", "2001-01-01T00:00:00", "/elsewhere/checkpoints/chk-2.json"],
)
def test_one_that_is_not_there(jobs: Jobs, which: Any) -> None:
    jobs.feed("events", {"k": "a"})
    run(jobs)
    (only,) = jobs.checkpoints()
    before = jobs.out()
    jobs.feed("events", {"k": "a"})
    with pytest.raises(CheckpointNotFoundError, match=f"{only.name}|elsewhere") as refused:
        run(jobs, start_from=which)
    printed = error_text(refused.value)
    assert __file__ in printed
    assert "concurrent/futures" not in printed and "/turnback/snapshot/" not in printed
    assert jobs.out() == before
    assert [m.number for m in jobs.checkpoints()] == [only.number]


@pytest.mark.parametrize("retention", ExternalizedCheckpointRetention)
def test_what_becomes_of_them_on_cancellation(
    jobs: Jobs, retention: ExternalizedCheckpointRetention
) -> None:
    jobs.feed("events", {"k": "a"})
    env = jobs.env()
    env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
    count(jobs, env)
    client = jobs.start(env, epoch_interval=20)
    eventually(lambda: jobs.out() == [("a", 1)])
    client.cancel()
    client.result(60)
    assert jobs.events()[-1] == JobEnded("CANCELED")
    keep = retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    assert bool(jobs.checkpoints()) == keep
    assert any(p.is_file() for p in (jobs.path() / "state").rglob("*")) == keep
    jobs.feed("events", {"k": "a"})
    run(jobs)
    assert jobs.out() == (counted("aa") if keep else sorted([*counted("a"), *counted("aa")]))


@pytest.mark.parametrize("mode", CheckpointingMode)
def test_when_output_becomes_visible(jobs: Jobs, mode: CheckpointingMode) -> None:
    """Exactly-once: with the checkpoint. At-least-once: with the epoch; repeated if that failed."""
    jobs.feed("events", {"k": "a"})
    env = jobs.env()
    env.enable_checkpointing(HOUR, mode)
    count(jobs, env)
    client = jobs.start(env, epoch_interval=20)
    eventually(lambda: client.report.epochs)
    exactly = mode is CheckpointingMode.EXACTLY_ONCE
    if exactly:
        time.sleep(0.3)
        assert jobs.out() == []
    else:
        eventually(lambda: jobs.out() == [("a", 1)])
    client.cancel()
    client.result(60)
    assert jobs.checkpoints() == []
    run(jobs)
    assert jobs.out() == ([("a", 1)] if exactly else [("a", 1), ("a", 1)])
    assert not list((jobs.directory / "out").rglob("*.inprogress"))


def test_checkpoints_in_the_drivers_memory(jobs: Jobs) -> None:
    """They outlive the job in this process, and leave no files."""
    fail_once = jobs.marks

    def maybe(row: Any) -> Any:
        if row.k == "bad" and fail_once.first("failed"):
            raise ValueError("once")
        return row

    def run_in_memory() -> Any:
        env = jobs.env(**{"restart-strategy.type": "fixed-delay",
                          "restart-strategy.fixed-delay.delay": "0 s"})  # fmt: skip
        env.set_state_backend("memory")
        events = jobs.files(env, "events", "k string").map(maybe, "k string")
        counts = events.key_by("k").process(Count(), COUNTED).uid("count")
        counts.sink_to(jobs.sink()).uid("out")
        return env.execute(f"in memory {jobs.directory}", bounded=True)

    jobs.feed("events", {"k": "a"})
    first = run_in_memory()
    assert first.checkpoints == 1
    jobs.feed("events", {"k": "a"})
    jobs.feed("events", {"k": "bad"}, {"k": "a"})
    second = run_in_memory()
    assert second.restored_from == f"chk-{first.last_checkpoint}"
    assert second.attempts == 2
    assert second.job_dir.startswith("memory://")
    assert jobs.out() == counted(["a", "a", "bad", "a"])
    assert not jobs.root.exists() or not list(Path(jobs.root).iterdir())
