"""Savepoints on request: who may ask, when, and who answers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from job_support import Count, counted, eventually
from saved_jobs import KEYS, build, feed, rows, settled
from turnback.driver.savepoints import Exporter
from turnback.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    FencedError,
    StorageError,
)
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.job.status import JobState
from turnback.snapshot.directory import SavepointDirectory
from verification import verify_savepoint


def test_two_at_once_both_end(jobs):
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    futures = [client.trigger_savepoint(jobs.directory / f"sp{i}") for i in range(2)]
    for i, future in enumerate(futures):
        assert future.result(60) == (jobs.directory / f"sp{i}").as_uri()
        assert rows(jobs.directory / f"sp{i}") == {"a": 3, "b": 2, "c": 1}


def test_a_driver_that_was_replaced_answers_for_nobody(jobs, monkeypatch, caplog):
    """Whoever has taken over answers, or there would be two results."""

    def fenced(self, metadata):
        raise FencedError("begun anew")

    monkeypatch.setattr(SavepointDirectory, "complete", fenced)
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    client.trigger_savepoint(jobs.directory / "sp")
    eventually(lambda: "skipped: begun anew" in caplog.text)
    requests = Requests(JobDirectory.locate(jobs.root, "job").storage)
    (asked,) = requests.open()
    assert requests.result(asked.id) is None


def test_anybody_can_ask_through_the_job_directory(jobs):
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    requests = Requests(JobDirectory.locate(jobs.root, "job").storage)
    request = requests.submit(
        RequestSpec(RequestKind.STOP, savepoint=True, target=str(jobs.directory / "sp"))
    )
    result = requests.wait(request.id, 60)
    assert result.path == (jobs.directory / "sp").as_uri()
    client.result(60)
    assert requests.open() == []


def test_what_cannot_be_taken(jobs):
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    full = jobs.directory / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"full is not empty"):
        client.trigger_savepoint(full).result(60)
    with pytest.raises(CheckpointError, match=r"set state\.savepoints\.dir"):
        client.trigger_savepoint().result(60)
    (jobs.directory / "file").write_text("")
    with pytest.raises(CheckpointError, match="file"):
        client.trigger_savepoint(jobs.directory / "file").result(60)
    with pytest.raises(ConfigurationError, match=r"\.\."):
        client.trigger_savepoint(f"{jobs.directory}/../x")
    with pytest.raises(ConfigurationError, match="must be a path"):
        client.trigger_savepoint(7)
    # A stop that cannot take its savepoint leaves the job running.
    with pytest.raises(CheckpointError, match="not empty"):
        client.stop_with_savepoint(savepoint_directory=full).result(60)
    feed(jobs)
    settled(jobs, KEYS * 2)
    client.cancel()
    client.result(60)
    with pytest.raises(CheckpointError, match="has ended"):
        client.trigger_savepoint(jobs.directory / "late")
    assert [p.name for p in full.iterdir()] == ["mine.txt"]


class Slow(Count):
    def process_element(self, value: Any, ctx: Any) -> Any:
        time.sleep(0.5)
        yield from super().process_element(value, ctx)


def test_an_open_request_is_answered_when_the_job_ends(jobs):
    feed(jobs)
    client = jobs.start(build(jobs, Slow()))
    future = client.trigger_savepoint(jobs.directory / "sp")
    client.cancel()
    client.result(60)
    try:
        future.result(60)
    except CheckpointError as e:
        assert "ended" in str(e) or "abandoned" in str(e)
        with pytest.raises(CheckpointNotFoundError):
            SavepointDirectory.locate(jobs.directory / "sp").load()
    assert Requests(JobDirectory.locate(jobs.root, "job").storage).open() == []


def test_requests_that_a_dead_driver_left(jobs):
    feed(jobs)
    build(jobs).execute("job", bounded=True)
    requests = Requests(JobDirectory.locate(jobs.root, "job").storage)
    asked = [
        requests.submit(RequestSpec(RequestKind.SAVEPOINT, target=str(jobs.directory / "sp"))),
        requests.submit(
            RequestSpec(RequestKind.STOP, savepoint=True, target=str(jobs.directory / "stop"))
        ),
        requests.submit(RequestSpec(RequestKind.CANCEL)),
    ]
    client = jobs.start(build(jobs))
    results = [requests.wait(r.id, 60) for r in asked]
    assert [r.state.value for r in results] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert "ended before the savepoint was complete" in results[1].error
    assert not client.done()


def test_one_asked_for_while_the_job_restarts(jobs):
    class Fails(Count):
        def process_element(self, value: Any, ctx: Any) -> Any:
            if marks.first("failed"):
                raise RuntimeError("once")
            yield from super().process_element(value, ctx)

    marks = jobs.marks
    how = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "3 s"}
    feed(jobs)
    client = jobs.start(build(jobs, Fails(), **how, **{"restart-strategy.fixed-delay.attempts": 1}))
    eventually(lambda: marks.lines("failed") or (marks.directory / "failed").exists())
    client.trigger_savepoint(jobs.directory / "sp").result(90)
    settled(jobs, KEYS)
    client.cancel()
    assert client.result(60).attempts == 2
    assert verify_savepoint(jobs.directory / "sp") == []


def test_the_attempt_fails_while_the_savepoint_of_a_stop_is_written(jobs, monkeypatch):
    """The job restarts by itself, and ends all the same: with the epoch of the savepoint."""
    feed(jobs)
    how = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "100 ms"}
    client = jobs.start(build(jobs, **how, **{"restart-strategy.fixed-delay.attempts": 3}))
    settled(jobs, KEYS)
    runner, export = client._runner, Exporter.export

    def fails(self, *args):
        first = runner.attempt
        feed(jobs)  # which must not be processed any more
        first.coordinator._set_failure(StorageError("while the savepoint is written"))
        eventually(lambda: runner.attempt not in (None, first) and runner.attempt.is_running)
        return export(self, *args)

    monkeypatch.setattr(Exporter, "export", fails)
    where = client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
    assert JobDirectory.locate(jobs.root, "job").status().state is JobState.FINISHED
    assert client.result(60).attempts == 2
    assert jobs.out() == counted(KEYS)
    build(jobs).execute("job", bounded=True, start_from=where)
    assert jobs.out() == counted(KEYS * 2)
