"""Jobs that write to Redis, killed at every step: they end with the right values.

What a reader sees before may go back in time with the job, as a replay writes the same keys again;
versions never do, and a hash is never half of one value and half of another.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ledger import Ledger
from ledger_targets import RedisTarget

from services.redis import PASSWORD, RedisServer

POINTS = [
    "before-redis-write:3",
    "after-redis-write:6",  # of an epoch, some keys are written and others are not
    "before-state-file:2",
    "before-manifest:2",  # all is written, nothing is promised
    "after-manifest:2",
    "after-sink-commit:2",
    "after-fence:1",
    "before-first-epoch:1",
    "after-redis-write:1",  # by the first task of a driver, over what the last one has written
]
KEYS, LENGTH = 30, 40


class VersionReader:
    """Reads all hashes again and again, and notes what no reader should ever see."""

    def __init__(self, target: RedisTarget) -> None:
        self._target = target
        self._newest: dict[str, str] = {}
        self.problems: list[str] = []
        self.reads = 0

    def look(self) -> None:
        for key, found in self._target.read().items():
            version, newest = found["turnback_version"], self._newest.get(key, "")
            if version < newest:
                self.problems.append(f"{key} went back from {newest} to {version}")
            self._newest[key] = max(version, newest)
            if "seq" in found and int(found["previous"]) != int(found["seq"]) - 1:
                self.problems.append(f"{key} is half of one value and half of another: {found}")
        self.reads += 1

    @contextmanager
    def looking(self) -> Iterator[None]:
        done = threading.Event()

        def run() -> None:
            while not done.wait(0.02):
                try:
                    self.look()
                except Exception as error:  # noqa: BLE001 - a reader that fails is a problem too
                    self.problems.append(repr(error))

        thread = threading.Thread(target=run, name="reader")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@pytest.fixture
def target(redis: RedisServer) -> RedisTarget:
    return RedisTarget(redis, PASSWORD)


@pytest.fixture
def ledger(target: RedisTarget, tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path, target, keys=KEYS, length=LENGTH, files=20)
    yield made
    made.kill()


def assert_right(ledger: Ledger) -> None:
    """Every key has its last transfer, every account its balance."""
    last = {(f"k{key}", LENGTH - 1, LENGTH - 2) for key in range(KEYS)}
    assert set(ledger.target.sequence()) == last
    assert ledger.target.balances() == ledger.balances


@pytest.mark.crash
def test_killed_at_every_step_it_ends_with_the_right_values(
    ledger: Ledger, target: RedisTarget
) -> None:
    reader = VersionReader(target)
    with reader.looking():
        ledger.run_with_kills(POINTS)
    assert reader.reads > len(POINTS)
    assert reader.problems == []
    assert_right(ledger)


@pytest.mark.crash
def test_a_driver_that_wakes_up_after_it_was_replaced_changes_no_value(
    ledger: Ledger, target: RedisTarget
) -> None:
    zombie = ledger.start(TURNBACK_STOP_AT="before-redis-write:9")
    successor = ledger.start()
    zombie.go()
    zombie.until_running(zombie.is_stopped, "stop")
    # The successor is to believe that it runs on another machine, and cannot see the first one.
    status = json.loads((ledger.job / "status.json").read_text())
    status["process"]["host"] = "elsewhere"
    (ledger.job / "status.json").write_text(json.dumps(status))
    successor.go()
    assert successor.wait() == 0, successor.errors
    written = target.read()
    reader = VersionReader(target)
    with reader.looking():
        zombie.resume()
        assert zombie.wait() == 1, zombie.errors
    assert target.read() == written
    assert reader.problems == []
    assert_right(ledger)


def test_the_reader_notices_a_version_that_goes_back(
    redis: RedisServer, target: RedisTarget
) -> None:
    """The negative control: what the tests above look for can be seen."""
    target.create()
    reader = VersionReader(target)
    with redis.connect() as client:
        for version in ("2", "3", "1"):
            fields = {"seq": 1, "previous": 0, "turnback_version": version}
            client.hset("sequence:k0", mapping=fields)
            reader.look()
    assert reader.problems == ["sequence:k0 went back from 3 to 1"]
