from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from turnback.driver import context as heartbeat
from turnback.driver.context import Heartbeat
from turnback.job.directory import JobDirectory
from turnback.job.run import ProcessId, RunDirectory
from turnback.job.status import JobState, Status, StatusUpdate


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.05)


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    directory = JobDirectory.locate(tmp_path / "jobs", "job")
    directory.write_status(JobState.RUNNING, directory.open().job_id, StatusUpdate(attempt=1))
    return directory


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def status(directory: JobDirectory) -> Status:
    found = directory.status()
    assert found is not None
    return found


def test_it_says_what_it_is_given_until_the_end(directory: JobDirectory) -> None:
    epochs = iter(range(100_000))
    with Heartbeat(directory, lambda: StatusUpdate(epoch=next(epochs)), None).beating():
        until(lambda: (status(directory).epoch or 0) > 2)
    last = status(directory).heartbeat
    time.sleep(0.2)
    assert status(directory).heartbeat == last
    assert status(directory).supervisor is None


def test_an_error_on_the_way_does_not_stop_it(
    directory: JobDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def update() -> StatusUpdate:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("not now")
        return StatusUpdate(epoch=7)

    with Heartbeat(directory, update, None).beating():
        until(lambda: status(directory).epoch == 7)
    assert "not now" in caplog.text


def test_it_names_the_supervisor_that_the_launch_has_now(
    directory: JobDirectory, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    here = ProcessId.current()
    run.set_supervisor(ProcessId(here.host, here.machine, 2**22 + 1, "0"))
    with Heartbeat(directory, StatusUpdate, run).beating():
        until(lambda: status(directory).supervisor == run.supervisor())
        run.set_supervisor(here)
        until(lambda: status(directory).supervisor == here)
