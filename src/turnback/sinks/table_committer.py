"""The commit of a table sink.

A table remembers how far a sink is, as one number for each job and sink, written in the same commit
as the data. A commit that comes again finds the number and changes nothing.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from turnback.core.errors import ConfigurationError, NotFoundError, SinkError, StorageError
from turnback.sinks.base import CommitterContext, name_sink, version_of
from turnback.sinks.ownership import Ownership
from turnback.sinks.table_files import FileNames, TableFile, TableTransaction, remove_noted
from turnback.storage.base import Storage
from turnback.types.typeinfo import TypeInfo

_LOG = logging.getLogger(__name__)
_TRIES = 12
_LONGEST_WAIT_S = 2.0


class ConflictError(Exception):
    """Somebody else has changed the table meanwhile; nothing was committed."""


class TableTarget(Protocol):
    """A table in its format's own words. Only on the driver, one call at a time.

    The three that commit do so in one commit of the table, together with the number, and raise
    `ConflictError` if a number was written since `published` looked.
    """

    def check(self, type: TypeInfo | None) -> None:
        """Raise `ConfigurationError` if the table exists and a stream does not fit it."""

    def create(self, type: TypeInfo) -> None:
        """Create the table unless it exists."""

    def published(self) -> int:
        """Look at the table anew; return the number it remembers, 0 if none."""

    def append(self, files: Sequence[TableFile], version: int) -> None: ...

    def merge(self, rows: pa.Table, version: int) -> None: ...

    def mark(self, version: int) -> None: ...

    def version(self) -> str:
        """The version of the table that was last looked at or committed."""


class TableCommitter:
    """Commits the output of all epochs that are due at once."""

    def __init__(
        self,
        target: TableTarget,
        storage: Storage,
        ctx: CommitterContext,
        *,
        kind: str,
        place: str,
        key: tuple[str, ...],
    ) -> None:
        self._target, self._storage, self._ctx = target, storage, ctx
        self._kind, self._place, self._key = kind, place, key
        self._name = name_sink(ctx.job, ctx.uid)
        self._names = FileNames(ctx)
        self._ownership = Ownership(storage, place, ctx)
        self._version: str | None = None

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Commit what the table does not have yet; all of it, or nothing.

        1. look how far the table is
        2. remove the notes: from here on the files may be referred to
        3. commit files and number; if somebody was faster, start again
        """
        due = self._decode(transactions)
        if due:
            self._ownership.check()
            self._with_retries(lambda: self._publish(due))
            self._drop_staged(due)

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
        if left:
            # A driver that is only paused may still be about to commit these files.
            self._fence_out()
            self._remove_left([path for _, path in left])
        if self._version is None:
            self._with_retries(lambda: self._target.published())
            self._version = self._target.version()

    def discard_others(self, known: Sequence[bytes]) -> None:
        kept = {path for transaction in self._decode(known) for path in transaction.notes}
        own = [path for attempt, path in self._noted() if attempt == self._ctx.attempt]
        self._remove_left([path for path in own if path not in kept])

    def target_version(self) -> str | None:
        """The version of the table that has everything committed so far."""
        return self._version

    # -- the commit

    def _publish(self, transactions: Sequence[TableTransaction]) -> None:
        done = self._target.published()
        due = [transaction for transaction in transactions if transaction.version > done]
        if due:
            version = due[-1].version
            if all(transaction.staged for transaction in due) and self._key:
                self._target.merge(self._newest_rows(due), version)
            elif not any(transaction.staged for transaction in due) and not self._key:
                self._forget_notes(due)
                self._target.append([file for one in due for file in one.files], version)
            else:
                raise ConfigurationError(
                    f"{self._name}: output was prepared in the other mode, 'append' or 'upsert', "
                    "and is not committed yet. Start the job once with the mode it had, stop it "
                    "with a savepoint, then change the mode"
                )
        self._version = self._target.version()

    def _newest_rows(self, transactions: Sequence[TableTransaction]) -> pa.Table:
        """The last row of each key."""
        rows = pa.concat_tables(
            pq.read_table(pa.BufferReader(self._read(file, one)))
            for one in transactions
            for file in one.files
        )
        place = "__turnback_place"
        numbered = rows.select(list(self._key)).append_column(
            place, pa.array(range(rows.num_rows), pa.int64())
        )
        last = numbered.group_by(list(self._key)).aggregate([(place, "max")])
        return rows.take(last.column(f"{place}_max"))

    def _with_retries(self, action: Callable[[], Any]) -> None:
        for tried in range(_TRIES):
            try:
                action()
                return
            except ConflictError as error:
                reason = str(error)
                _LOG.info("%s: %s; trying again", self._name, reason)
            time.sleep(min(_LONGEST_WAIT_S, 0.05 * 2**tried) * random.uniform(0.5, 1))
        raise SinkError(
            f"{self._name}: {self._place} was changed by others {_TRIES} times while committing: "
            f"{reason}"
        )

    def _fence_out(self) -> None:
        """Keep drivers of older attempts, which may only be paused, from committing."""
        version = version_of(self._ctx.attempt, 0) - 1

        def mark() -> None:
            if self._target.published() < version:
                self._target.mark(version)

        self._with_retries(mark)
        self._version = self._target.version()

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
