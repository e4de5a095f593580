"""Spark's JVM is killed: it is the largest process, so it is the first when memory runs out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from place import JOB, Place
from test_other_ways import BY

from turnback.job.run import ProcessId

# Spark's JVM is killed so many seconds after its start, for each file whose name is a number.
JAVA = """#!/bin/sh
case "$*" in
*launcher.Main*) ;;
*deploy.SparkSubmit*)
    for delay in "{deaths}"/*; do
        [ -e "$delay" ] || continue
        rm "$delay"
        (sleep "${{delay##*/}}"; kill -9 $$) &
        [ "${{delay##*/}}" = 0 ] && wait
        break
    done;;
esac
exec "{java}" "$@"
"""


@pytest.fixture
def alone(place: Place) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that were started without `turnback run`."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def children(pid: int, name: str) -> list[int]:
    """Child processes of another program than this one's, with this in their command line."""
    found = []
    program = Path(f"/proc/{pid}/cmdline").read_text()  # also of a child that is just forked
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            command = path.joinpath("cmdline").read_text()
            if parent == str(pid) and name in command and command != program:
                found.append(int(path.name))
        except OSError:
            continue  # it has just ended
    return found


def jvm(driver: int) -> int:
    """The JVM that a driver has started."""
    (found,) = children(driver, "SparkSubmit")
    return found


def summary(place: Place) -> dict:
    return place.ask("status", "counts")["summary"]


def start(place: Place, how: str) -> subprocess.Popen[bytes]:
    with printed(place).open("wb") as output:
        return subprocess.Popen(
            [*BY[how], str(JOB), str(place.events), str(place.out)],
            env=place.environment | {"PYSPARK_PYTHON": sys.executable},
            cwd=place.directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def printed(place: Place) -> Path:
    return place.directory / "printed"


def test_the_job_goes_on_with_a_new_driver_and_nothing_is_lost_or_doubled(place: Place) -> None:
    place.feed()
    job = place.run("-D", "watchdog.no-heartbeat=3 s")
    place.await_complete()
    place.feed(4)
    place.kill(jvm(job["driver"]["pid"]))
    place.feed(4)
    place.await_complete()
    again = summary(place)
    assert (again["state"], again["attempt"]) == ("RUNNING", 2)
    assert again["driver"]["pid"] != job["driver"]["pid"]
    log = place.turnback("logs", "counts")
    assert "its JVM was killed by signal 9" in log
    assert log.count("restarting it in") == 1

    # while a savepoint is written, which the next driver then takes
    driver = again["driver"]["pid"]
    java = jvm(driver)
    os.kill(java, signal.SIGSTOP)
    place.turnback("savepoint", "counts", "--no-wait", "--label", "kept")
    place.until(lambda: place.savepoints.exists() and any(place.savepoints.iterdir()), "begun")
    place.feed(2)
    # one that hangs is seen, though the driver reports
    hung = place.until(lambda: (s := summary(place))["state"] == "STALLED" and s, "it is seen")
    assert hung["problem"].startswith("Spark has not responded for ")
    place.kill(java)
    place.await_complete()
    place.until(lambda: [s["label"] for s in place.ask("savepoints")] == ["kept"], "a savepoint")
    assert summary(place)["attempt"] == 3
    place.ask("cancel", "counts", "--yes")


@pytest.mark.exhaustive
def test_a_jvm_that_dies_again_while_the_job_is_restarted_does_not_end_it(place: Place) -> None:
    deaths, program = place.directory / "deaths", place.directory / "java" / "bin" / "java"
    deaths.mkdir()
    program.parent.mkdir(parents=True)
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    program.write_text(JAVA.format(deaths=deaths, java=java))
    program.chmod(0o755)
    place.environment["JAVA_HOME"] = str(program.parents[1])
    place.feed()
    job = place.run()
    place.await_complete()
    for delay in ("0", "3"):  # before it serves, and at some point after
        (deaths / delay).touch()
    place.feed(2)
    place.kill(job["driver"]["pid"])
    place.await_complete()
    place.feed(2)
    place.await_complete()
    assert not list(deaths.iterdir())
    assert summary(place)["state"] == "RUNNING"
    assert "Spark's JVM ended while it was started" in place.turnback("logs", "counts")
    place.ask("cancel", "counts", "--yes")


@pytest.mark.exhaustive
def test_a_driver_without_a_supervisor_ends_and_says_what_to_do(
    place: Place, alone: list[subprocess.Popen[bytes]]
) -> None:
    place.feed()
    process = start(place, "python")
    alone.append(process)
    place.await_complete()
    place.kill(jvm(process.pid))
    assert process.wait(30) == 1
    told = printed(place).read_text()
    assert "its JVM was killed by signal 9. The usual reason is memory" in told
    assert "Start the program again" in told
    assert "turnback run" in told
    ended = summary(place)
    assert ended["state"] == "LOST"
    assert "its JVM was killed by signal 9" in ended["cause"]


def test_a_driver_that_its_jvm_has_started_ends_with_it(
    place: Place, alone: list[subprocess.Popen[bytes]]
) -> None:
    place.feed()
    process = start(place, "spark-submit")
    alone.append(process)
    place.await_complete()
    (driver,) = children(process.pid, JOB.name)
    python = ProcessId.of(driver)
    process.kill()
    process.wait(30)
    place.until(lambda: not python.is_alive(), "the driver has ended")
    ended = summary(place)
    assert ended["state"] == "LOST"
    assert "no longer responds" in ended["cause"]
