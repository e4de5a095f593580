"""Local stores of keyed state: sorted maps on this machine, in memory or on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import lmdb

from turnback.errors import LocalStoreError


class Changes(NamedTuple):
    """One atomic batch: prefixes below which everything is deleted, then puts in order.

    A value of None deletes its key.
    """

    clears: list[bytes]
    keys: list[bytes]
    values: list[bytes | None]


MARKER = b"\0"
"""Store key of the marker; real keys are longer than 8 bytes."""


class LocalStore(ABC):
    """A sorted map from bytes to bytes on this machine; a cache of state files, nothing more.

    Used by one thread at a time. What was written is there after `close`; after a crash the store
    is as it was after one of the earlier writes, or refuses to open.

    Attributes:
        broken: Whether an operation has failed, so that the store must not be used again.
    """

    name: ClassVar[str]
    remedy: ClassVar[str]
    _get: Callable[[bytes], bytes | None]

    def __init__(self, directory: Path) -> None:
        self.broken = False
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def marker(self) -> bytes | None:
        """What the last write left as its marker; None when nothing was ever written."""
        return self.get(MARKER)

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except Exception as e:
            raise self._failure("read", e) from e

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """What `get` gives for each of the keys."""
        try:
            return self._get_many(keys)
        except Exception as e:
            raise self._failure("read", e) from e

    def _get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return list(map(self._get, keys))  # LMDB's own way takes half as long again

    @abstractmethod
    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """All entries below a prefix, in key order; from a key on, if one is given."""

    @abstractmethod
    def write(self, changes: Changes, marker: bytes) -> None:
        """Apply a batch and set the marker, both or neither."""

    def load(self, changes: Changes, marker: bytes) -> None:
        """Apply a batch, and then set the marker; for a store that is nothing worth without one."""
        self.write(changes, marker)

    def settle(self) -> None:
        """Called once when the store is up to date and about to be read."""
        return

    @abstractmethod
    def close(self) -> None:
        """Give up the store; what was written stays."""

    def _failure(self, what: str, cause: Exception) -> LocalStoreError:
        self.broken = True
        return LocalStoreError(
            f"cannot {what} the {self.name} store {self._directory}: {cause}; {self.remedy}"
        )


_SMALLEST_MAP = 256 << 20


class HashMapStore(LocalStore):
    """A store in memory: LMDB in a directory of shared memory, where other processes find it.

    Nothing is ever synced: pages survive a killed process, and shared memory does not survive the
    machine. On a real disk the store must not be trusted after a reboot.
    """

    name = "memory"
    remedy = (
        "if shared memory is full, use the rocksdb backend or give the machine more shared memory"
    )

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        data = directory / "data.mdb"
        size = data.stat().st_size if data.exists() else 0
        try:
            self._env = lmdb.open(
                str(directory),
                map_size=max(_SMALLEST_MAP, 2 * size),
                sync=False,
                metasync=False,
                lock=False,
                meminit=False,
            )
            self._reader: Any = self._env.begin()
        except (lmdb.Error, OSError) as e:
            raise LocalStoreError(f"cannot open the memory store {directory}: {e}") from e
        self._get = self._reader.get

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        yield from _below(self._reader, prefix, start)

    def write(self, changes: Changes, marker: bytes) -> None:
        self._stop_reading()
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    apply_changes(changes, partial(_below, txn), txn.put, txn.delete)
                    txn.put(MARKER, marker)
                break
            except lmdb.MapFullError:
                self._enlarge()
            except (lmdb.Error, OSError) as e:
                raise self._failure("write", e) from e
        self._reader = self._env.begin()
        self._get = self._reader.get

    def _enlarge(self) -> None:
        try:
            self._env.set_mapsize(2 * self._env.info()["map_size"])
        except (lmdb.Error, OSError) as e:
            raise self._failure("enlarge", e) from e

    def close(self) -> None:
        self._stop_reading()
        self._env.close()

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.abort()
            self._reader = None


def apply_changes(
    changes: Changes,
    scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]],
    put: Callable[[bytes, bytes], object],
    delete: Callable[[bytes], object],
) -> None:
    """Apply changes by the means of a store."""
    for prefix in changes.clears:
        # In RocksDB a range tombstone would be cheaper here and dearer for every read after it.
        for key in [key for key, _ in scan(prefix)]:
            delete(key)
    for key, value in zip(changes.keys, changes.values, strict=True):
        if value is None:
            delete(key)
        else:
            put(key, value)


def _below(txn: Any, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    with txn.cursor() as cursor:
        if not cursor.set_range(start or prefix):
            return
        for key, value in cursor.iternext():
            if not key.startswith(prefix):
                return
            yield key, value


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest key above all keys with this prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes([stripped[-1] + 1])
