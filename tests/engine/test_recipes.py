"""The recipes in examples/ give what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from job_support import Jobs

EXAMPLES = Path(__file__).parents[2] / "examples"
MINUTE = 60_000


def recipe(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_quiet_sensors(jobs: Jobs) -> None:
    readings = [("a", 0), ("b", 1), ("a", 9), ("b", 12), ("a", 20), ("a", 29), ("b", 30)]
    jobs.feed("in", *({"sensor": s, "at": at * MINUTE, "value": 0.5} for s, at in readings))
    env = jobs.env()
    recipe("quiet_sensors").build(env, str(jobs.input("in")), str(jobs.directory / "alerts"))
    env.execute("quiet-sensors", bounded=True)
    alerts = {(sensor, since // MINUTE) for sensor, since in jobs.out("alerts")}
    assert alerts == {("a", 9), ("b", 1), ("b", 12), ("a", 29), ("b", 30)}


def test_sessions(jobs: Jobs) -> None:
    clicks = [("ann", 0), ("bob", 5), ("ann", 20), ("ann", 19), ("ann", 55), ("bob", 120)]
    clicks += [("ann", 60), ("bob", 121)]
    for user, at in clicks:
        jobs.feed("in", {"user": user, "page": "/", "at": at * MINUTE})
    env = jobs.env()
    out, late = str(jobs.directory / "sessions"), str(jobs.directory / "late")
    recipe("sessions").build(env, str(jobs.input("in")), out, late)
    env.execute("sessions", bounded=True)
    sessions = {
        (user, first // MINUTE, last // MINUTE, clicks)
        for user, first, last, clicks in jobs.out("sessions")
    }
    assert sessions == {
        ("ann", 0, 20, 3), ("ann", 55, 55, 1), ("bob", 5, 5, 1), ("bob", 120, 121, 2),
    }  # fmt: skip
    assert [(user, at // MINUTE) for user, _, at in jobs.out("late")] == [("ann", 60)]
