"""Runs several actors in one process, in an order of their steps that a seed decides.

Each actor is a thread, and only one of them runs at a time. It hands over to another at *points*:
every operation of an `InterleavedStorage` is one. The same seed gives the same order again, as
long as the actors themselves are deterministic. A test tries many seeds:

    def test_two_writers() -> None:
        for seed in seeds(300):
            with replayable(seed) as order:
                storage = InterleavedStorage(MemoryStorage("name"), order)
                order.add("first", lambda: write(storage))
                order.add("second", lambda: write(storage))
                order.run()
                check(storage.inner)

If a check fails, the error says which seed it was, how to run that one again, and what happened.
"""

from __future__ import annotations

import builtins
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from turnback.storage.base import Storage

T = TypeVar("T")

SEED = "TURNBACK_TEST_SEED"
"""Environment variable: try this seed and no other."""

_STUCK_S = 60.0
_SHOWN = 80


class Killed(BaseException):
    """The process of an actor is gone: each of its steps from now on raises this again."""


class _Actor:
    def __init__(self, name: str, group: str, action: Callable[[], None]) -> None:
        self.name, self.group, self.action = name, group, action
        self.turn = threading.Semaphore(0)
        self.until: Callable[[], bool] | None = None
        self.ended = False
        self.error: BaseException | None = None

    def can_run(self) -> bool:
        return not self.ended and (self.until is None or self.until())


class Interleaving:
    """One order of the steps of some actors.

    How often actors take turns differs from seed to seed: some orders change at almost every
    point, others rarely; and now and then everything of one group is paused for long.

    Args:
        seed: Decides everything.

    Attributes:
        random: For whatever else a test wants to leave to the seed.
        trace: All steps so far.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.trace: list[str] = []
        self._patience = self.random.choice((0.0, 0.5, 0.8, 0.95))
        self._naps = self.random.choice((0.0, 0.01, 0.05))
        self._actors: list[_Actor] = []
        self._here = threading.local()
        self._done = threading.Semaphore(0)
        self._asleep: dict[str, int] = {}
        self._mortality: dict[str, float] = {}
        self._killed: set[str] = set()
        self._steps = 0

    # -- for tests

    def add(
        self,
        name: str,
        action: Callable[[], None],
        *,
        group: str | None = None,
        mortality: float = 0.0,
    ) -> None:
        """Add an actor; also while others run.

        Args:
            name: For the trace.
            action: What it does, with points in it.
            group: Actors of one group are paused and killed together, as threads of a process.
            mortality: How likely the group is killed at each of its points.
        """
        actor = _Actor(name, group or name, action)
        if mortality:
            self._mortality[actor.group] = mortality
        self._actors.append(actor)
        threading.Thread(target=self._live, args=(actor,), name=name, daemon=True).start()

    def run(self) -> None:
        """Let all actors run to their end.

        Raises:
            BaseException: What the first actor that failed has raised. To be killed is no failure.
        """
        self._pass_on(None)
        if not self._done.acquire(timeout=_STUCK_S):
            raise AssertionError(f"stuck: {[a.name for a in self._actors if not a.ended]}")
        for actor in self._actors:
            if actor.error is not None:
                raise actor.error

    def was_killed(self, group: str) -> bool:
        """Whether a group was killed."""
        return group in self._killed

    # -- for actors

    def point(self, what: str) -> None:
        """Another actor may run here. Outside of actors, nothing happens."""
        actor = getattr(self._here, "actor", None)
        if actor is None:
            return
        if actor.group not in self._killed:
            self._give_way(actor)
            if self.random.random() < self._mortality.get(actor.group, 0.0):
                self._killed.add(actor.group)
                self.trace.append(f"{actor.group} is killed")
        if actor.group in self._killed:
            raise Killed
        self.trace.append(f"{actor.name}: {what}")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Go on when a condition holds, which other actors bring about."""
        actor = self._here.actor
        if actor.group in self._killed:
            raise Killed
        actor.until = lambda: actor.group in self._killed or condition()
        self._give_way(actor)
        actor.until = None
        if actor.group in self._killed:
            raise Killed

    # -- internals

    def _live(self, actor: _Actor) -> None:
        self._here.actor = actor
        actor.turn.acquire()
        try:
            actor.action()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 (raised by `run`)
            actor.error = error
        actor.ended = True
        self._pass_on(None)

    def _give_way(self, actor: _Actor) -> None:
        if self._pass_on(actor) is not actor:
            actor.turn.acquire()

    def _pass_on(self, current: _Actor | None) -> _Actor | None:
        """Choose who is next and let it run, unless it is the current one."""
        chosen = self._choose(current)
        if chosen is None:
            self._done.release()
        elif chosen is not current:
            chosen.turn.release()
        return chosen

    def _choose(self, current: _Actor | None) -> _Actor | None:
        self._steps += 1
        ready = [actor for actor in self._actors if actor.can_run()]
        if not ready:
            if any(not actor.ended for actor in self._actors):
                names = [a.name for a in self._actors if not a.ended]
                for actor in self._actors:
                    actor.error = actor.error or AssertionError(f"all wait for each other: {names}")
            return None
        if self.random.random() < self._naps:
            group = self.random.choice(ready).group
            self._asleep[group] = self._steps + self.random.choice((20, 100, 400))
        awake = [a for a in ready if self._asleep.get(a.group, 0) <= self._steps] or ready
        if current in awake and self.random.random() < self._patience:
            return current
        return self.random.choice(awake)


class InterleavedStorage:
    """Storage of which every operation is a point; what it does is atomic.

    Args:
        inner: Where the files are.
        order: Decides who comes next.

    Attributes:
        on_delete: Called after each delete, with the path.
    """

    def __init__(self, inner: Storage, order: Interleaving) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.on_delete: Callable[[str], None] = lambda path: None
        self._order = order

    def put(self, path: str, data: bytes) -> None:
        self._order.point(f"put {path}")
        self.inner.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._order.point(f"put_if_absent {path}")
        self.inner.put_if_absent(path, data)

    def get(self, path: str) -> bytes:
        self._order.point(f"get {path}")
        return self.inner.get(path)

    def list(self, prefix: str = "") -> builtins.list[str]:
        self._order.point(f"list {prefix}")
        return self.inner.list(prefix)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        self._order.point(f"sizes {prefix}")
        return self.inner.sizes(prefix)

    def folders(self, prefix: str = "") -> builtins.list[str]:
        self._order.point(f"folders {prefix}")
        return self.inner.folders(prefix)

    def delete(self, path: str) -> None:
        self._order.point(f"delete {path}")
        self.inner.delete(path)
        self.on_delete(path)


class InterleavedExecutor:
    """A serial executor whose thread is an actor of its own.

    Args:
        name: Of the actor.
        order: Decides who comes next.
        group: The driver it belongs to.
    """

    def __init__(self, name: str, order: Interleaving, group: str) -> None:
        self._order = order
        self._tasks: list[Callable[[], None]] = []
        self._closed = self._busy = False
        order.add(f"{group}/{name}", self._run, group=group)

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.append(task)

    def close(self, timeout_s: float) -> bool:
        self._closed = True
        self._order.wait_until(lambda: not self._tasks and not self._busy)
        return True

    def _run(self) -> None:
        while True:
            self._order.wait_until(lambda: bool(self._tasks) or self._closed)
            if not self._tasks:
                return
            self._busy = True
            self._tasks.pop(0)()
            self._busy = False


def seeds(count: int) -> Iterator[int]:
    """So many seeds, a fifth of them in `make check`, or the one that the environment asks for.

    Tests that use it are marked with `orders`, so that `make test` tries all of them.
    """
    wanted, quick = os.environ.get(SEED), os.environ.get("TURNBACK_EXAMPLES") == "few"
    yield from [int(wanted)] if wanted is not None else range(count // 5 if quick else count)


@contextmanager
def replayable(seed: int) -> Iterator[Interleaving]:
    """An order; if something fails within, the error says how to see that again."""
    order = Interleaving(seed)
    try:
        yield order
    except BaseException as error:
        error.add_note(f"seed {seed}; to run only this one, set {SEED}={seed}. What happened:")
        error.add_note("\n".join(order.trace[-_SHOWN:]))
        raise
