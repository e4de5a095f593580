"""`turnback watch`, as people and timers call it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fake_job import Driver, dead
from manual_clock import ManualClock
from turnback.cli.context import ExitCode
from turnback.job.status import JobState


def now() -> ManualClock:
    return ManualClock(round(time.time() * 1000))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A command that writes down what it is told."""
    path = tmp_path / "page"
    path.write_text(f"#!/bin/sh\ncat >> {tmp_path}/told\necho >> {tmp_path}/told\n")
    path.chmod(0o755)
    return path


def told(tmp_path: Path) -> list[tuple[str, str]]:
    path = tmp_path / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(each["event"], each["job"]) for each in map(json.loads, lines)]


def test_once_lists_what_is_in_trouble_and_tells_it_once(shell, page, tmp_path):
    assert shell("watch", "--once").code == ExitCode.OK
    Driver(shell.root, "well", now()).say(JobState.RUNNING)
    hook = ("-D", f"alerts.command={page}")
    assert shell("watch", "--once", "--json", *hook).json == []
    Driver(shell.root, "gone", now(), process=dead()).say(JobState.RUNNING)
    broken = Driver(shell.root, "broken", now()).say(JobState.FAILED, cause="boom")
    for _ in range(2):
        done = shell("watch", "--once", "--json", *hook)
        assert done.code == ExitCode.PROBLEM
        assert {job["name"]: job["state"] for job in done.json} == {
            "broken": "FAILED",
            "gone": "LOST",
        }
    assert told(tmp_path) == [("failed", "broken"), ("lost", "gone")]
    assert shell("watch", "--once", "well").code == ExitCode.OK
    assert "boom" in shell("watch", "--once", "broken").out
    broken.attempt()
    shell("watch", "--once", *hook)
    assert told(tmp_path)[2:] == [("recovered", "broken")]
    assert shell("watch", "--once", "nobody").code == ExitCode.NOT_FOUND


def test_without_hooks_it_leaves_the_telling_to_others(shell, page, tmp_path):
    Driver(shell.root, "broken", now()).say(JobState.FAILED, cause="boom")
    assert shell("watch", "--once").code == ExitCode.PROBLEM
    shell("watch", "--once", "-D", f"alerts.command={page}")
    assert told(tmp_path) == [("failed", "broken")]


def test_a_test_of_the_hooks(shell, page, tmp_path):
    done = shell("watch", "--test", "-D", f"alerts.command={page}")
    assert (done.code, done.out) == (ExitCode.OK, "all hooks were called\n")
    assert told(tmp_path) == [("test", "test")]
    page.write_text("#!/bin/sh\nexit 7")
    done = shell("watch", "--test", "--json", "-D", f"alerts.command={page}")
    assert done.code == ExitCode.FAILED
    assert done.json["problems"] == [f"alerts.command: '{page}' ended with exit status 7"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--test"], "nothing to test: set alerts.command or alerts.webhook"),
        (["--json"], "--json prints a single document: use it with --once"),
        (["--once", "-D", "alerts.command=/no/such"], "there is no executable program '/no/such'"),
        (["--once", "-D", "alerts.webhook=mail:me"], "must begin with http:// or https://"),
        (["--interval", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_mistakes(shell, words, said):
    done = shell("watch", *words)
    assert done.code == ExitCode.USAGE
    assert said in done.err + done.out


def test_it_goes_on_until_it_is_interrupted(shell, page, tmp_path, monkeypatch):
    job = Driver(shell.root, "orders", now()).attempt()
    steps = iter(
        [
            lambda: job.say(JobState.FAILED, cause="boom"),
            lambda: (job.path / "status.json").write_text("{"),
            lambda: ((job.path / "status.json").unlink(), job.attempt()),
        ]
    )

    wait = time.sleep

    def sleep(seconds: float) -> None:
        if seconds < 1:  # somebody else's
            wait(seconds)
            return
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("turnback.cli.jobs.time.sleep", sleep)
    done = shell("watch", "--interval", "3", "-D", f"alerts.command={page}")
    assert done.code == ExitCode.OK
    first, second = done.lines
    assert first.endswith("failed  job 'orders' is FAILED: boom")
    assert second.endswith("recovered  job 'orders' is RUNNING again")
    assert told(tmp_path) == [("failed", "orders"), ("recovered", "orders")]
    assert "only printed here" in shell("watch").err
