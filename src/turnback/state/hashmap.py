from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from turnback.core.errors import StateError
from turnback.state.store import MARKER, Changes

_SMALLEST_MAP = 256 << 20


class HashMapStore:
    """A store in memory: LMDB in a directory of shared memory, where other processes find it.

    Nothing is ever synced: pages survive a killed process, and shared memory does not survive the
    machine. On a real disk the store must not be trusted after a reboot.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.broken = False
        directory.mkdir(parents=True, exist_ok=True)
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
            raise StateError(f"cannot open the memory store {directory}: {e}") from e
        self._get: Callable[[bytes], bytes | None] = self._reader.get

    def marker(self) -> bytes | None:
        """What the last write left as its marker."""
        return self.get(MARKER)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        try:
            return self._get(key)
        except lmdb.Error as e:
            raise self._failure("read", e) from e

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All entries below a prefix, in key order."""
        yield from _below(self._reader, prefix)

    def write(self, changes: Changes, marker: bytes) -> None:
        """Apply a batch and set the marker, both or neither."""
        self._stop_reading()
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    _apply(txn, changes)
                    txn.put(MARKER, marker)
                break
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.Error as e:
                raise self._failure("write", e) from e
        self._reader = self._env.begin()
        self._get = self._reader.get

    def settle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Unmap the store."""
        self._stop_reading()
        self._env.close()

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def _failure(self, what: str, cause: Exception) -> StateError:
        self.broken = True
        return StateError(
            f"cannot {what} the memory store {self._directory}: {cause}; if shared memory is full, "
            f"use the rocksdb backend or give the machine more of it"
        )


def _apply(txn: Any, changes: Changes) -> None:
    put, delete = txn.put, txn.delete
    for prefix in changes.clears:
        for key in [key for key, _ in _below(txn, prefix)]:
            delete(key)
    for key, value in zip(changes.keys, changes.values, strict=True):
        if value is None:
            delete(key)
        else:
            put(key, value)


def _below(txn: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    with txn.cursor() as cursor:
        if not cursor.set_range(prefix):
            return
        for key, value in cursor.iternext():
            if not key.startswith(prefix):
                return
            yield key, value
