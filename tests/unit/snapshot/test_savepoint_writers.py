"""Several live writers of one directory, in random orders of their storage operations."""

from __future__ import annotations

import random
import threading
import uuid
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace
from savepoint_support import LOG, METADATA, state_schema

from turnback.checkpoint.manifest import SourcePosition
from turnback.errors import (
    AlreadyExistsError,
    CheckpointNotFoundError,
    ConfigurationError,
    StillNeededError,
)
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import SavedState, SavepointMetadata, StatePart, file_name
from turnback.storage.envelope import digest
from turnback.storage.open import MemoryStorage
from verification import verify_savepoint

SEEDS = range(100)


class Turns:
    """Lets one of several threads do one storage operation at a time, in an order by seed."""

    def __init__(self, seed: int, actors: list[Any]) -> None:
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._alive = set(range(len(actors)))
        self._turn: int | None = None
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number, actor), daemon=True)
            for number, actor in enumerate(actors)
        ]

    def play(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def take(self, number: int) -> None:
        with self._changed:
            self._waiting.add(number)
            self._choose()
            assert self._changed.wait_for(lambda: self._turn == number, 30)
            self._turn = None
            self._waiting.discard(number)

    def _choose(self) -> None:
        """Once everybody has come to an operation, pick one; all others stand still meanwhile."""
        if self._turn is None and self._alive and self._waiting == self._alive:
            self._turn = self._random.choice(sorted(self._waiting))
            self._changed.notify_all()

    def _run(self, number: int, actor: Any) -> None:
        try:
            actor(number, self)
        except BaseException as error:  # noqa: BLE001 - raised by `play`
            self.errors.append(error)
        with self._changed:
            self._alive.discard(number)
            self._choose()


class InTurn:
    """A storage whose every operation waits for its turn."""

    def __init__(self, inner: MemoryStorage, number: int, turns: Turns) -> None:
        self._inner, self._number, self._turns = inner, number, turns
        self.uri = inner.uri

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def wait(*args: Any) -> Any:
            self._turns.take(self._number)
            return method(*args)

        return wait


def write(directory: SavepointDirectory, id: str) -> SavepointMetadata:
    """Write a savepoint of two files, and one of a task that was tried twice."""
    storage, writer = directory.storage, directory.writer
    data = uuid.uuid4().bytes
    part = f"state/op/state/{file_name(writer, 'a.parquet')}"
    log = f"sources/{file_name(writer, '3')}"
    storage.put(f"state/op/state/{file_name(writer, 'tried-before.parquet')}", b"x")
    storage.put(part, data)
    storage.put(log, data)
    state = SavedState(state_schema(), 1, (StatePart(part, len(data), digest(data), 1, 0, 0),))
    position = replace(LOG, path=log, length=len(data), digest=digest(data))
    sources = {"src": SourcePosition(None, (position,))}
    return replace(METADATA, id=id, states=(state,), sources=sources)


def there(storage: MemoryStorage) -> SavepointMetadata:
    """The savepoint, which has to be whole, and alone in its directory."""
    directory = SavepointDirectory(storage)
    assert verify_savepoint(directory) == []
    metadata = directory.load()
    assert set(storage.list()) == {"_metadata.json", *metadata.files()}
    return metadata


@pytest.mark.parametrize("seed", SEEDS)
def test_two_writers_of_one_request(seed: int) -> None:
    """A driver that was taken for dead writes on beside its successor."""
    inner = MemoryStorage(f"two-writers-{seed}")
    told: list[SavepointMetadata] = []

    def driver(number: int, turns: Turns) -> None:
        directory = SavepointDirectory(InTurn(inner, number, turns))
        metadata = directory.begin("r1")
        if metadata is None:
            metadata = directory.complete(write(directory, "r1"))
        told.append(metadata)

    Turns(seed, [driver, driver]).play()
    assert told == [there(inner)] * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_one_gives_up_while_the_other_completes(seed: int) -> None:
    inner = MemoryStorage(f"gives-up-{seed}")

    def completes(number: int, turns: Turns) -> None:
        directory = SavepointDirectory(InTurn(inner, number, turns))
        if directory.begin("r1") is None:
            directory.complete(write(directory, "r1"))

    def gives_up(number: int, turns: Turns) -> None:
        directory = SavepointDirectory(InTurn(inner, number, turns))
        if directory.begin("r1") is None:
            write(directory, "r1")
            directory.abandon()

    Turns(seed, [completes, gives_up]).play()
    assert there(inner).id == "r1"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_directory_is_used_again_while_writers_of_the_first_are_still_alive(seed: int) -> None:
    """The savepoint is deleted, another is written there, and an old writer wakes up."""
    inner = MemoryStorage(f"again-{seed}")

    def driver(number: int, turns: Turns) -> None:
        directory = SavepointDirectory(InTurn(inner, number, turns))
        try:
            if directory.begin("r1") is None:
                directory.complete(write(directory, "r1"))
        except (AlreadyExistsError, ConfigurationError, CheckpointNotFoundError):
            pass  # somebody else's is there, or it was deleted in this very moment

    def next_user(number: int, turns: Turns) -> None:
        storage = InTurn(inner, number, turns)
        for _ in range(200):
            try:
                SavepointDirectory(storage).delete()
                break
            except (CheckpointNotFoundError, StillNeededError):
                continue
        directory = SavepointDirectory(storage)
        for _ in range(200):
            try:
                assert directory.begin("r2") is None
                break
            except (CheckpointNotFoundError, ConfigurationError):
                continue
        else:
            return
        with suppress(AlreadyExistsError):  # if an old writer was first; that spoils nothing
            assert directory.complete(write(directory, "r2")).id == "r2"

    Turns(seed, [driver, driver, next_user]).play()
    found = SavepointDirectory(inner)
    try:
        found.load()
    except CheckpointNotFoundError:
        return  # deleted, and what was left kept the next one out
    assert verify_savepoint(found) == []
