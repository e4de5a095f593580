"""Joining small files that a table has already, by a commit that changes no row.

A compaction is a commit like that of any other writer: it knows nothing of epochs, leaves alone
what the table remembers of sinks, and starts again if somebody has changed the same files. Old
files stay for readers of older versions, until the user removes them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from turnback.connectors.tables.files import FileNames, TableFile, TableTransaction, join_stats
from turnback.errors import SinkError, TurnbackError
from turnback.sinks.ownership import SinkIdentity
from turnback.storage.base import Storage
from turnback.storage.envelope import encode_document, read_document

_LOG = logging.getLogger(__name__)
TARGET_BYTES = 128 * 1024 * 1024
"""How large joined files become; a file of half that size stays as it is."""
ROW_GROUP_BYTES = 64 * 1024 * 1024
_BATCH_ROWS = 65_536
_NOTE = "table-join"
_NOTE_FORMAT = 1

FindJoin = Callable[[int], str | None]
"""Returns the join that a commit with a number or the next higher one has published, '' if there
was none; None if that is not known any more."""
ReadFile = Callable[[TableFile, TableTransaction], bytes]
_Source = tuple[TableFile, TableTransaction]
T = TypeVar("T")


class _JoinNote(msgspec.Struct, frozen=True):
    version: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class MergedFiles:
    """What is to be published in place of the files of the transactions `due`.

    Attributes:
        name: Of the join, for `FindJoin`.
        files: What the table is to refer to: joined files, and those of `kept`.
        kept: Transactions whose files stay as they are.
        replaced: Transactions whose rows are in joined files.
    """

    note: str
    name: str
    files: tuple[TableFile, ...]
    kept: tuple[TableTransaction, ...]
    replaced: tuple[TableTransaction, ...]
    due: tuple[TableTransaction, ...]


class FileMerger:
    """Joins files of one sink, on the driver; raises `StorageError` and errors of Arrow.

    It holds one file of a task and one joined file in memory.
    """

    def __init__(
        self, storage: Storage, identity: SinkIdentity, attempt: int, read: ReadFile
    ) -> None:
        self._storage = storage
        self._identity = identity
        self._attempt = attempt
        self._read = read
        self._names = FileNames(identity)

    def join(self, due: Sequence[TableTransaction]) -> MergedFiles | None:
        """Write joined files, and a note of them first; None if all files stay as they are."""
        kept, replaced = divide(due)
        if not replaced:
            return None
        last = due[-1]
        note = self._names.new_join_note(self._attempt, last.epoch)
        bins = [
            (self._names.new_joined(bin[0][0].path, self._attempt, last.epoch, number), bin)
            for number, bin in enumerate(join_plan(replaced))
        ]
        body = _JoinNote(last.version, tuple(path for path, _ in bins))
        self._storage.put(note, encode_document(_NOTE, _NOTE_FORMAT, body))
        made = []
        for path, bin in bins:
            file = self._join_bin(path, bin)
            if file is None:
                _LOG.info("skipping files of sink %r with different columns", self._identity.uid)
                self._remove(note, body, with_files=True)
                return None
            made.append(file)
        files = (*made, *(file for one in kept for file in one.files))
        return MergedFiles(note, join_name(note), files, kept, replaced, tuple(due))

    def settle(self, published: int, find_join: FindJoin, but: str | None = None) -> None:
        """Remove the notes of joins that nobody can publish any more, with files that were not.

        Args:
            published: The number that the table had before a commit which keeps all joins before
                it from being published.
            find_join: Says which join was published up to that number.
            but: The note of the join that was published with that commit.
        """
        for note in self.notes():
            join = read_document(self._storage, _NOTE, _NOTE_FORMAT, note, _JoinNote)
            if join is None:
                continue
            failed = join.version > published or find_join(join.version) not in (
                None,
                join_name(note),
            )
            self._remove(note, join, with_files=failed and note != but)

    def notes(self) -> list[str]:
        """The notes of joins that this attempt or one before it has left."""
        paths = self._storage.list(self._names.home)
        attempts = ((self._names.attempt_of_join(path), path) for path in paths)
        return [p for attempt, p in attempts if attempt is not None and attempt <= self._attempt]

    def _remove(self, note: str, join: _JoinNote, *, with_files: bool) -> None:
        for path in join.files if with_files else ():
            if self._names.is_file(path):
                self._storage.delete(path)
        self._storage.delete(note)

    def _join_bin(self, path: str, sources: Sequence[_Source]) -> TableFile | None:
        """Write the rows of some files into one; None if their columns differ."""
        joined: RowGroupWriter | None = None
        rows = 0
        for file, transaction in sources:
            parquet = pq.ParquetFile(pa.BufferReader(self._read(file, transaction)))
            if joined is None:
                joined = RowGroupWriter(parquet.schema_arrow)
            elif not parquet.schema_arrow.equals(joined.schema):
                return None
            for batch in parquet.iter_batches(_BATCH_ROWS):
                joined.add(batch)
                rows += batch.num_rows
        assert joined is not None
        data = joined.finish()
        self._storage.put(path, data)
        stats = join_stats([file.stats for file, _ in sources])
        return TableFile(path, len(data), rows, sources[0][0].partition, stats)


class RowGroupWriter:
    """A Parquet file in memory, whose row groups have a useful size."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._target = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._target, schema)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> bytes:
        self._flush()
        self._writer.close()
        return bytes(self._target.getvalue().to_pybytes())

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._held = []
        self._bytes = 0


def join_name(note: str) -> str:
    """The name of a join by its note."""
    return note.rpartition("/")[2]


def divide(
    due: Sequence[TableTransaction],
) -> tuple[tuple[TableTransaction, ...], tuple[TableTransaction, ...]]:
    """Tell transactions whose files are worth keeping from those whose files are to be joined.

    A file is worth it if it is large, or has nothing to be joined with.
    """
    partitions = Counter(_values(file) for one in due for file in one.files)
    kept: list[TableTransaction] = []
    replaced: list[TableTransaction] = []
    for one in due:
        worth = (
            file.length >= TARGET_BYTES // 2 or partitions[_values(file)] == 1 for file in one.files
        )
        (kept if all(worth) else replaced).append(one)
    return tuple(kept), tuple(replaced)


def join_plan(transactions: Sequence[TableTransaction]) -> Iterator[list[_Source]]:
    """Put files into bins: of one partition of the table, in order, and not too many."""
    sources = [(file, one) for one in transactions for file in one.files]
    sources.sort(key=lambda source: _values(source[0]))  # stable: rows keep their order
    for _, files in groupby(sources, key=lambda source: _values(source[0])):
        yield from bins(files, lambda source: source[0].length)


def bins(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Put items into bins, in order, until each has `TARGET_BYTES`."""
    bin: list[T] = []
    held = 0
    for item in items:
        bin.append(item)
        held += size(item)
        if held >= TARGET_BYTES:
            yield bin
            bin = []
            held = 0
    if bin:
        yield bin


def _values(file: TableFile) -> str:
    return repr(sorted(file.partition.items()))


_TRIES = 8
_CLOSE_S = 30.0


class ConflictError(Exception):
    """Somebody else has changed the table meanwhile; nothing was committed."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What was done with a table, or would be: small files, of so many bytes, are `joined`.

    The number of files afterwards is an estimate if nothing was done.
    """

    files_before: int
    files_after: int
    joined: int
    bytes: int
    version: str


class CompactTarget(Protocol):
    """A table that can be compacted; `TableTarget` has the contract."""

    def plan_compaction(self) -> Compaction:
        """Look at the table anew, and say what a compaction would do."""

    def compact(self, alone: AbstractContextManager[Any]) -> int:
        """Join small files of the table, or raise `ConflictError`; returns how many.

        Within `alone` this process commits nothing else to the table. To be held for as short as
        possible, and only where the commit of a sink would stand in the way.
        """


def compact_table(
    target: CompactTarget,
    name: str,
    place: str,
    *,
    dry_run: bool,
    alone: AbstractContextManager[Any] | None = None,
) -> Compaction:
    """Join the small files of a table; `name` is what messages call the sink that writes it."""
    reason = ""
    for tried in range(_TRIES):
        before = target.plan_compaction()
        if dry_run or not before.joined:
            return before
        try:
            joined = target.compact(alone or nullcontext())
        except ConflictError as error:
            reason = str(error)
            _LOG.info("%s: %s; compacting again", name, reason)
            time.sleep(0.1 * 2**tried * random.uniform(0.5, 1))
            continue
        after = target.plan_compaction()
        return msgspec.structs.replace(
            after, files_before=before.files_before, joined=joined, bytes=before.bytes
        )
    raise SinkError(
        f"{name}: other writers changed {place} {_TRIES} times during compaction: {reason}. "
        "Nothing was done; try again when there are fewer writes, or set compact_files on the "
        "sink"
    )


class BackgroundCompaction:
    """Compacts a table beside the job, once commits have added so many files.

    What fails is tried again after as many more. Not thread-safe, but for its own thread. `alone`
    is to be held by whoever commits to the table.
    """

    def __init__(
        self, every: int, compact: Callable[[AbstractContextManager[Any]], Compaction], name: str
    ) -> None:
        self._every = every
        self._compact = compact
        self._name = name
        self.alone = threading.Lock()
        self._added = 0
        self._thread: threading.Thread | None = None

    def added(self, files: int) -> None:
        """Note that a commit has added files to the table."""
        self._added += files
        running = self._thread is not None and self._thread.is_alive()
        if self._added >= self._every and not running:
            self._added = 0
            self._thread = threading.Thread(target=self._run, name="turnback-compact", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait a while for a compaction under way; if it takes longer, it may go on."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            done = self._compact(self.alone)
        except TurnbackError as error:
            _LOG.warning("%s: cannot compact its table: %s", self._name, error)
        else:
            _LOG.info(
                "%s: compacted %d files into %d",
                self._name,
                done.joined,
                done.joined - (done.files_before - done.files_after),
            )
