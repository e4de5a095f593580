"""Drivers on other machines that wait for their turn."""

from __future__ import annotations

import os
import signal

import pytest
from place import JOB, PATIENCE_S, Place

from turnback.job.run import RunDirectory

pytestmark = pytest.mark.no_jvm

SOON = ("-D", "run.standby-timeout=3 s")


def start(place: Place, host: str) -> RunDirectory:
    """Start a driver that stands by, on a machine of this name."""
    place.host = host
    try:
        place.run("--standby", *SOON)
    finally:
        place.host = None
    return place.launch()


def status(place: Place) -> dict:
    return place.ask("status", "counts")["summary"]


def signal_all(run: RunDirectory, number: signal.Signals) -> None:
    """Do the same to all of a machine, as far as it is the job's."""
    for process in (run.supervisor(), run.driver()):
        os.kill(process.pid, number)


def runs_on(place: Place, host: str) -> None:
    place.until(
        lambda: (s := status(place))["driver"]["host"] == host and s["state"] == "RUNNING",
        f"the driver on {host} has taken over",
    )


def test_a_machine_that_is_lost_or_frozen_is_replaced_and_comes_back(place: Place) -> None:
    first = start(place, "one")
    assert not first.is_standby()
    second = start(place, "two")
    assert second.is_standby()
    place.feed()
    place.await_complete()
    assert status(place)["driver"]["host"] == "one"
    signal_all(first, signal.SIGSTOP)
    place.feed()
    runs_on(place, "two")
    place.await_complete()
    signal_all(first, signal.SIGCONT)  # it finds itself replaced, and waits for its turn
    place.until(first.is_standby, "the first driver stands by")
    place.feed()
    place.await_complete()
    assert status(place)["driver"]["host"] == "two"
    signal_all(second, signal.SIGKILL)
    place.feed()
    runs_on(place, "one")
    place.await_complete()
    place.ask("cancel", "counts", "--yes")


def test_who_stands_by_ends_with_the_job(place: Place) -> None:
    start(place, "one")
    second = start(place, "two")
    place.feed()
    place.await_complete()
    place.ask("stop", "counts", "--yes")
    end = place.until(second.end, "the second launch ends")
    assert end.code == 0
    assert status(place)["driver"]["host"] == "one"


def test_cancelling_who_stands_by_leaves_the_job_alone(place: Place) -> None:
    start(place, "one")
    place.host = "two"
    process = place.background("run", "--standby", *SOON, JOB, place.events, place.out)
    place.host = None
    place.until(lambda: len(list(place.runs.iterdir())) == 2, "the second launch is there")
    second = place.launch()
    place.until(second.is_standby, "it stands by")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) != 0
    place.feed()
    place.await_complete()
    assert status(place)["driver"]["host"] == "one"
    place.ask("cancel", "counts", "--yes")


@pytest.mark.parametrize("option", [("--fresh",), ("-s", "latest")])
def test_a_start_that_is_no_resumption_is_refused(place: Place, option: tuple[str, ...]) -> None:
    told = place.turnback("run", "--standby", *option, JOB, place.events, place.out, code=2)
    assert "--standby resumes the job from its newest checkpoint" in told
    assert not place.runs.exists()
