"""Local stores of keyed state: sorted maps on this machine, in memory or on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import lmdb
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from turnback.core.errors import StateError


class Changes(NamedTuple):
    """One atomic batch: first the clears, then the puts in order.

    Attributes:
        clears: Prefixes below which everything stored before is deleted.
        keys: Store keys to be put or deleted.
        values: The value of each key; None deletes it.
    """

    clears: list[bytes]
    keys: list[bytes]
    values: list[bytes | None]


MARKER = b"\0"
"""Store key of the marker; real keys are longer than 8 bytes."""


class LocalStore(Protocol):
    """A sorted map from bytes to bytes on this machine; a cache of state files, nothing more.

    Used by one thread at a time. What was written is there after `close`; after a crash the store
    is as it was after one of the earlier writes, or refuses to open.
    """

    def marker(self) -> bytes | None:
        """What the last write left as its marker; None when nothing was ever written."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All entries below a prefix, in key order."""

    def write(self, changes: Changes, marker: bytes) -> None:
        """Apply a batch and set the marker, both or neither."""

    def settle(self) -> None:
        """Called once when the store is up to date and about to be read."""

    def close(self) -> None:
        """Give up the store; what was written stays."""


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
        return self.get(MARKER)

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except lmdb.Error as e:
            raise self._failure("read", e) from e

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from _below(self._reader, prefix)

    def write(self, changes: Changes, marker: bytes) -> None:
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


_MEBI = 1 << 20


@dataclass(frozen=True)
class RocksOptions:
    """Memory and shape of a RocksDB store.

    Attributes:
        block_cache: Bytes of cached blocks, indexes and filters, for all stores of a process.
        write_buffer: Bytes written before a flush to disk.
        level_base: Bytes of the first level. Stores are open only for moments, and a compaction
            that does not end before the close is lost, so levels and files are kept small.
        file_size: Bytes of one table file.
        max_open_files: Table files held open; few, so that opening a large store is quick.
        most_unsorted: Level-0 files a store may be left with; above it, closing waits.
        large_value: Bytes from which a value is kept in a file of its own kind.
    """

    block_cache: int = 64 * _MEBI
    write_buffer: int = 32 * _MEBI
    level_base: int = 32 * _MEBI
    file_size: int = 8 * _MEBI
    max_open_files: int = 256
    most_unsorted: int = 8
    large_value: int = 64 << 10


_caches: dict[int, Cache] = {}


class RocksStore:
    """A store on local disk, larger than memory.

    The write-ahead log is off: a batch lies in one memtable, and memtables reach the disk whole
    and in order, so a killed process leaves the store as it was after some earlier batch.
    """

    def __init__(self, directory: Path, options: RocksOptions | None = None) -> None:
        self._directory = directory
        self._options = options or RocksOptions()
        self.broken = False
        directory.mkdir(parents=True, exist_ok=True)
        try:
            # Options of an existing store count only when given for its column family too.
            wanted = _options(self._options)
            self._db = Rdict(str(directory), wanted, column_families={"default": wanted})
        except Exception as e:
            raise StateError(f"cannot open the RocksDB store {directory}: {e}") from e
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # the stub errs
        self._db.set_write_options(unlogged)
        self._get: Callable[[bytes], bytes | None] = self._db.get

    def marker(self) -> bytes | None:
        return self.get(MARKER)

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except Exception as e:
            raise self._failure("read", e) from e

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        bounded = ReadOptions()
        end = after(prefix)
        if end is not None:
            bounded.set_iterate_upper_bound(end)
        try:
            yield from self._db.items(from_key=prefix, read_opt=bounded)
        except Exception as e:
            raise self._failure("read", e) from e

    def write(self, changes: Changes, marker: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for prefix in changes.clears:
            # Range tombstones would be cheaper here and dearer for every read after it.
            for key, _ in self.scan(prefix):
                delete(key)
        for key, value in zip(changes.keys, changes.values, strict=True):
            if value is None:
                delete(key)
            else:
                put(key, value)
        put(MARKER, marker)
        try:
            self._db.write(batch)
        except Exception as e:
            raise self._failure("write", e) from e

    def settle(self) -> None:
        """Flush beside the reads that follow, so that `close` has nothing left to wait for."""
        try:
            self._db.flush(False)
        except Exception as e:
            raise self._failure("flush", e) from e

    def close(self) -> None:
        deadline = time.monotonic() + 10
        try:
            while self._unsorted() > self._options.most_unsorted and time.monotonic() < deadline:
                time.sleep(0.005)
            self._db.close()
        except Exception as e:
            raise self._failure("close", e) from e

    def _unsorted(self) -> int:
        return int(self._db.property_value("rocksdb.num-files-at-level0") or 0)

    def _failure(self, what: str, cause: Exception) -> StateError:
        self.broken = True
        return StateError(
            f"cannot {what} the RocksDB store {self._directory}: {cause}; it will be rebuilt from "
            f"the state files when the task is tried again"
        )


def after(prefix: bytes) -> bytes | None:
    """The smallest key above all keys with this prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes([stripped[-1] + 1])


def _options(wanted: RocksOptions) -> Options:
    cache = _caches.get(wanted.block_cache)
    if cache is None:
        # One for all stores of the process: blocks are known by file, and survive a reopening.
        cache = _caches[wanted.block_cache] = Cache(wanted.block_cache)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    # In the cache, so that memory stays flat; in parts, because the whole filter of a file is
    # larger than a shard of the cache and would be read anew for nearly every get.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4096)
    table.set_pin_top_level_index_and_filter(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(wanted.write_buffer)
    options.set_max_bytes_for_level_base(wanted.level_base)
    options.set_target_file_size_base(wanted.file_size)
    options.set_enable_blob_files(True)  # large values are not rewritten by compactions
    options.set_min_blob_size(wanted.large_value)
    options.set_enable_blob_gc(True)
    options.set_max_open_files(wanted.max_open_files)
    options.set_keep_log_file_num(1)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options
