"""A job directory that is restored from a backup, while its target goes on from where it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted, eventually
from saved_jobs import build, feed, settled
from turnback import CheckpointingMode
from turnback.errors import ConfigurationError


def run(jobs: Jobs, **how: Any) -> None:
    """Process what is there."""
    how = {"bounded": True, "end_event_time": False} | how
    jobs.start(build(jobs), **how).result(90)


def is_recorded(jobs: Jobs) -> bool:
    """Whether the newest checkpoint is known to be committed."""
    newest = jobs.log().latest()
    return newest is not None and not jobs.log().uncommitted(newest)


@pytest.fixture
def backup(jobs: Jobs) -> Path:
    """A backup that was made while the job ran; it went on in the same attempt."""
    feed(jobs, "aab")
    client = jobs.start(build(jobs))
    settled(jobs, "aab")
    eventually(lambda: is_recorded(jobs))
    made = jobs.directory / "backup"
    shutil.copytree(jobs.path(), made)
    feed(jobs, "ca")
    settled(jobs, "aabca")
    client.cancel()
    client.result(90)
    return made


def restore(jobs: Jobs, backup: Path) -> None:
    shutil.rmtree(jobs.path())
    shutil.copytree(backup, jobs.path())


def test_a_backup_of_a_running_job_is_refused_by_the_files_it_has_written_since(
    jobs: Jobs, backup: Path
) -> None:
    restore(jobs, backup)
    with pytest.raises(ConfigurationError, match=r"attempt 1 .*restored from a backup"):
        run(jobs)
    assert jobs.out() == counted("aabca")


def test_a_backup_from_before_the_last_attempt_is_refused(jobs: Jobs) -> None:
    feed(jobs, "aab")
    run(jobs)
    backup = jobs.directory / "backup"
    shutil.copytree(jobs.path(), backup)
    feed(jobs, "ca")
    run(jobs)
    restore(jobs, backup)
    with pytest.raises(ConfigurationError, match=r"attempt 2 .*restored from a backup"):
        run(jobs)
    assert jobs.out() == counted("aabca")


def test_who_takes_over_goes_on_and_writes_again_what_came_since(jobs: Jobs, backup: Path) -> None:
    restore(jobs, backup)
    run(jobs, take_over_sinks=True)
    assert jobs.out() == sorted([*counted("aabca"), ("a", 3), ("c", 1)])
    feed(jobs, "c")
    run(jobs)  # from now on it is a job like any other
    assert jobs.out() == sorted([*counted("aabcac"), ("a", 3), ("c", 1)])


def renamed(jobs: Jobs) -> Any:
    """The job with another uid of its sink."""
    env = jobs.env()
    events = jobs.files(env, "events", "k string")
    counts = events.key_by("k").process(Count(), COUNTED).uid("count")
    counts.sink_to(jobs.sink()).uid("renamed")
    return env


def test_a_backup_is_refused_if_the_sink_is_renamed_at_once(jobs: Jobs, backup: Path) -> None:
    restore(jobs, backup)
    how: dict[str, Any] = {"bounded": True, "end_event_time": False}
    how |= {"renames": {"out": "renamed"}}
    with pytest.raises(ConfigurationError, match=r"attempt 1 .*restored from a backup"):
        jobs.start(renamed(jobs), **how).result(90)
    assert jobs.out() == counted("aabca")
    jobs.start(renamed(jobs), **how, take_over_sinks=True).result(90)
    assert jobs.out() == sorted([*counted("aabca"), ("a", 3), ("c", 1)])
    feed(jobs, "c")
    jobs.start(renamed(jobs), **how).result(90)
    assert jobs.out() == sorted([*counted("aabcac"), ("a", 3), ("c", 1)])


def test_a_backup_from_before_the_sink_was_renamed_is_refused(jobs: Jobs) -> None:
    feed(jobs, "aab")
    run(jobs)
    made = jobs.directory / "backup"
    shutil.copytree(jobs.path(), made)
    feed(jobs, "ca")
    how: dict[str, Any] = {"bounded": True, "end_event_time": False}
    jobs.start(renamed(jobs), **how, renames={"out": "renamed"}).result(90)
    restore(jobs, made)
    with pytest.raises(ConfigurationError, match=r"attempt 2 .*restored from a backup"):
        run(jobs)
    assert jobs.out() == counted("aabca")


@pytest.mark.parametrize("again", [False, True], ids=["resumed", "afresh again"])
def test_a_backup_from_before_a_fresh_start_is_refused(jobs: Jobs, again: bool) -> None:
    feed(jobs, "aab")
    run(jobs)
    made = jobs.directory / "backup"
    shutil.copytree(jobs.path(), made)
    run(jobs, fresh=True)
    out = jobs.out()
    restore(jobs, made)
    with pytest.raises(ConfigurationError, match=r"attempt 2 .*restored from a backup"):
        run(jobs, fresh=again)
    assert jobs.out() == out == sorted(2 * counted("aab"))
    run(jobs, fresh=again, take_over_sinks=True)
    run(jobs)


def test_a_job_whose_directory_was_deleted_is_not_taken_for_restored(jobs: Jobs) -> None:
    feed(jobs, "aab")
    run(jobs)
    run(jobs)
    shutil.rmtree(jobs.path())
    run(jobs)
    run(jobs)
    assert jobs.out() == sorted(2 * counted("aab"))


def test_a_job_that_commits_every_epoch_is_not_taken_for_restored(jobs: Jobs) -> None:
    feed(jobs, "aab")
    env = build(jobs)
    env.enable_checkpointing(3_600_000, CheckpointingMode.AT_LEAST_ONCE)
    client = jobs.start(env)
    settled(jobs, "aab")  # without a checkpoint
    client.cancel()
    client.result(90)
    assert jobs.checkpoints() == []
    run(jobs)
    assert jobs.out() == sorted([*counted("aab"), *counted("aab")])
