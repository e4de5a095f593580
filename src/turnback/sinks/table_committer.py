"""The commit of a table sink.

A table remembers how far a sink is, as one number for each job and sink, written in the same commit
as the data. A commit that comes again finds the number and changes nothing.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from turnback.core.errors import ConfigurationError, NotFoundError, SinkError, StorageError
from turnback.sinks.base import CommitterContext, name_sink, version_of
from turnback.sinks.ownership import Ownership
from turnback.sinks.table_compaction import BackgroundCompaction, CompactTarget, ConflictError
from turnback.sinks.table_files import FileNames, TableFile, TableTransaction, remove_noted
from turnback.sinks.table_join import Joined, Joiner
from turnback.storage.base import Storage
from turnback.types.typeinfo import TypeInfo

_LOG = logging.getLogger(__name__)
_TRIES = 12
_LONGEST_WAIT_S = 2.0

T = TypeVar("T")


class TableTarget(CompactTarget, Protocol):
    """A table in its format's own words. Only on the driver, one call at a time.

    The three that commit do so in one commit of the table, together with the number, and raise
    `ConflictError` if a number was written since `published` looked.
    """

    def check(self, type: TypeInfo | None) -> None:
        """Raise `ConfigurationError` if the table exists and a stream does not fit it."""

    def create(self, type: TypeInfo) -> None:
        """Create the table unless it exists."""

    def adapt(self, type: TypeInfo) -> None:
        """Give the table what a stream has new, if the sink may, once all older rows are in it.

        From then on `published` raises `TableChangedError` if the rows do not fit any more.
        """

    def published(self) -> int:
        """Look at the table anew; return the number it remembers, 0 if none."""

    def append(self, files: Sequence[TableFile], version: int, join: str = "") -> None:
        """Add files; `join` is the name of what has joined them, for `find_join`."""

    def find_join(self, version: int) -> str | None:
        """See `FindJoin`; of the table that was last looked at."""

    def merge(self, rows: pa.Table, version: int) -> None: ...

    def mark(self, version: int) -> None: ...

    def version(self) -> str:
        """The version of the table that was last looked at or committed."""


class TableCommitter:
    """Commits the output of all epochs that are due at once.

    With `write_every` the output of so many checkpoints waits, or `write_bytes` of it; then files
    are joined before they become part of the table.
    """

    def __init__(
        self,
        target: TableTarget,
        storage: Storage,
        ctx: CommitterContext,
        *,
        kind: str,
        place: str,
        key: tuple[str, ...],
        write_every: int = 1,
        write_bytes: int | None = None,
        compaction: BackgroundCompaction | None = None,
    ) -> None:
        self._target, self._storage, self._ctx = target, storage, ctx
        self._kind, self._place, self._key = kind, place, key
        self._write_every, self._write_bytes = write_every, write_bytes
        self._compaction = compaction
        self._joiner = Joiner(storage, ctx, self._read)
        self._joined: Joined | None = None
        self._waited = self._added = 0
        self._before: int | None = None
        self._name = name_sink(ctx.job, ctx.uid)
        self._names = FileNames(ctx)
        self._ownership = Ownership(storage, place, ctx)
        self._version: str | None = None

    def is_due(self, transactions: Sequence[bytes]) -> bool:
        """Whether so much output waits that it is to be written; asked once a checkpoint."""
        self._waited += 1
        if self._waited >= self._write_every:
            return True
        waiting = (file.length for one in self._decode(transactions) for file in one.files)
        return self._write_bytes is not None and sum(waiting) >= self._write_bytes

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Commit what the table does not have yet; all of it, or nothing.

        1. look how far the table is
        2. join small files, if several checkpoints are written at once
        3. remove the notes: from here on the files may be referred to
        4. commit files and number; if somebody was faster, start again
        """
        due = self._decode(transactions)
        if due:
            self._ownership.check()
            try:
                self._with_retries(lambda: self._publish(due))
            finally:
                self._joined = None
            self._drop_staged(due)
        self._waited = 0
        if self._compaction is not None:
            self._compaction.added(self._added)
        self._added = 0

    def abort(self, transactions: Sequence[bytes]) -> None:
        dropped = self._decode(transactions)
        if any(transaction.attempt < self._ctx.attempt for transaction in dropped):
            self._fence_out()
        for transaction in dropped:
            self._remove(transaction)

    def recover(self, pending: Sequence[bytes]) -> None:
        self._require_files(self._decode(pending))
        self.commit(pending)
        left = [note for note in self._noted() if note[0] < self._ctx.attempt]
        joins = self._joins(self._joiner.notes)
        if left or joins:
            # A driver that is only paused may still be about to commit these files.
            fenced = self._fence_out()
            before = fenced if self._before is None else self._before
            self._joins(lambda: self._joiner.settle(before, self._target.find_join))
            self._remove_left([path for _, path in left])
        if self._ctx.type is not None:
            adapt, type = self._target.adapt, self._ctx.type
            self._with_retries(lambda: adapt(type))
        if self._version is None:
            self._with_retries(lambda: self._target.published())
            self._version = self._target.version()

    def discard_others(self, known: Sequence[bytes]) -> None:
        kept = {path for transaction in self._decode(known) for path in transaction.notes}
        own = [path for attempt, path in self._noted() if attempt == self._ctx.attempt]
        self._remove_left([path for path in own if path not in kept])

    def close(self) -> None:
        if self._compaction is not None:
            self._compaction.close()

    def target_version(self) -> str | None:
        """The version of the table that has everything committed so far."""
        return self._version

    # -- the commit

    def _publish(self, transactions: Sequence[TableTransaction]) -> None:
        with self._compaction.alone if self._compaction is not None else nullcontext():
            self._publish_alone(transactions)

    def _publish_alone(self, transactions: Sequence[TableTransaction]) -> None:
        done = self._target.published()
        due = [transaction for transaction in transactions if transaction.version > done]
        if due:
            version = due[-1].version
            if all(transaction.staged for transaction in due) and self._key:
                self._target.merge(self._newest_rows(due), version)
                self._added += 1
            elif not any(transaction.staged for transaction in due) and not self._key:
                self._append(due, done)
            else:
                raise ConfigurationError(
                    f"{self._name}: output was prepared in the other mode, 'append' or 'upsert', "
                    "and is not committed yet. Start the job once with the mode it had, stop it "
                    "with a savepoint, then change the mode"
                )
        self._version = self._target.version()

    def _append(self, due: Sequence[TableTransaction], done: int) -> None:
        version = due[-1].version
        known = self._joined
        if self._write_every > 1 and (known is None or known.due != tuple(due)):
            self._joined = self._joins(lambda: self._joiner.join(due))
        joined = self._joined
        if joined is None:
            self._forget_notes(due)
            files = [file for one in due for file in one.files]
            self._target.append(files, version)
            self._before, self._added = done, self._added + len(files)
            return
        self._forget_notes(joined.kept)
        self._target.append(joined.files, version, joined.name)
        self._before, self._added = done, self._added + len(joined.files)
        # By now nobody else can publish these rows, so what was made of them elsewhere goes.
        self._joins(lambda: self._joiner.settle(done, self._target.find_join, joined.note))
        for transaction in joined.replaced:
            self._remove(transaction)

    def _joins(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (StorageError, pa.ArrowException) as error:
            raise SinkError(
                f"{self._name}: small files of {self._place} cannot be joined: {error}"
            ) from error

    def _newest_rows(self, transactions: Sequence[TableTransaction]) -> pa.Table:
        """The last row of each key; no more are in memory at a time, and those of one file."""
        newest: pa.Table | None = None
        for one in transactions:
            for file in one.files:
                rows = pq.read_table(pa.BufferReader(self._read(file, one)))
                newest = self._last_of_keys(
                    rows if newest is None else pa.concat_tables([newest, rows])
                )
        return newest

    def _last_of_keys(self, rows: pa.Table) -> pa.Table:
        place = "__turnback_place"
        numbered = rows.select(list(self._key)).append_column(
            place, pa.array(range(rows.num_rows), pa.int64())
        )
        last = numbered.group_by(list(self._key)).aggregate([(place, "max")])
        return rows.take(last.column(f"{place}_max"))

    def _with_retries(self, action: Callable[[], T]) -> T:
        for tried in range(_TRIES):
            try:
                return action()
            except ConflictError as error:
                reason = str(error)
                _LOG.info("%s: %s; trying again", self._name, reason)
            time.sleep(min(_LONGEST_WAIT_S, 0.05 * 2**tried) * random.uniform(0.5, 1))
        raise SinkError(
            f"{self._name}: {self._place} was changed by others {_TRIES} times while committing: "
            f"{reason}"
        )

    def _fence_out(self) -> int:
        """Keep drivers of older attempts, which may only be paused, from committing.

        Returns the number that the table had until then.
        """
        version = version_of(self._ctx.attempt, 0) - 1

        def mark() -> int:
            published = self._target.published()
            if published < version:
                self._target.mark(version)
            return published

        published = self._with_retries(mark)
        self._version = self._target.version()
        return published

    # -- files

    def _decode(self, transactions: Sequence[bytes]) -> list[TableTransaction]:
        decoded = [TableTransaction.decode(self._kind, t, self._ctx) for t in transactions]
        return sorted(decoded, key=lambda one: (one.version, one.partition))

    def _require_files(self, transactions: Sequence[TableTransaction]) -> None:
        """Refuse to refer to files that are gone; a table does not look whether they exist."""
        if transactions:
            done = self._target.published()
            for one in transactions:
                if one.version > done:
                    for file in one.files:
                        self._read(file, one)

    def _read(self, file: TableFile, transaction: TableTransaction) -> bytes:
        try:
            data = self._storage.get(file.path)
        except NotFoundError:
            raise SinkError(
                f"{self._name}: {file.rows} rows of epoch {transaction.epoch} are lost: "
                f"{self._place}/{file.path} does not exist. Was it removed by hand, or by a vacuum "
                "while the job was down? Put it back, or start from an earlier checkpoint"
            ) from None
        except StorageError as error:
            raise SinkError(f"{self._name}: cannot read {file.path}: {error}") from error
        if len(data) != file.length:
            raise SinkError(
                f"{self._name}: {self._place}/{file.path} has {len(data)} bytes, {file.length} "
                "were written; it was changed from outside and has not been committed"
            )
        return data

    def _forget_notes(self, transactions: Sequence[TableTransaction]) -> None:
        for note in (note for one in transactions for note in one.notes):
            self._delete(note)

    def _drop_staged(self, transactions: Sequence[TableTransaction]) -> None:
        for transaction in transactions:
            if transaction.staged:
                self._remove(transaction)

    def _remove(self, transaction: TableTransaction) -> None:
        for file in transaction.files:
            self._delete(file.path)
        for note in transaction.notes:
            self._delete(note)

    def _delete(self, path: str) -> None:
        try:
            self._storage.delete(path)
        except StorageError as error:
            raise SinkError(f"{self._name}: cannot remove {path}: {error}") from error

    def _noted(self) -> list[tuple[int, str]]:
        """The notes that are there, with the attempts that wrote them."""
        try:
            paths = self._storage.list(self._names.home)
        except StorageError as error:
            raise SinkError(f"{self._name}: cannot list {self._place}: {error}") from error
        found = ((self._names.attempt_of(path), path) for path in paths)
        return [(attempt, path) for attempt, path in found if attempt is not None]

    def _remove_left(self, notes: Sequence[str]) -> None:
        for note in notes:
            try:
                remove_noted(self._storage, self._names, note)
            except NotFoundError:
                continue  # its task has removed it itself
            except StorageError as error:
                raise SinkError(
                    f"{self._name}: what {note} names cannot be removed: {error}"
                ) from error
