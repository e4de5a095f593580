"""What a real supervisor does when starting the driver again fails."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launch_support import Launches, until

from turnback.job.directory import JobDirectory
from turnback.job.run import RunDirectory
from turnback.job.status import JobState, Status, StatusUpdate

MANY = ("50 ms", "20")
pytestmark = pytest.mark.slow


def ended(run: RunDirectory) -> RunDirectory:
    until(lambda: run.end() is not None)
    return run


def status(launches: Launches) -> Status:
    found = JobDirectory.locate(launches.root, "job").status()
    assert found is not None
    return found


def lives(launches: Launches) -> int:
    return len(JobDirectory.locate(launches.root, "lives").storage.list())


def says(run: RunDirectory, text: str) -> bool:
    return run.log.exists() and text in run.log.read_text()


def test_a_start_that_fails_while_the_job_is_restarted_is_one_more_failure(
    launches: Launches,
) -> None:
    run = ended(launches.start("dies once, then no start", *MANY))
    assert status(launches).state is JobState.FINISHED
    assert (lives(launches), run.running(), run.error()) == (3, 3, None)
    assert says(run, "ended with exit status 1: no start this time; restarting it in")


def test_starts_that_fail_again_and_again_use_up_the_restart_strategy(launches: Launches) -> None:
    run = ended(launches.start("dies once, then no start ever", "50 ms", "3"))
    assert lives(launches) == 4
    assert status(launches).state is JobState.FAILED
    assert "no start at all, and the restart strategy does not allow another restart" in (
        status(launches).cause
    )
    assert run.error().kind == "JobFailedError"


def test_an_error_that_no_restart_mends_fails_the_job(launches: Launches) -> None:
    run = ended(launches.start("dies once, then wrong", *MANY))
    assert lives(launches) == 2
    assert status(launches).state is JobState.FAILED
    assert "there is a typo in a setting" in status(launches).cause
    assert "a restart would not help" in run.end().reason
    assert run.error().kind == "ConfigurationError"


def test_an_error_of_another_package_with_a_name_of_ours_is_no_such_error(
    launches: Launches,
) -> None:
    ended(launches.start("dies once, then foreign", *MANY))
    assert lives(launches) == 3
    assert status(launches).state is JobState.FINISHED


def test_a_job_that_another_driver_has_taken_is_left_to_it(launches: Launches) -> None:
    run = ended(launches.start("dies once, then taken", *MANY))
    assert lives(launches) == 2
    assert run.end().reason.startswith("another driver has taken over the job")
    assert status(launches).state is JobState.RUNNING


def test_a_job_that_another_driver_runs_is_not_declared_failed(launches: Launches) -> None:
    run = launches.start("dies once, then wrong", "3 s", "20")
    until(lambda: says(run, "restarting it in"))
    directory = JobDirectory.locate(launches.root, "job")
    directory.write_status(JobState.RUNNING, "another", StatusUpdate(attempt=9))
    ended(run)
    assert (status(launches).state, status(launches).attempt) == (JobState.RUNNING, 9)


def test_a_program_that_ends_well_after_losing_spark_is_started_again(launches: Launches) -> None:
    run = ended(launches.start("loses Spark once and ends well"))
    assert lives(launches) == 2
    assert status(launches).state is JobState.FINISHED
    assert says(run, "Spark's JVM is gone; restarting it in")


def test_files_of_the_launch_that_are_damaged_do_not_stop_it(launches: Launches) -> None:
    run = launches.start("dies once", "3 s")
    until(lambda: says(run, "restarting it in"))
    for name in ("launch.json", "running.json", "job.json", "error.json", "driver.json"):
        (run.path / name).write_bytes(b'{"name": "\xff"')
    ended(run)
    assert status(launches).state is JobState.FINISHED
    assert run.running() == 2


def test_a_status_that_is_damaged_does_not_stop_it(launches: Launches) -> None:
    run = launches.start("waits", *MANY)
    until(lambda: run.running() == 1)
    path = launches.root / "job" / "status.json"
    path.write_text("{damaged")
    launches.kill(run.driver())
    until(lambda: run.running() == 2)
    assert says(run, "cannot read")


def test_a_process_that_cannot_be_started_is_one_more_failure(
    launches: Launches, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    run = launches.prepare("dies once", "1 s", "20", directory=str(place))
    run.start_supervisor()
    until(lambda: says(run, "restarting it in"))
    place.rmdir()
    until(lambda: says(run, "the driver could not be started: "))
    place.mkdir()
    ended(run)
    assert status(launches).state is JobState.FINISHED


def test_a_first_process_that_cannot_be_started_is_told(launches: Launches, tmp_path: Path) -> None:
    run = launches.prepare("finishes", directory=str(tmp_path / "nowhere"))
    run.start_supervisor()
    assert "nowhere" in ended(run).error().message


def test_a_driver_does_not_inherit_that_signals_are_ignored(launches: Launches) -> None:
    run = launches.prepare("tells its signals")
    ignoring = 'trap "" INT HUP TERM; exec "$0" -P -m turnback.launch.supervisor "$1"'
    with run.log.open("ab") as log:
        subprocess.run(
            ["sh", "-c", ignoring, sys.executable, str(run.path)],
            stdout=log,
            stderr=log,
            check=True,
        )
    ended(run)
    [told] = [line for line in run.log.read_text().splitlines() if line.startswith("ignored: ")]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        assert number.name not in told


def test_a_supervisor_starts_in_a_blink() -> None:
    loaded = "import sys, turnback.launch.supervisor; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert not {"pyspark", "pyarrow", "numpy"} & set(done.stdout.split())
