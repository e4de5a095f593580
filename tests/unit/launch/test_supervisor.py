"""A real supervisor over a driver that only pretends to run a job."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from launch_support import Launches, until

from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestSpec, RequestState
from turnback.job.requests import Requests
from turnback.job.run import LAUNCH, LAUNCH_VARIABLE, ProcessId, RunDirectory
from turnback.job.status import JobState
from turnback.launch.program import driver_command

pytestmark = pytest.mark.slow


def ended(run: RunDirectory) -> RunDirectory:
    until(lambda: run.end() is not None)
    return run


def state(launches: Launches) -> JobState:
    status = JobDirectory.locate(launches.root, "job").status()
    assert status is not None
    return status.state


def test_a_driver_that_ends_by_itself_is_not_started_again(launches: Launches) -> None:
    run = ended(launches.start("finishes"))
    assert (run.end().code, run.running(), run.error()) == (0, 1, None)
    assert state(launches) is JobState.FINISHED


def test_a_driver_that_is_killed_is_started_again(launches: Launches) -> None:
    run = ended(launches.start("dies once"))
    assert run.running() == 2
    assert state(launches) is JobState.FINISHED
    log = run.log.read_text()
    assert "life 1\nturnback: the driver was killed by signal 9; restarting it in" in log
    assert "life 2\n" in log


def test_it_gives_up_as_the_restart_strategy_says_and_says_so(launches: Launches) -> None:
    run = ended(launches.start("dies"))
    assert run.running() == 2
    assert run.error().kind == "JobFailedError"
    status = JobDirectory.locate(launches.root, "job").status()
    assert status.state is JobState.FAILED
    assert "killed by signal 9" in status.cause
    assert (status.attempt, status.checkpoint) == (2, 7)


def test_without_a_restart_strategy_it_does_not_start_again(launches: Launches) -> None:
    run = ended(launches.start("no restart"))
    assert run.running() == 1
    assert state(launches) is JobState.FAILED


def test_an_error_of_the_script_is_told_and_not_tried_again(launches: Launches) -> None:
    run = ended(launches.start("broken"))
    assert (run.error().kind, run.error().message) == ("RuntimeError", "this script is broken")
    assert run.job() is None
    assert "Traceback" in run.log.read_text()
    assert JobDirectory.locate(launches.root, "lives").storage.list() == ["1"]


def test_a_script_that_runs_no_job_is_over(launches: Launches) -> None:
    run = ended(launches.start("no job"))
    assert (run.end().code, run.error()) == (0, None)


def test_a_driver_that_is_killed_before_it_has_a_job_is_told(launches: Launches) -> None:
    run = ended(launches.start("dies before its job"))
    assert "signal 9" in run.error().message


def test_a_cancel_that_comes_while_no_driver_lives_is_honoured(launches: Launches) -> None:
    run = launches.start("dies once", "60 s")
    until(lambda: "restarting it in 1 min" in run.log.read_text() if run.log.exists() else False)
    requests = Requests(JobDirectory.locate(launches.root, "job").storage)
    asked = requests.submit(RequestSpec(RequestKind.CANCEL))
    ended(run)
    assert requests.result(asked.id).state is RequestState.COMPLETED
    assert state(launches) is JobState.CANCELED
    assert run.running() == 1


def test_what_a_driver_could_not_answer_any_more_is_answered_by_its_supervisor(
    launches: Launches,
) -> None:
    ended(launches.start("ends without an answer"))
    requests = Requests(JobDirectory.locate(launches.root, "job").storage)
    (asked,) = requests.ids()
    assert requests.result(asked).state is RequestState.COMPLETED
    assert state(launches) is JobState.FINISHED


def test_a_second_supervisor_leaves_the_first_alone(launches: Launches) -> None:
    run = launches.start("waits")
    until(lambda: run.running() == 1)
    first = run.supervisor()
    assert run.start_supervisor().wait(30) == 0
    assert run.supervisor() == first
    assert run.driver().is_alive()


def test_another_supervisor_takes_over_from_one_that_was_killed(launches: Launches) -> None:
    run = launches.start("waits")
    until(lambda: run.running() == 1)
    first, driver = run.supervisor(), run.driver()
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: not first.is_alive())
    assert driver.is_alive()
    run.start_supervisor()
    until(lambda: run.supervisor() != first)
    assert run.driver() == driver
    os.kill(driver.pid, signal.SIGKILL)
    until(lambda: run.running() == 2)
    assert run.driver() != driver


def test_a_driver_that_is_just_starting_replaces_its_supervisor(launches: Launches) -> None:
    """Neither the job nor Spark is up, and the status is that of the driver before."""
    run = launches.start("dies once, then starts slowly", "50 ms", "5")
    lives = JobDirectory.locate(launches.root, "lives").storage
    until(lambda: "2" in lives.list())
    first = run.supervisor()
    driver = run.driver()
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: run.supervisor() != first)
    assert run.driver() == driver
    os.kill(driver.pid, signal.SIGKILL)
    ended(run)
    assert lives.list() == ["1", "2", "3"]
    assert state(launches) is JobState.FINISHED


def test_a_driver_that_its_supervisor_could_not_record_any_more_is_found_by_the_next(
    launches: Launches,
) -> None:
    run = launches.prepare("waits", "50 ms", "5")
    here = ProcessId.current()
    killed = ProcessId(here.host, here.machine, 2**22 + 1, "0")
    run.set_supervisor(killed)
    run.set_driver(killed)
    environment = os.environ | {LAUNCH_VARIABLE: str(run.path / LAUNCH)}
    with subprocess.Popen(driver_command(run.launch(), run), env=environment) as process:
        until(lambda: run.supervisor().is_alive() and run.running() == 1)
        assert run.driver().pid == process.pid
        process.kill()
    until(lambda: run.running() == 2)


def test_a_launch_that_is_over_is_not_begun_again(launches: Launches) -> None:
    run = ended(launches.start("finishes"))
    assert run.start_supervisor().wait(30) == 0
    assert JobDirectory.locate(launches.root, "lives").storage.list() == ["1"]


def test_an_older_drivers_last_words_are_not_taken_for_this_ones(launches: Launches) -> None:
    ended(launches.start("finishes"))
    run = ended(launches.start("dies once before it says anything"))
    assert "restarting it in" in run.log.read_text()
    assert run.running() == 3
    assert state(launches) is JobState.FINISHED
