"""The real `RedisSink` and client library, on a simulated server that the world cuts off."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar
from unittest import mock

import msgspec
import redis
from redis import backoff, connection, retry
from redis.maint_notifications import MaintNotificationsConfig

from simulation.redis_server import ErrorReplyError, Network, Server, connector
from simulation.world import Process, World
from turnback.connectors import redis as redis_sink
from turnback.connectors.redis import RedisSink
from turnback.sinks.base import Sink

T = TypeVar("T")
KINDS = {"redis": "hash", "redis-string": "string"}
"""The layout of each."""
_OWNER, _VERSION = b"turnback:owner:", b"turnback:version:"
_KEYS_AT_ONCE = 2
_QUIET = MaintNotificationsConfig(enabled=False)


class SimNetwork(Network):
    """Loses connections and answers; a command that was sent may arrive much later."""

    def __init__(self, world: World, directory_of: Callable[[Process], str]) -> None:
        self.world = world
        self._directory_of = directory_of
        self.intruders: list[str] = []
        """Who has written a key that was another job's."""
        self.server = Server(self)
        rng = random.Random(f"redis {world.seed}")
        self.retries = rng.choice((0, 0, 3))
        """How often the client tries again: versions of the library differ."""

    def process(self) -> Any:
        actor = self.world.here()
        return actor.process if actor is not None else None

    def now_ms(self) -> float:
        return self.world.clock.monotonic() * 1000

    def is_late(self) -> bool:
        return self.world.here() is None

    def reads_on(self) -> bool:
        return self.world.rng.random() < 0.5

    def call(self, what: str, action: Callable[[], T], *, writes: bool) -> T:
        def failure(text: str) -> Exception:
            if text.endswith(("refused", "full disk")):
                if writes and self.world.rng.random() < 0.5:
                    return ErrorReplyError("MISCONF Errors writing to the AOF file: no space left")
                return ConnectionResetError(104, text)
            return TimeoutError(text)

        return self.world.call(what, action, failure, writes=writes)

    def see(self, server: Server, process: Any, key: bytes) -> None:
        if process is None or key.startswith(_OWNER):
            return
        prefix = key.removeprefix(_VERSION).split(b":")[0] + b":"
        note = server.data.get(_OWNER + prefix)
        owner = msgspec.json.decode(note)["directory"] if isinstance(note, bytes) else None
        if owner != self._directory_of(process):
            self.intruders.append(f"{process.name} into {key.decode()} of {owner}")


class Redis:
    """The server of the world that is being played."""

    network: ClassVar[SimNetwork]


def sink(kind: str) -> Sink:
    return RedisSink("redis://simulated", key="key", layout=KINDS[kind], prefix=f"{kind}:")


def values(kind: str) -> dict[str, int]:
    """What readers see."""
    found = {}
    for key, value in Redis.network.server.data.items():
        prefix, _, name = key.decode().partition(":")
        if prefix == kind:
            found[name] = int(value[b"n"] if isinstance(value, dict) else value)
    return found


def intruders() -> list[str]:
    return Redis.network.intruders


def disturb(world: World, *, may_forget: bool) -> None:
    """Do something to the server."""
    server = Redis.network.server
    if world.rng.random() < 0.7 or not may_forget:
        world.tell("== Redis is restarted")
        server.restart()
        return
    world.tell("== Redis forgets whose the keys are")
    for key in [key for key in server.data if key.startswith(_OWNER)]:
        del server.data[key]


@lru_cache(maxsize=1)
def _template() -> Any:
    """A client to copy: each builds a table of all commands there are."""
    return redis.Redis()


@contextmanager
def simulated_redis(world: World, directory_of: Callable[[Process], str]) -> Iterator[None]:
    """An empty server, which the real sink reaches by the real client library."""
    Redis.network = network = SimNetwork(world, directory_of)
    draws = SimpleNamespace(random=world.rng.random, uniform=world.rng.uniform)

    again = retry.Retry(backoff.ExponentialWithJitterBackoff(base=0.01, cap=1), network.retries)

    def client(url: str, **more: Any) -> Any:
        # Without the handshake: it takes as long as all else that a task does.
        plain = {"protocol": 2, "driver_info": None, "maint_notifications_config": _QUIET}
        made = copy.copy(_template())
        made.connection_pool = connection.ConnectionPool.from_url(
            url, retry=copy.copy(again), **plain, **more
        )
        return made

    with ExitStack() as patches:
        for owner, name, value in (
            (redis.Redis, "from_url", client),
            (connection.Connection, "_connect", connector(network.server)),
            (retry, "sleep", world.clock.sleep),
            (backoff, "random", draws),
            # A batch is a few rows: more than one script of it, as there are of a large one.
            (redis_sink, "_KEYS_AT_ONCE", _KEYS_AT_ONCE),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        yield
