"""What Turnback's coordinator uses of Python's threads, made of actors of a world."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from simulation.world import World
from turnback.checkpoint import coordinator, protocol
from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.driver import attempt, epochs, service
from turnback.sinks import staged_elements, two_phase
from turnback.sinks.elements import ElementsEncoder
from turnback.storage import open as storage_open


class SimThread:
    """A thread of the process whose actor starts it."""

    def __init__(self, world: World, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._world, self._target, self._name = world, target, name
        self._actor: Any = None

    def start(self) -> None:
        here = self._world.here()
        assert here is not None
        name = f"{here.process.name} {self._name.removeprefix('turnback-')}"
        self._actor = self._world.spawn(name, here.process, self._target)

    def join(self, timeout: float | None = None) -> None:
        self._world.wait_until(lambda: bool(self._actor.run.dead), timeout)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.run.dead


class SimEvent:
    """An event, for which actors of a world wait."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or self._world.wait_until(self.is_set, timeout)


class SimLock:
    """A lock that may be held while an actor gives way."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_held:
            seconds = None if timeout < 0 else timeout
            if not self._world.wait_until(lambda: not self._is_held, seconds):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False

    def __enter__(self) -> SimLock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class SimCondition:
    """A condition whose lock needs no lock: actors give way only where they say so."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._notified = 0

    def __enter__(self) -> SimCondition:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        seen = self._notified
        return self._world.wait_until(lambda: self._notified > seen, timeout)

    def notify_all(self) -> None:
        self._notified += 1


class SimExecutor:
    """A serial executor with one actor."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._tasks: deque[Callable[[], None]] = deque()
        self._actor: Any = None
        self._closed = False

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.append(task)
        if self._actor is None:
            here = self._world.here()
            assert here is not None
            name = f"{here.process.name} {self._name}"
            self._actor = self._world.spawn(name, here.process, self._run)

    def close(self, timeout_s: float) -> bool:
        self._closed = True
        if self._actor is None:
            return True
        return self._world.wait_until(lambda: bool(self._actor.run.dead), timeout_s)

    def _run(self) -> None:
        while True:
            self._world.wait_until(lambda: bool(self._tasks) or self._closed)
            if not self._tasks:
                return
            self._tasks.popleft()()


_make_decoder = two_phase._decoder
_DECODERS: dict[type[Any], Any] = {}


def _decoder(sink: Any) -> Any:
    """What reads the transactions of a sink; to make it takes longer than all that it reads."""
    kind = type(sink)
    if kind not in _DECODERS:
        _DECODERS[kind] = _make_decoder(sink)
    return _DECODERS[kind]


@contextmanager
def simulated(world: World, storage: Callable[[str], Any]) -> Iterator[None]:
    """Let everything that would start a thread, wait or be random do so in a world."""

    class SimFuture(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            if not self.done() and not world.wait_until(self.done, timeout):
                raise TimeoutError
            return super().result(0)

    class SimCoordinator(CheckpointCoordinator):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, executor=lambda name: SimExecutor(world, name), **named)

    def wait(futures: Sequence[Future[Any]], timeout: float) -> SimpleNamespace:
        world.wait_until(lambda: all(future.done() for future in futures), timeout)
        return SimpleNamespace(done={future for future in futures if future.done()})

    class SimPool:
        def __init__(self, *args: object, **named: object) -> None:
            pass

        def submit(self, action: Callable[..., Any], *args: Any) -> Future[Any]:
            future: Future[Any] = Future()
            try:
                future.set_result(action(*args))
            except Exception as error:  # noqa: BLE001 - as a pool does
                future.set_exception(error)
            return future

        def shutdown(self, **named: object) -> None:
            pass

    def thread(
        target: Callable[..., None], name: str, daemon: bool, args: Sequence[Any] = ()
    ) -> SimThread:
        return SimThread(world, lambda: target(*args), name, daemon)

    threads = SimpleNamespace(
        Condition=lambda lock: SimCondition(world),
        Event=lambda: SimEvent(world),
        Lock=lambda: SimLock(world),
        RLock=threading.RLock,
        Thread=thread,
    )
    with ExitStack() as patches:
        for owner, name, value in (
            (coordinator, "threading", threads),
            (coordinator, "Future", SimFuture),
            (attempt, "threading", threads),
            (service, "threading", threads),
            (protocol, "Future", SimFuture),
            (protocol, "wait", wait),
            (attempt, "CheckpointCoordinator", SimCoordinator),
            (epochs, "ThreadPoolExecutor", SimPool),
            (storage_open, "MemoryStorage", storage),
            (two_phase, "_decoder", _decoder),
            # To compress a few rows takes longer than all else that a task does.
            (staged_elements, "ElementsEncoder", lambda compression: ElementsEncoder()),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        patches.enter_context(mock.patch("uuid.uuid4", lambda: SimpleNamespace(hex=world.new_id())))
        patches.enter_context(
            mock.patch("secrets.token_hex", lambda size=16: world.new_id()[: 2 * size])
        )
        yield
