"""Processes are killed, as by an operating system short of memory."""

from __future__ import annotations

import os
import signal

import pytest
from place import JOB, PATIENCE_S, Place


@pytest.mark.no_jvm
def test_a_killed_driver_is_started_again_and_nothing_is_lost_or_doubled(
    place: Place,
) -> None:
    place.feed()
    job = place.run()
    place.await_complete()
    place.feed(4)
    place.kill(job["driver"]["pid"])
    place.feed(4)
    place.await_complete()
    again = place.ask("status", "counts")["summary"]
    assert again["state"] == "RUNNING"
    assert (again["attempt"], again["restarts"], again["recent_restarts"]) == (2, 1, 1)
    assert again["driver"]["pid"] != job["driver"]["pid"]
    assert "killed by signal 9" in place.turnback("logs", "counts")
    place.ask("cancel", "counts", "--yes")


@pytest.mark.no_jvm
def test_a_killed_supervisor_is_replaced_and_the_new_one_does_its_work(place: Place) -> None:
    place.feed()
    job = place.run()
    place.kill(place.launch().supervisor().pid)
    first = job["driver"]["pid"]
    replaced = place.until(
        lambda: (s := place.ask("status", "counts")["summary"]["supervisor"]) and s["alive"] and s,
        "another supervisor",
    )
    place.await_complete()
    assert place.ask("status", "counts")["summary"]["driver"]["pid"] == first
    place.kill(first)
    place.feed(3)
    place.await_complete()
    assert place.launch().supervisor().pid == replaced["pid"]
    # both at once: nobody is left, and the job is found and goes on when it is started again
    status = place.ask("status", "counts")["summary"]
    os.kill(status["driver"]["pid"], signal.SIGSTOP)  # or it might start another supervisor
    place.kill(status["supervisor"]["pid"], status["driver"]["pid"])
    assert place.ask("status", "counts")["summary"]["state"] == "LOST"
    place.feed(2)
    place.run()
    place.await_complete()
    place.ask("cancel", "counts", "--yes")


@pytest.mark.no_jvm
def test_a_restart_strategy_that_allows_no_more_is_kept_to(place: Place) -> None:
    place.feed()
    job = place.run("-D", "restart-strategy.type=none")
    place.kill(job["driver"]["pid"])
    ended = place.until(
        lambda: (s := place.ask("status", "counts")["summary"])["state"] == "FAILED" and s,
        "given up",
    )
    assert "killed by signal 9" in ended["cause"]


def test_ctrl_c_in_the_foreground_cancels_the_job(place: Place) -> None:
    place.feed()
    process = place.background("run", JOB, place.events, place.out)
    place.await_complete()
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, printed
    assert "the script says hello" in printed
    assert place.ask("status", "counts")["summary"]["state"] == "CANCELED"
