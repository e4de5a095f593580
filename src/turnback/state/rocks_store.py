"""The local store on disk: RocksDB, with its metadata in shared memory."""

from __future__ import annotations

import operator
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBPath,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from turnback.errors import LocalStoreError
from turnback.state.stores import MARKER, Changes, LocalStore, apply_changes, prefix_end

_BLOCK_CACHE = 64 << 20  # for all stores of a process: cached blocks, indexes and filters
_WRITE_BUFFER = 32 << 20
# Stores are open only for moments, and a compaction that does not end before the close is lost, so
# levels and files are small. Few files are held open, so that opening a large store is quick.
_LEVEL_BASE = 32 << 20
_FILE_SIZE = 8 << 20
_MAX_OPEN_FILES = 256
_MAX_UNSORTED = 8  # level-0 files a store may be left with; above it, closing waits
_LARGE_VALUE = 64 << 10  # larger values have files of their own kind
_NO_LIMIT = 1 << 62
_FEW = 1_000  # entries, for which a table of their own is not worth it
_MANIFEST_STEP = 64 << 10  # memory is taken for the manifest in steps of this size
_LEAST_ROOM = 16 << 20  # in shared memory, for new stores to keep their metadata there
_NUMBER = "NUMBER"
_TABLES = "TABLES"
SHARED_MEMORY = Path("/dev/shm")


class RocksStore(LocalStore):
    """A store on local disk, larger than memory.

    The write-ahead log is off: a batch lies in one memtable, and memtables reach the disk whole
    and in order, so a killed process leaves the store as it was after some earlier batch.

    What RocksDB writes and syncs whenever it opens a store (its manifest, its options) is in shared
    memory, if there is any, and only the tables are in the directory: five waits for the disk less
    in every epoch. Both have one number at random. If one is missing, as after a reboot, or belongs
    to another store, the store is empty.
    """

    name = "RocksDB"
    remedy = "it will be rebuilt from the state files when the task is retried"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        try:
            home = _join_metadata(directory)
            # Options of an existing store count only when given for its column family too.
            options = _options()
            options.set_db_paths([DBPath(str(directory), _NO_LIMIT)])
            self._db = Rdict(str(home), options, column_families={"default": options})
        except Exception as e:
            raise LocalStoreError(f"cannot open the RocksDB store {directory}: {e}") from e
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # the stub errs
        self._db.set_write_options(unlogged)
        self._get = self._db.get

    def _get_many(self, keys: list[bytes]) -> list[bytes | None]:
        get_many: Any = self._db.get  # with a list, which is a fifth cheaper than one by one
        values: list[bytes | None] = get_many(keys)
        return values

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        bounded = ReadOptions()
        end = prefix_end(prefix)
        if end is not None:
            bounded.set_iterate_upper_bound(end)
        try:
            yield from self._db.items(from_key=start or prefix, read_opt=bounded)
        except Exception as e:
            raise self._failure("read", e) from e

    def write(self, changes: Changes, marker: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        apply_changes(changes, self.scan, batch.put, batch.delete)
        batch.put(MARKER, marker)
        try:
            self._db.write(batch)
        except Exception as e:
            raise self._failure("write", e) from e

    def load(self, changes: Changes, marker: bytes) -> None:
        """Put sorted entries into a table of their own: half the work of sorting them in memory."""
        if len(changes.keys) < _FEW or changes.clears or None in changes.values:
            self.write(changes, marker)
            return
        try:
            table = SstFileWriter(_options())
            path = str(self._directory / f"{secrets.token_hex(8)}.load")
            table.open(path)
            for key, value in _sorted(changes):
                table[key] = value
            table.finish()
            moved = IngestExternalFileOptions()
            moved.set_move_files(True)
            self._db.ingest_external_file([path], moved)
        except Exception as e:
            raise self._failure("load", e) from e
        self.write(Changes([], [], []), marker)

    def settle(self) -> None:
        """Flush beside the reads that follow, so that `close` has nothing left to wait for."""
        try:
            self._db.flush(False)
        except Exception as e:
            raise self._failure("flush", e) from e

    def close(self) -> None:
        deadline = time.monotonic() + 10
        try:
            while self._unsorted() > _MAX_UNSORTED and time.monotonic() < deadline:
                time.sleep(0.005)
            self._db.close()
        except Exception as e:
            raise self._failure("close", e) from e

    def _unsorted(self) -> int:
        return int(self._db.property_value("rocksdb.num-files-at-level0") or 0)


def _sorted(changes: Changes) -> Iterable[tuple[bytes, bytes | None]]:
    keys = changes.keys
    entries = zip(changes.keys, changes.values, strict=True)
    is_sorted = all(map(operator.lt, keys, islice(keys, 1, None)))
    return entries if is_sorted else sorted(entries)


def remove_store(directory: Path) -> None:
    """Remove a store that nobody has open, of either kind."""
    shutil.rmtree(directory, ignore_errors=True)
    metadata = metadata_directory(directory)
    if metadata is not None:
        shutil.rmtree(metadata, ignore_errors=True)


def _join_metadata(directory: Path) -> Path:
    """Where the metadata of a RocksDB store is; the store is emptied if they do not belong."""
    metadata = metadata_directory(directory)
    number = _read(directory / _NUMBER)
    if metadata is not None and number is not None and number == _read(metadata / _NUMBER):
        return metadata
    has_room = metadata is not None and shutil.disk_usage(metadata.parent).free >= _LEAST_ROOM
    if metadata is None or not has_room:
        if number is not None:
            remove_store(directory)
            directory.mkdir(parents=True)
        return directory
    remove_store(directory)
    _sweep_metadata(metadata.parent)
    number = secrets.token_hex(16)
    for each in (directory, metadata):
        each.mkdir(parents=True)
    (metadata / _TABLES).write_text(str(directory.absolute()))
    (metadata / _NUMBER).write_text(number)
    (directory / _NUMBER).write_text(number)
    return metadata


def metadata_directory(directory: Path) -> Path | None:
    """The place in shared memory for the metadata of a RocksDB store; None if there is none."""
    parent = SHARED_MEMORY / f"turnback-rocksdb-{os.getuid()}"
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        status = parent.lstat()
    except OSError:
        return None
    # Shared memory is open to all: what another user put there is not ours.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return None
    return parent / blake2b(os.fsencode(directory.absolute()), digest_size=12).hexdigest()


def _sweep_metadata(parent: Path) -> None:
    """Remove the metadata of stores that are gone."""
    for metadata in parent.iterdir():
        tables = _read(metadata / _TABLES)
        if tables is not None and not os.path.exists(tables):  # noqa: PTH110 - nor if it is rubbish
            gone = parent / f"gone-{secrets.token_hex(8)}"
            with suppress(OSError):
                # Renamed first: its store may just be made again, by another process.
                metadata.rename(gone)
                shutil.rmtree(gone)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


@cache
def _block_cache(size: int) -> Cache:
    # One for all stores of the process: blocks are known by file, and survive a reopening.
    return Cache(size)


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache(_BLOCK_CACHE))
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
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_max_bytes_for_level_base(_LEVEL_BASE)
    options.set_target_file_size_base(_FILE_SIZE)
    options.set_enable_blob_files(True)  # large values are not rewritten by compactions
    options.set_min_blob_size(_LARGE_VALUE)
    options.set_enable_blob_gc(True)
    options.set_max_open_files(_MAX_OPEN_FILES)
    options.set_manifest_preallocation_size(_MANIFEST_STEP)
    options.set_keep_log_file_num(1)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options
