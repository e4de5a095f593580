"""Drivers that something else than our supervisor starts again, with the whole first command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from job_support import Jobs, counted
from saved_jobs import build, feed, save
from turnback.driver.job import start_id

APPLICATION = "application_1410901177871_0001"


@pytest.fixture
def saved(jobs: Jobs) -> Path:
    feed(jobs, "aab")
    path = save(jobs, build(jobs))
    feed(jobs, "ba")
    return path


def run(jobs: Jobs, **how: Any) -> str | None:
    """Run the job with a sink of its own; returns what it started from."""
    env = build(jobs, sink="again")
    return env.execute("job", bounded=True, end_event_time=False, **how).restored_from


def test_a_start_from_a_savepoint_counts_once(jobs, saved, monkeypatch):
    monkeypatch.setenv("TURNBACK_START_ID", "deployment-1")
    assert run(jobs, start_from=saved, take_over_sinks=True) == saved.as_uri()
    feed(jobs, "c")
    again = run(jobs, start_from=saved, take_over_sinks=True)
    assert again is not None and again.startswith("chk-")
    assert jobs.out("again") == sorted(set(counted("aabbac")) - set(counted("aab")))


def test_another_start_counts_again(jobs, saved, monkeypatch):
    for number in (1, 2):
        monkeypatch.setenv("TURNBACK_START_ID", f"deployment-{number}")
        assert run(jobs, start_from=saved) == saved.as_uri()


def test_without_an_id_every_start_counts(jobs, saved):
    assert [run(jobs, start_from=saved) for _ in range(2)] == [saved.as_uri()] * 2


def test_a_fresh_start_counts_once(jobs, monkeypatch):
    monkeypatch.setenv("TURNBACK_START_ID", "deployment-1")
    feed(jobs, "aab")
    assert run(jobs, fresh=True) is None
    feed(jobs, "a")
    again = run(jobs, fresh=True)
    assert again is not None and again.startswith("chk-")
    assert jobs.out("again") == counted("aaba")


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"CONTAINER_ID": "container_1410901177871_0001_01_000005"}, APPLICATION),
        ({"CONTAINER_ID": "container_e17_1410901177871_0001_02_000001"}, APPLICATION),
        ({"CONTAINER_ID": "another system's"}, None),
        ({"TURNBACK_START_ID": "x", "CONTAINER_ID": "container_1_1_1_1"}, "x"),
        ({"TURNBACK_START_ID": ""}, None),
    ],
)
def test_the_environment_gives_the_id(monkeypatch, variables, found):
    for name in ("TURNBACK_START_ID", "CONTAINER_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert start_id() == found
