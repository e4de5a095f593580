"""The recipes in examples/ give what they say."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

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


class Profiles(BaseHTTPRequestHandler):
    """A service that is busy every third time."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self) -> None:
        Profiles.asked += 1
        user = self.path.removeprefix("/users/")
        status = 503 if self.asked % 3 == 0 else 404 if user == "eve" else 200
        body = json.dumps({"country": user[0].upper()}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def profiles() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Profiles)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_profiles(jobs: Jobs, profiles: str) -> None:
    users = ["ann", "bob", "eve"] * 10
    jobs.feed("in", *({"user": user, "page": f"/{n}"} for n, user in enumerate(users)))
    env = jobs.env()
    recipe("profiles").build(env, str(jobs.input("in")), profiles, str(jobs.directory / "out"))
    env.execute("profiles", bounded=True)
    country = {"ann": "A", "bob": "B", "eve": None}
    expected = [(user, f"/{n}", country[user]) for n, user in enumerate(users)]
    assert jobs.out() == sorted(expected, key=repr)


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


def test_enrichment(jobs: Jobs) -> None:
    jobs.feed("rates", {"currency": "USD", "rate": 0.5})
    payments = [("ann", "USD", 10.0), ("ann", "GBP", 20.0), ("bob", "GBP", 1.0), ("bob", "YEN", 9)]
    jobs.feed("in", *({"account": a, "currency": c, "amount": n} for a, c, n in payments))

    def run() -> list[Any]:
        env = jobs.env()
        payments, rates = str(jobs.input("in")), str(jobs.input("rates"))
        recipe("enrichment").build(env, payments, rates, str(jobs.directory / "converted"))
        env.execute("enrichment", bounded=True)
        return sorted((account, euro) for account, _, _, euro in jobs.out("converted"))

    assert run() == [("ann", 5.0)]
    jobs.feed("rates", {"currency": "GBP", "rate": 2.0})
    assert run() == [("ann", 5.0), ("ann", 40.0), ("bob", 2.0)]
    jobs.feed("in", {"account": "cat", "currency": "GBP", "amount": 0.5})
    assert run()[-1] == ("cat", 1.0)


def test_deduplication(jobs: Jobs) -> None:
    for id, amount in [("a", 1), ("b", 2), ("a", 1), ("c", 3), ("b", 2), ("b", 2)]:
        jobs.feed("in", {"id": id, "amount": amount})
    env = jobs.env()
    recipe("deduplication").build(env, str(jobs.input("in")), str(jobs.directory / "unique"))
    env.execute("deduplication", bounded=True)
    assert jobs.out("unique") == [("a", 1), ("b", 2), ("c", 3)]
