"""A put whose reply was lost is recognised as our own; anything doubtful is an error."""

import builtins
import uuid
from collections.abc import Callable

import pytest

from turnback.errors import AlreadyExistsError, CommitStateUnknownError, StorageError
from turnback.storage.base import put_if_absent_or_same
from turnback.storage.open import MemoryStorage

Fault = Callable[[MemoryStorage, str, bytes], None]


class FaultyStorage:
    """Memory, with a list of what the next calls of put_if_absent do instead."""

    def __init__(self, *faults: Fault) -> None:
        self.inner = MemoryStorage(uuid.uuid4().hex)
        self.uri = self.inner.uri
        self.faults = builtins.list(faults)
        self.calls = 0

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.calls += 1
        if self.faults:
            self.faults.pop(0)(self.inner, path, data)
        self.inner.put_if_absent(path, data)

    def get(self, path: str) -> bytes:
        return self.inner.get(path)

    def put(self, path: str, data: bytes) -> None:
        raise AssertionError("a claim never overwrites")

    def delete(self, path: str) -> None:
        raise AssertionError("a claim never deletes")

    def list(self, prefix: str = "") -> builtins.list[str]:
        return self.inner.list(prefix)


def reply_lost(inner: MemoryStorage, path: str, data: bytes) -> None:
    inner.put_if_absent(path, data)
    raise StorageError("connection reset")


def reply_lost_and_repeated(inner: MemoryStorage, path: str, data: bytes) -> None:
    """The client library repeats the request by itself and meets its own first try."""
    inner.put_if_absent(path, data)
    inner.put_if_absent(path, data)


def never_arrived(inner: MemoryStorage, path: str, data: bytes) -> None:
    raise StorageError("connection refused")


def another_was_faster(inner: MemoryStorage, path: str, data: bytes) -> None:
    inner.put_if_absent(path, b"theirs")
    raise StorageError("connection reset")


def visible_but_not_synced(inner: MemoryStorage, path: str, data: bytes) -> None:
    if path not in inner.list():
        inner.put_if_absent(path, data)
    raise StorageError("fsync: EIO")


@pytest.mark.parametrize("fault", [reply_lost, reply_lost_and_repeated, never_arrived])
def test_our_own_bytes_are_recognised(fault: Fault) -> None:
    storage = FaultyStorage(fault)
    put_if_absent_or_same(storage, "slot", b"ours")
    assert storage.get("slot") == b"ours"


def test_a_lost_reply_does_not_hide_a_lost_race() -> None:
    storage = FaultyStorage(another_was_faster)
    with pytest.raises(AlreadyExistsError, match="slot"):
        put_if_absent_or_same(storage, "slot", b"ours")
    assert storage.get("slot") == b"theirs"


def test_bytes_that_can_be_read_but_not_synced_are_not_claimed() -> None:
    storage = FaultyStorage(visible_but_not_synced, visible_but_not_synced)
    with pytest.raises(CommitStateUnknownError, match=r"slot may or may not .*EIO"):
        put_if_absent_or_same(storage, "slot", b"ours")


def test_a_storage_that_stays_away_is_an_error_after_two_tries() -> None:
    storage = FaultyStorage(*[never_arrived] * 9)
    with pytest.raises(CommitStateUnknownError, match="refused"):
        put_if_absent_or_same(storage, "slot", b"ours")
    assert storage.calls == 2
    assert storage.list() == []


def test_an_unreadable_winner_is_not_taken_for_ours() -> None:
    class Unreadable(FaultyStorage):
        def get(self, path: str) -> bytes:
            raise StorageError("permission denied")

    storage = Unreadable()
    storage.inner.put("slot", b"ours")
    with pytest.raises(CommitStateUnknownError, match="denied"):
        put_if_absent_or_same(storage, "slot", b"ours")


def test_what_its_writer_has_deleted_since_was_not_ours_either() -> None:
    storage = FaultyStorage()
    storage.inner.put("slot", b"theirs")
    storage.get = lambda path: MemoryStorage(uuid.uuid4().hex).get(path)
    with pytest.raises(AlreadyExistsError, match="slot"):
        put_if_absent_or_same(storage, "slot", b"ours")
