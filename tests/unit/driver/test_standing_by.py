"""When a driver that stands by takes over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from turnback.driver.standby import Standby
from turnback.errors import StorageError
from turnback.job.run import ProcessId
from turnback.job.status import JobState, Status

ELSEWHERE = ProcessId("other", "another boot", 7, "1")


class Clock:
    """Time passes with every wait; what is to happen then comes from the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: Callable[[float], None] = lambda now: None

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then(self.now)


class Directory:
    name = "job"

    def __init__(self, status: Status | None) -> None:
        self.found: Status | None = status
        self.fails = False

    def status(self) -> Status | None:
        if self.fails:
            raise StorageError("no answer")
        return self.found


def status(heartbeat: int = 1, state: JobState = JobState.RUNNING) -> Status:
    return Status(
        state=state,
        job="job",
        job_id="id",
        process=ELSEWHERE,
        owner="a",
        heartbeat=heartbeat,
        updated_ms=0,
    )


def wait(directory: Directory, clock: Clock, silence_s: float = 5) -> tuple[bool, int]:
    """Whether it takes over, and how often it said that it waits."""
    waits = []
    standby = Standby(directory, silence_s, clock)  # type: ignore[arg-type]
    return standby.wait(lambda: clock.now > 100, waits.append), len(waits)


def test_a_job_that_nobody_runs_is_started_at_once() -> None:
    clock = Clock()
    assert wait(Directory(None), clock) == (True, 0)
    assert wait(Directory(status(state=JobState.CANCELED)), clock) == (True, 0)
    assert clock.now == 0


def test_a_silent_driver_is_replaced_after_the_timeout() -> None:
    clock = Clock()
    assert wait(Directory(status()), clock) == (True, 1)
    assert clock.now == 5


def test_a_driver_that_reports_is_never_replaced() -> None:
    clock = Clock()
    directory = Directory(status())

    def beat(now: float) -> None:
        directory.found = status(int(now) // 3)

    clock.then = beat
    assert wait(directory, clock) == (False, 1)
    assert clock.now > 100


def test_a_job_that_ends_meanwhile_needs_no_driver() -> None:
    clock = Clock()
    directory = Directory(status())

    def end(now: float) -> None:
        directory.found = status(2, JobState.FINISHED)

    clock.then = end
    assert wait(directory, clock) == (False, 1)


def test_a_storage_that_does_not_answer_says_nothing_of_the_driver() -> None:
    clock = Clock()
    directory = Directory(status())

    def fail(now: float) -> None:
        directory.fails = 2 <= now < 50

    clock.then = fail
    assert wait(directory, clock) == (True, 1)
    assert clock.now >= 55 - 1


def test_a_wait_that_was_held_up_itself_proves_nothing() -> None:
    clock = Clock()
    directory = Directory(status())

    def freeze_once(now: float) -> None:
        if clock.now == 2:
            clock.now = 60
            directory.found = status(30)

    clock.then = freeze_once
    assert wait(directory, clock) == (True, 1)
    assert clock.now >= 65


@pytest.mark.parametrize("alive", [True, False])
def test_a_driver_of_this_machine_is_looked_up(alive: bool) -> None:
    clock = Clock()
    process = ProcessId.current() if alive else ProcessId.of(1)
    dead = ProcessId(process.host, process.machine, process.pid, "never")
    there = Directory(status())
    there.found = Status(**{**_fields(status()), "process": process if alive else dead})
    assert wait(there, clock) == (True, 1 if alive else 0)
    assert clock.now == (5 if alive else 0)


def _fields(given: Status) -> dict:
    return {name: getattr(given, name) for name in given.__struct_fields__}
