"""How far a job is with restoring its state can be seen while it does so."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manual_clock import ManualClock
from turnback import KeyedProcessFunction, ValueStateDescriptor
from turnback.driver import context
from turnback.errors import StorageError
from turnback.job.directory import JobDirectory
from turnback.job.status import RestoreProgress
from turnback.state.files import StorageRef, storage_of
from turnback.storage.open import open_storage
from turnback.testing import JobHarness, source
from turnback.views.job import Job
from turnback.views.model import JobSummary
from turnback.worker import local_state as worker_restoring
from turnback.worker.local_state import RestoreReport


class Count(KeyedProcessFunction):
    n = ValueStateDescriptor("n", int)

    def process_element(self, event: Any, ctx: Any) -> Any:
        self.n.update((self.n.value() or 0) + 1)
        yield event.k, self.n.value()


def program(uid: str) -> Callable[[Any], None]:
    def build(env: Any) -> None:
        events = source(env, "events", "k string")
        events.key_by("k").process(Count(), "k string, n bigint").uid(uid).print().uid("out")

    return build


class Gate:
    """Holds tasks after each report, until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.reports = 0

    def pass_through(self) -> None:
        self.reports += 1
        assert self.is_open.wait(60)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, report = Gate(), RestoreReport.report

    def held(self: RestoreReport, done: float, total: float) -> None:
        report(self, done, total)
        gate.pass_through()

    monkeypatch.setattr(context, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(context, "REPORT_S", 0.0)
    monkeypatch.setattr(worker_restoring, "REPORT_S", 0.0)
    monkeypatch.setattr(RestoreReport, "report", held)
    gate.is_open.set()
    yield gate
    gate.is_open.set()


def summary(job: JobHarness) -> JobSummary:
    return Job(JobDirectory.locate(job.directory / "jobs", "job")).summary()


def until(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_a_restore_is_seen_while_it_goes_on_and_not_later(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with JobHarness(program("count"), tmp_path) as job:
        job.push("events", *((f"key {i}",) for i in range(200)))
        saved = job.savepoint(tmp_path / "saved")
        job.stop()
        # renamed: its state has to be taken in, and then local stores are filled with it
        gate.is_open.clear()
        with caplog.at_level(logging.INFO, "turnback"):
            starting = threading.Thread(
                target=job.start,
                args=(program("tally"),),
                kwargs={"start_from": saved, "renames": {"count": "tally"}},
            )
            starting.start()
            taken = until(lambda: summary(job).restore)
            assert taken.what.startswith("importing ") and taken.what.endswith("saved")
            assert 0.1 < taken.done < 0.4  # the first of two tasks has read its share
            assert taken.entries == 200
            assert taken.left_s is not None
            assert summary(job).state == "CREATED"
            gate.is_open.set()
            starting.join()
            gate.is_open.clear()
            pushing = threading.Thread(target=job.push, args=("events", ("key 1",)))
            pushing.start()
            until(lambda: (r := summary(job).restore) and r.what == "filling local stores")
            gate.is_open.set()
            pushing.join()
        until(lambda: summary(job).restore is None)
        assert not job.directory.joinpath("jobs", "job", "restoring").is_dir() or not list(
            job.directory.joinpath("jobs", "job", "restoring").rglob("store-*")
        )
        assert ("key 1", 2) in job.output("out")
    assert "saved: " in caplog.text and " left" in caplog.text


# -- the parts


def test_reports_are_few_and_only_of_what_takes_long(tmp_path: Path) -> None:
    storage = StorageRef(str(tmp_path))
    quick = RestoreReport(storage, 3, "store-0-1")
    quick.report(1, 1)
    assert storage_of(storage).list("restoring") == []


def test_a_report_that_cannot_be_written_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_restoring, "REPORT_S", 0.0)
    (tmp_path / "restoring").write_text("in the way")
    RestoreReport(StorageRef(str(tmp_path)), 3, "store-0-1").report(1, 2)
    assert "cannot report the progress of the restore" in caplog.text


def test_the_meter_adds_up_and_estimates(tmp_path: Path) -> None:
    clock, storage = ManualClock(1_000_000), open_storage(str(tmp_path))
    meter = context.RestoreMeter("orders", storage, clock)
    assert meter.progress() is None
    meter.begin("filling local stores", 3, {"store-0-0": 300, "store-0-1": 100})
    assert meter.progress() is None
    clock.advance(10_000)
    assert meter.progress() is None  # nobody has reported
    storage.put("restoring/3/store-0-1", b"." * 100)
    storage.put("restoring/2/store-0-0", b"." * 100)  # of an attempt that was killed
    expected = RestoreProgress(
        what="filling local stores", done=0.25, entries=400, since_ms=1_000_000,
        moved_ms=1_010_000, left_s=30.0,
    )  # fmt: skip
    assert meter.progress() == expected
    clock.advance(10_000)
    stuck = meter.progress()
    assert stuck is not None
    assert (stuck.moved_ms, stuck.left_s) == (1_010_000, 60.0)
    storage.put("restoring/3/store-0-0", b"." * 50)
    moved = meter.progress()
    assert moved is not None
    assert (moved.done, moved.moved_ms) == (0.625, 1_020_000)
    meter.end()
    assert meter.progress() is None
    assert storage.list("restoring") == []


def test_a_storage_that_does_not_answer_leaves_what_is_known(tmp_path: Path) -> None:
    class Flaky:
        fails = False

        def __init__(self) -> None:
            self.inner = open_storage(str(tmp_path))

        def __getattr__(self, name: str) -> Any:
            if self.fails:
                raise StorageError("it does not answer")
            return getattr(self.inner, name)

    clock, storage = ManualClock(0), Flaky()
    meter = context.RestoreMeter("orders", storage, clock)  # type: ignore[arg-type]
    meter.begin("x", 1, {"store-0-0": 10})
    clock.advance(5_000)
    storage.inner.put("restoring/1/store-0-0", b"." * 50)
    known = meter.progress()
    assert known is not None
    storage.fails = True
    assert meter.progress() == known
    meter.end()
