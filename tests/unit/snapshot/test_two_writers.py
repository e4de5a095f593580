"""Two drivers write the same savepoint, in many orders of their storage operations.

One was taken for dead, and was not: it is paused somewhere and goes on later, or dies after all.
"""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace
from savepoint_support import METADATA, state_schema

from interleaving import InterleavedStorage, Interleaving, replayable, seeds
from turnback.errors import CheckpointNotFoundError, TurnbackError
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import SavedState, SavepointMetadata, StatePart
from turnback.storage.envelope import digest
from turnback.storage.open import MemoryStorage
from verification import verify_savepoint

pytestmark = pytest.mark.orders
ORDERS = 300
_NAMES = itertools.count()


class Place:
    """The directory, and what must hold there."""

    def __init__(self, order: Interleaving) -> None:
        self.order = order
        self.files = MemoryStorage(f"beside-its-successor-{next(_NAMES)}")
        self.storage = InterleavedStorage(self.files, order)
        self.storage.on_delete = self._deleted
        self.lost: list[str] = []
        self.told: list[SavepointMetadata] = []

    def _deleted(self, path: str) -> None:
        """What a complete savepoint needs is never deleted."""
        try:
            if path in SavepointDirectory(self.files).load().files():
                self.lost.append(path)
        except CheckpointNotFoundError:
            pass

    def check(self) -> None:
        """What a driver has told is there, and whole; so is a savepoint nobody has told of yet."""
        assert self.lost == []
        directory = SavepointDirectory(self.files)
        try:
            metadata = directory.load()
        except CheckpointNotFoundError:
            assert self.told == []
            return
        assert verify_savepoint(directory) == []
        assert all(told == metadata for told in self.told)


class Writer:
    """A driver that serves the request, as `Savepoints.take` does.

    Args:
        place: The directory.
        name: Of its actor.
        fails: Give up before it is complete.
    """

    def __init__(self, place: Place, name: str, *, fails: bool = False) -> None:
        self.place, self.name, self._fails = place, name, fails
        self._directory = SavepointDirectory(place.storage)

    def __call__(self) -> None:
        try:
            metadata = self._directory.begin("request")
            if metadata is None:
                try:
                    written = self._write()
                    # Since there are several writers, the one that was first says what is there.
                    metadata = self._directory.complete(written) or written
                except Exception:
                    self._directory.abandon()
                    raise
        except TurnbackError:
            return  # it tells nothing: whoever has taken over does
        self.place.told.append(metadata)

    def _write(self) -> SavepointMetadata:
        """Two files, and one of a task that was tried twice."""
        prefix = f"state/op/state/{getattr(self._directory, 'writer', '')}-{self.name}"
        self.place.storage.put(f"{prefix}-tried-before.parquet", b"nobody needs it")
        parts = []
        for number in range(2):
            path = f"{prefix}-{number}.parquet"
            self.place.storage.put(path, path.encode())
            parts.append(StatePart(path, len(path.encode()), digest(path.encode()), 1, 0, 0))
        if self._fails:
            raise TurnbackError("a task failed")
        state = SavedState(state_schema(), len(parts), tuple(parts))
        return replace(METADATA, id="request", states=(state,), sources={}, native=())


def test_a_paused_writer_wakes_beside_its_successor() -> None:
    for seed in seeds(ORDERS):
        with replayable(seed) as order:
            place = Place(order)
            mortality = order.random.choice((0.0, 0.0, 0.03))
            for name in ("first", "second"):
                fails = order.random.random() < 0.2
                order.add(name, Writer(place, name, fails=fails), mortality=mortality)
            order.run()
            place.check()
            finish(place)


def finish(place: Place) -> None:
    """A last writer, alone, completes the savepoint; no other files of state are left."""
    place.order.add("third", Writer(place, "third"))
    place.order.run()
    place.check()
    assert place.told
    assert set(place.files.list("state")) == set(SavepointDirectory(place.files).load().files())
