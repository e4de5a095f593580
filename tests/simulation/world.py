"""The simulated world: who runs, what fails, and what time it is, all of it decided by one seed.

Drivers, their threads and stray tasks are *actors*, each a greenlet: plain code that gives way
wherever it calls storage or a target, or waits. One of them runs at a time, in one thread. Every
such call may be the last of its process, may fail without effect, take effect without a reply, or
take effect later. Nothing else is random, so a seed gives the same run again.
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from turnback.errors import StorageError
from turnback.storage.open import MemoryStorage

T = TypeVar("T")
_MOST_STEPS = 60_000
_HIGH = 0.25
_FOCUS = (
    "checkpoints/chk-",
    "checkpoints/committed",
    "attempts/",
    "commit ",
    "publish",
    "prepare",
    "roll back",
    "claim",
    "state/",
    "sinks/",
    "files: rename",
    "redis: EVALSHA",
    "delta: commit",
    "iceberg: commit",
    ".inprogress",
    "sql: COMMIT",
    "sql: PREPARE",
    "sql: ROLLBACK",
    "sql: XA",
    "turnback_owners",
    "turnback_progress",
    "turnback_commits",
)
_START_MS = 1_700_000_000_000


class Killed(BaseException):
    """The process is gone; whatever it tries next raises this again."""


class StuckError(AssertionError):
    """Nobody can go on."""


@dataclass
class Process:
    """What is killed and paused as a whole."""

    name: str
    alive: bool = True
    asleep_until: int = 0
    """In steps of the world."""
    threads: int = 0
    """How many have not come to their end."""

    def require_alive(self) -> None:
        if not self.alive:
            raise Killed


@dataclass
class Actor:
    """A thread of a process."""

    name: str
    process: Process
    run: greenlet
    until: Callable[[], bool] | None = None
    """What it waits for."""
    deadline: float | None = None
    """When it stops waiting, by the monotonic clock."""


@dataclass
class Faults:
    """What may go wrong, and how often; where it hurts most, more often."""

    rate: float
    left: int
    kinds: tuple[str, ...]
    focus: tuple[str, ...]

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        kinds = ("kill", "kill after", "refused", "lost reply", "late", "pause", "full disk")
        few = tuple(kind for kind in kinds if rng.random() < 0.7) or kinds
        focus = tuple(word for word in _FOCUS if rng.random() < 0.2)
        return cls(rng.choice((0.002, 0.01, 0.04)), rng.randint(1, 8), few, focus)

    def rate_of(self, what: str) -> float:
        return _HIGH if any(word in what for word in self.focus) else self.rate


class World:
    """Everything there is in one run.

    Attributes:
        rng: Decides.
        story: What has happened, in order.
        healthy: Nothing fails any more.
        hidden: A path that differs from process to process, and is left out of the story.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.story: list[str] = []
        self.faults = Faults.draw(self.rng)
        self.healthy = False
        self.hidden = ""
        self.clock = SimClock(self)
        self.steps = 0
        self._actors: list[Actor] = []
        self._by_run: dict[greenlet, Actor] = {}
        self._late: list[tuple[int, str, Callable[[], object]]] = []
        self._hub = getcurrent()
        self._patience = self.rng.choice((0.5, 0.8, 0.95))
        self._full_until = 0
        self._ids = random.Random(seed + 1)

    # -- for the operator, outside of actors

    def process(self, name: str) -> Process:
        return Process(name)

    def spawn(self, name: str, process: Process, action: Callable[[], object]) -> Actor:
        """Start a thread of a process."""

        def live() -> None:
            try:
                action()
            except Killed:
                pass
            finally:
                process.threads -= 1

        process.threads += 1
        actor = Actor(name, process, greenlet(live, self._hub))
        self._actors.append(actor)
        self._by_run[actor.run] = actor
        return actor

    def step(self) -> bool:
        """Let somebody go on, or time pass; returns whether there was anything to do."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise StuckError(f"{_MOST_STEPS} steps and no end: {self._waiting()}")
        self._bury()
        if self._late:
            self._land_late_calls()
        steps = self.steps
        awake = [actor for actor in self._actors if actor.process.asleep_until <= steps]
        ready = [actor for actor in awake if actor.until is None or self._is_ready(actor)]
        if ready:
            actor = ready[0] if len(ready) == 1 else self.rng.choice(ready)
            actor.until = None
            actor.deadline = None
            actor.run.switch()
            return True
        deadlines = [a.deadline for a in awake if a.deadline is not None]
        if deadlines:
            self.clock.pass_until(min(deadlines))
            return True
        if len(awake) < len(self._actors):
            return True  # somebody sleeps
        if self._actors:
            raise StuckError(f"all wait for each other: {self._waiting()}")
        return bool(self._late)

    def end_faults(self) -> None:
        """From now on everything works, and everybody who sleeps wakes up."""
        self.healthy = True
        self._full_until = 0
        self.tell("-- from here on nothing fails")
        for actor in self._actors:
            actor.process.asleep_until = 0

    def is_running(self, process: Process) -> bool:
        return process.alive and process.threads > 0

    def pause(self, process: Process, steps: int) -> None:
        process.asleep_until = self.steps + steps

    def kill(self, process: Process) -> None:
        process.alive = False

    def forget_late_calls(self) -> None:
        """What is still on its way never arrives."""
        self._late.clear()

    def tell(self, text: str) -> None:
        self.story.append(text.replace(self.hidden, "") if self.hidden else text)

    def new_id(self) -> str:
        """32 characters that nobody else has."""
        return f"{self._ids.getrandbits(128):032x}"

    # -- for actors

    def here(self) -> Actor | None:
        return self._by_run.get(getcurrent())

    def call(
        self,
        what: str,
        action: Callable[[], T],
        failure: Callable[[str], Exception],
        *,
        writes: bool = True,
        late: bool = True,
    ) -> T:
        """Do what another system does, as far as it gets there and its reply comes back.

        Without `late` it never takes effect after it has failed.
        """
        actor = self.here()
        if actor is None:
            return action()
        actor.process.require_alive()
        if self.rng.random() > self._patience:
            self._give_way(actor)
        fault = self._fault(what, writes)
        if fault == "late" and not late:
            fault = "lost reply"
        if fault is None:
            if writes:
                self.tell(f"{actor.name}: {what}")
            return action()
        self.tell(f"{actor.name}: {what} -- {fault}")
        if fault == "pause":
            actor.process.asleep_until = self.steps + self.rng.choice((20, 100, 500))
            self._give_way(actor)
            return action()
        if fault in ("lost reply", "kill after"):
            with suppress(Exception):
                action()
        if fault in ("kill", "kill after"):
            actor.process.alive = False
            raise Killed
        if fault == "late":
            self._late.append((self.steps + self.rng.choice((1, 10, 100)), what, action))
        if fault == "full disk":
            self._full_until = self.steps + self.rng.choice((10, 50))
        raise failure(f"{what}: {fault}")

    def wait_until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for others, or for a time to pass; returns whether the condition holds."""
        actor = self.here()
        if actor is None:
            raise StuckError("the operator waits for somebody")
        actor.process.require_alive()
        actor.until = condition
        actor.deadline = None if seconds is None else self.clock.monotonic() + seconds
        self._hub.switch()
        actor.process.require_alive()
        return condition()

    # -- internals

    def _give_way(self, actor: Actor) -> None:
        self._hub.switch()
        actor.process.require_alive()

    def _fault(self, what: str, writes: bool) -> str | None:
        if self.healthy:
            return None
        if writes and self._full_until > self.steps:
            return "refused"
        if not self.faults.left or self.rng.random() >= self.faults.rate_of(what):
            return None
        self.faults.left -= 1
        fault = self.rng.choice(self.faults.kinds)
        if not writes and fault in ("late", "lost reply", "full disk"):
            return "refused"
        return fault

    def _is_ready(self, actor: Actor) -> bool:
        if actor.until is None or actor.until():
            return True
        return actor.deadline is not None and actor.deadline <= self.clock.monotonic()

    def _bury(self) -> None:
        """End the threads of processes that were killed; nothing they do has any effect."""
        for actor in [a for a in self._actors if a.run.dead or not a.process.alive]:
            if actor.run:
                actor.run.throw(Killed)
            self._actors.remove(actor)
            del self._by_run[actor.run]

    def _land_late_calls(self) -> None:
        due = [entry for entry in self._late if self.healthy or entry[0] <= self.steps]
        for entry in due:
            self._late.remove(entry)
            self.tell(f"late: {entry[1]}")
            with suppress(Exception):
                entry[2]()

    def _waiting(self) -> list[str]:
        return [actor.name for actor in self._actors if not actor.run.dead]


@dataclass
class SimClock:
    """The clock of all processes: it goes on when somebody waits, and the wall clock may jump."""

    world: World
    _monotonic: float = 1000.0
    _wall_ms: float = field(default=_START_MS)

    def now_ms(self) -> int:
        return round(self._wall_ms)

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.world.wait_until(lambda: False, seconds)

    def pass_until(self, monotonic: float) -> None:
        self._wall_ms += (monotonic - self._monotonic) * 1000
        self._monotonic = monotonic

    def jump(self, ms: int) -> None:
        self._wall_ms += ms


class SimStorage:
    """Files in memory, behind a network that fails as the world decides."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.inner = MemoryStorage(name)
        self.uri = self.inner.uri
        self.on_new: Callable[[str, bytes], None] = lambda path, data: None
        """Called with what was put where nothing was."""

    def put(self, path: str, data: bytes) -> None:
        self._call(f"put {path}", lambda: self.inner.put(path, data))

    def put_if_absent(self, path: str, data: bytes) -> None:
        def put() -> None:
            self.inner.put_if_absent(path, data)
            self.on_new(path, data)

        self._call(f"put if absent {path}", put)

    def get(self, path: str) -> bytes:
        return self._call(f"get {path}", lambda: self.inner.get(path), writes=False)

    def list(self, prefix: str = "") -> builtins.list[str]:
        return self._call(f"list {prefix}", lambda: self.inner.list(prefix), writes=False)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self._call(f"list {prefix}", lambda: self.inner.sizes(prefix), writes=False)

    def folders(self, prefix: str = "") -> builtins.list[str]:
        return self._call(f"list {prefix}", lambda: self.inner.folders(prefix), writes=False)

    def delete(self, path: str) -> None:
        self._call(f"delete {path}", lambda: self.inner.delete(path))

    def _call(self, what: str, action: Callable[[], Any], *, writes: bool = True) -> Any:
        return self._world.call(what, action, StorageError, writes=writes)
