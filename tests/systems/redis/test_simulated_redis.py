"""The Redis server of the simulation answers as a real one does: the same steps, the same answers.

Steps are what the sink does, through the real client library, and its own scripts word for word.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import redis as client_library
from redis import connection
from redis.exceptions import RedisError

from services.redis import RedisServer
from simulation.redis_server import Network, Server, connector
from turnback.connectors import redis as redis_sink

_WALKS = 60
_STEPS = 25
KEYS = ("a", "b")
CLAIMS = ("", "one", "two", "later")
ATTEMPTS = {"one": 0, "two": 3, "later": 9}
"""Which attempt has claimed the keys; tasks are of attempt 3."""
SCRIPTS = {
    "hashes": redis_sink._SET_HASHES,
    "strings": redis_sink._SET_STRINGS,
    "note": redis_sink._REPLACE_NOTE,
}


class Side:
    """A server, real or simulated, and what is asked of it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.scripts = {name: client.register_script(text) for name, text in SCRIPTS.items()}

    def answer(self, name: str, *arguments: Any) -> Any:
        """What the server answers; of an error, its code."""
        try:
            return getattr(self, name)(*arguments)
        except RedisError as error:
            return type(error).__name__, str(error).split()[0]

    def note(self, old: str, new: str) -> Any:
        return self.scripts["note"](["note"], [_note(old), _note(new)])

    def read_note(self) -> Any:
        return self.client.get("note")

    def forget_note(self) -> Any:
        return self.client.delete("note")

    def hashes(self, claim: str, version: int, ttl: int, rows: list[tuple[str, int]]) -> Any:
        arguments = _head(claim, version, ttl)
        for _, n in rows:
            arguments += [4, "n", n, "text", "x" * n]
        return self.scripts["hashes"](["note", *(f"h:{key}" for key, _ in rows)], arguments)

    def strings(self, claim: str, version: int, ttl: int, rows: list[tuple[str, int]]) -> Any:
        keys = ["note", *(name for key, _ in rows for name in (f"s:{key}", f"v:{key}"))]
        arguments = [*_head(claim, version, ttl), *(x for _, n in rows for x in (min(n, 1), n))]
        return self.scripts["strings"](keys, arguments)

    def pipeline(self, claim: str, version: int, rows: list[tuple[str, int]]) -> Any:
        """Several scripts in one go, as for a large batch."""
        pipeline = self.client.pipeline(transaction=False)
        for key, n in rows:
            self.scripts["hashes"](
                ["note", f"h:{key}"], [*_head(claim, version, 0, n % 2), 2, "n", n], pipeline
            )
        return pipeline.execute()

    def flush_scripts(self) -> Any:
        """As after a restart: the client sends them again."""
        return self.client.script_flush()

    def wrong_type(self, key: str) -> Any:
        return self.client.hset(f"s:{key}", "n", 1)

    def wrong_key(self, claim: str, key: str) -> Any:
        return self.scripts["hashes"](["note", f"s:{key}"], [*_head(claim, 1, 0), 2, "n", 1])

    def found(self) -> dict[str, Any]:
        """All there is, and which of it goes away."""
        there: dict[str, Any] = {"note": self.client.get("note")}
        for key in KEYS:
            there[f"h:{key}"] = self.client.hgetall(f"h:{key}")
            for name in (f"s:{key}", f"v:{key}"):
                there[name] = self.answer("read", name)
            for name in (f"h:{key}", f"s:{key}", f"v:{key}"):
                there[f"{name} goes"] = self.client.pttl(name) > 0
        there["number"] = self.client.exists(*there)
        return there

    def read(self, name: str) -> Any:
        return self.client.get(name)


def _head(claim: str, version: int, ttl: int, task: int = 0) -> list[Any]:
    return [claim, f"{version:019d}", ttl, f"{task:019d}.{0:019d}", 3]


def _note(claim: str) -> str:
    if not claim:
        return ""
    attempt = ATTEMPTS[claim]
    note = {"job": "likes", "claim": claim} | ({"attempt": attempt} if attempt else {})
    return json.dumps(note, separators=(",", ":"))


@pytest.fixture
def sides(redis: RedisServer) -> Iterator[tuple[Side, Side]]:
    """A real server and a simulated one, both empty."""
    connect = connection.Connection._connect
    server = Server(Network())
    simulated = connector(server)

    def either(of: Any) -> Any:
        return simulated(of) if of.host == "simulated" else connect(of)

    with (
        redis.connect() as real,
        mock.patch.object(connection.Connection, "_connect", either),
        client_library.Redis.from_url("redis://simulated/0") as fake,
    ):
        real.flushall()
        real.script_flush()
        yield Side(real), Side(fake)


def _rows(rng: random.Random) -> list[tuple[str, int]]:
    return [(rng.choice(KEYS), rng.randint(0, 3)) for _ in range(rng.randint(1, 3))]


_STEPS_OF: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "note": lambda rng: (rng.choice(CLAIMS), rng.choice(CLAIMS[1:])),
    "read_note": lambda rng: (),
    "forget_note": lambda rng: (),
    "hashes": lambda rng: (
        rng.choice(CLAIMS),
        rng.choice((1, 2, 9, 10, 2**60)),
        rng.choice((0, 60_000)),
        _rows(rng),
    ),
    "strings": lambda rng: (
        rng.choice(CLAIMS),
        rng.choice((1, 2, 9, 10, 2**60)),
        rng.choice((0, 60_000)),
        _rows(rng),
    ),
    "pipeline": lambda rng: (rng.choice(CLAIMS), rng.randint(1, 10), _rows(rng)),
    "flush_scripts": lambda rng: (),
    "wrong_type": lambda rng: (rng.choice(KEYS),),
    "wrong_key": lambda rng: (rng.choice(CLAIMS), rng.choice(KEYS)),
}
_OFTEN = ("note", "hashes", "strings", "pipeline")


def test_the_same_steps_get_the_same_answers(sides: tuple[Side, Side]) -> None:
    real, fake = sides
    for walk in range(_WALKS):
        rng = random.Random(walk)
        story = []
        for side in sides:
            side.client.flushall()
        for _ in range(_STEPS):
            name = rng.choice((*_STEPS_OF, *_OFTEN * 3))
            arguments = _STEPS_OF[name](rng)
            answers = [side.answer(name, *arguments) for side in sides]
            story.append((name, arguments, *answers))
            assert answers[0] == answers[1], f"walk {walk}: {story}"
            assert real.found() == fake.found(), f"walk {walk}: {story}"


def test_a_value_goes_away_in_time(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.hashes("", 1, 60_000, [("a", 1)])
        assert 0 < side.client.pttl("h:a") <= 60_000
        side.hashes("", 2, 0, [("a", 1)])
        assert side.client.pttl("h:a") == -1
        side.strings("", 1, 60_000, [("a", 1)])
        side.strings("", 2, 0, [("a", 1)])
        assert [side.client.pttl(name) for name in ("s:a", "v:a", "gone")] == [-1, -1, -2]


def test_a_script_is_one_step_and_keys_may_be_anything(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.note("", "one")
        key = "\N{SNOWMAN} \0\r\n$3\r\n"
        arguments = [*_head("one", 1, 0), 2, "n", b"\xff\r\n\0"]
        assert side.scripts["hashes"](["note", key], arguments) == 1
        assert side.client.hget(key, "n") == b"\xff\r\n\0"
        assert side.client.hget(key, "turnback_version") == b"%019d.one:%019d.%019d" % (1, 0, 0)
