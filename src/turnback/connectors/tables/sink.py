"""What sinks for table formats have in common: arguments, claims, and the check of schemas."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypedDict, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from turnback.config.option import column_names
from turnback.connectors.tables.compaction import (
    BackgroundCompaction,
    Compaction,
    CompactTarget,
    ConflictError,
    FileMerger,
    MergedFiles,
    compact_table,
)
from turnback.connectors.tables.files import (
    ChangeKind,
    ColumnChange,
    FileNames,
    Layout,
    TableFile,
    TableTransaction,
    TableWriter,
    describe_problems,
    is_partitionable,
    remove_noted,
)
from turnback.core.units import parse_size
from turnback.errors import (
    ConfigurationError,
    NotFoundError,
    SinkError,
    StorageError,
    TableChangedError,
)
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    promised_version,
    require_known_attempt,
    require_promised,
    sink_errors,
    sink_label,
    version_of,
)
from turnback.sinks.ownership import Ownership, SinkIdentity, homes_of, job_home
from turnback.storage.base import Storage
from turnback.storage.directory import sync_directory
from turnback.storage.local import LocalStorage
from turnback.values.columns import stream_schema
from turnback.values.typeinfo import TypeInfo

_LOG = logging.getLogger(__name__)
_VERSION = "turnback.version"
_DIRECTORY = "turnback.directory"
_JOB_ID = "turnback.job-id"
_ATTEMPT = "turnback.attempt"
_NONCE = "turnback.nonce"
_TRIES = 12
_LONGEST_WAIT_S = 2.0

T = TypeVar("T")


@dataclass(frozen=True)
class Mark:
    """How far a sink is, as its table remembers it.

    Attributes:
        version: The newest output that the table has; `version_of` made it.
        attempt: The attempt whose driver wrote the mark; 0 if the table was handed over since.
        nonce: Stands for that driver, see `short_nonce`; empty if it is not known.
        fence: Output up to this version that the table does not have was rolled back, and must
            never come into it: its files are gone, or about to go.
    """

    identity: SinkIdentity
    version: int = 0
    attempt: int = 0
    nonce: str = ""
    fence: int = 0


def short_nonce(nonce: str) -> str:
    """10 characters that stand for a driver where there is no room for more; empty for none."""
    return blake2b(nonce.encode(), digest_size=5).hexdigest() if nonce else ""


class TableTarget(CompactTarget):
    """A table in its format's own words. Only on the driver, one call at a time.

    The three that commit do so in one commit of the table, together with the mark, and raise
    `ConflictError` if any sink's mark was written since `look`: another driver, or another job that
    has taken the table over.
    """

    format: ClassVar[str]
    """What messages call the format."""
    elsewhere: ClassVar[str]
    """How a sink is given another table."""
    additive: ClassVar[tuple[ChangeKind, ...]] = (ChangeKind.ADD,)
    """The changes that a sink can make itself."""

    def __init__(self, sink: TableSink, ctx: CommitterContext) -> None:
        self._sink = sink
        self._name = sink_label(ctx.job, ctx.uid)
        self._summary = {"turnback.job": ctx.job, "turnback.sink": ctx.uid}
        self._table: Any = None
        self._schema: pa.Schema | None = None

    def check(self, type: TypeInfo | None) -> None:
        """Raise `ConfigurationError` if the table exists and a stream does not fit it."""
        if type is None:
            return
        schema = self._schema_of(type)
        table = self._open()
        if table is None:
            return
        changes, others = self._differences(table, schema)
        if self._sink.evolve_table:
            changes = [change for change in changes if change.kind not in self.additive]
        if changes or others:
            raise ConfigurationError(
                f"{self._name}: the stream does not match the {self.format} table "
                f"{self._sink.place}: {self._problems(changes, others)}. Change the stream or the "
                f"table, or {self.elsewhere}"
            )

    def exists(self) -> bool:
        return self._open() is not None

    @abstractmethod
    def create(self, type: TypeInfo) -> None:
        """Create the table unless it exists."""

    def adapt(self, type: TypeInfo) -> None:
        """Give the table what a stream has new, if the sink may, once all older rows are in it.

        From then on `look` raises `TableChangedError` if the rows do not fit any more.
        """
        schema = self._schema_of(type)
        with self._failures("change the columns of"):
            table = self._open()
            changes = [c for c in self._differences(table, schema)[0] if c.kind in self.additive]
            if changes and self._sink.evolve_table:
                self._evolve(table, changes)
        self._schema = schema

    @abstractmethod
    def look(self) -> None:
        """Look at the table anew."""

    @abstractmethod
    def remembered(self, identity: SinkIdentity) -> Mark | None:
        """The mark of a sink in the table that was last looked at, if there is one."""

    @abstractmethod
    def referenced(self, paths: Collection[str]) -> set[str]:
        """Which of these files the table that was last looked at has."""

    @abstractmethod
    def append(self, files: Sequence[TableFile], mark: Mark, join: str = "") -> None:
        """Add files; `join` is the name of what has joined them, for `find_join`."""

    def find_join(self, identity: SinkIdentity, version: int) -> str | None:
        """See `FindJoin`; of the table that was last looked at."""
        return found_merge(self._commits(), self._key_of(identity), version)

    @abstractmethod
    def merge(self, rows: pa.Table, mark: Mark) -> None: ...

    @abstractmethod
    def mark(self, mark: Mark) -> None: ...

    def newest_commit(self, directory_id: str) -> Mapping[str, Any] | None:
        """What the newest commit of a job directory says about itself, see `who_commits`.

        None if the table that was last looked at does not reach back that far.
        """
        own = (each for each in self._commits() if each.get(_DIRECTORY) == directory_id)
        return next(own, None)

    @abstractmethod
    def version(self) -> str:
        """The version of the table that was last looked at or committed."""

    # -- what a format adds

    @abstractmethod
    def _open(self) -> Any:
        """The table as it is now; None if there is none."""

    @abstractmethod
    def _schema_of(self, type: TypeInfo) -> pa.Schema:
        """The schema of a stream; `ConfigurationError` if the format lacks one of its types."""

    @abstractmethod
    def _differences(self, table: Any, schema: pa.Schema) -> tuple[list[ColumnChange], list[str]]:
        """The changes that a table needs before rows of a schema fit it, and what else is wrong."""

    @abstractmethod
    def _evolve(self, table: Any, changes: list[ColumnChange]) -> None:
        """Make changes that are `additive`, in one commit."""

    @abstractmethod
    def _commits(self) -> Iterable[Mapping[str, Any]]:
        """What commits of the table that was last looked at say about themselves, newest first."""

    @abstractmethod
    def _key_of(self, identity: SinkIdentity) -> str:
        """Under what the table remembers a sink."""

    @abstractmethod
    def _failures(self, what: str) -> AbstractContextManager[None]:
        """Raise errors of the library as `ConflictError` and `SinkError`: "cannot {what} ..."."""

    def _problems(self, changes: list[ColumnChange], others: list[str]) -> str:
        return describe_problems(changes, others, self._sink.place)

    def _require_same(self) -> None:
        """Refuse to write to a table that rows of the stream do not fit any more."""
        if self._schema is not None:
            changes, others = self._differences(self._table, self._schema)
            if changes or others:
                raise TableChangedError(
                    f"{self._name}: the {self.format} table {self._sink.place} was changed while "
                    "the job was running, and the job's rows no longer match it: "
                    f"{self._problems(changes, others)}. Then start the job again: its checkpoint "
                    "contains in-doubt output that is not in the table yet"
                )


def who_commits(mark: Mark) -> dict[str, str]:
    """What a commit says of its driver, to people and for `require_known_output`."""
    return {
        _VERSION: str(mark.version),
        _DIRECTORY: mark.identity.directory_id,
        _JOB_ID: mark.identity.job_id,
        _ATTEMPT: str(mark.attempt),
        _NONCE: mark.nonce,
    }


def require_known_marks(target: TableTarget, ctx: CommitterContext, place: str) -> None:
    """Refuse a table with output of this sink that the job directory knows nothing of.

    To be called after `TableTarget.look`, before anything that the table has counts as published.
    Raises as `require_known_attempt` does.
    """
    own = SinkIdentity.of(ctx)
    # What has no job directory in it is this job's, because the table is.
    mark = target.remembered(own) or target.remembered(own.without_directory)
    if mark is None or (mark.attempt, mark.nonce) == (ctx.attempt, short_nonce(ctx.nonce)):
        return
    _require_known_driver(ctx, mark.attempt, mark.nonce, place)


def _require_known_driver(ctx: CommitterContext, attempt: int, nonce: str, place: str) -> None:
    """As `require_known_attempt`, with the short nonce of a driver."""
    known = ctx.attempts.nonce_of(attempt) if ctx.attempts is not None else None
    is_same = known is not None and nonce in ("", short_nonce(known))
    require_known_attempt(ctx, attempt, known if known is not None and is_same else nonce, place)


def require_known_output(
    target: TableTarget, ctx: CommitterContext, place: str, before: str
) -> None:
    """Refuse a table with output that the job directory knows nothing of, or has not promised.

    To be called after `TableTarget.look`, when the table is claimed. Whatever the sinks were called
    that have written it: a job directory that was restored from a backup may not know what they
    were called later, but the commits of a table say whose they are. `before` is the job that the
    table belonged to until now, if it was in the same job directory.
    """
    for one in _same_directory(ctx, before):
        require_known_marks(target, one, place)
        mark = target.remembered(SinkIdentity.of(one))
        if mark is not None:
            require_promised(one, mark.version, place)
    if ctx.directory_id:
        _require_known_commits(target, ctx, place, before)


def _require_known_commits(
    target: TableTarget, ctx: CommitterContext, place: str, before: str
) -> None:
    newest = target.newest_commit(ctx.directory_id) if ctx.job_id else None
    # What was there before the job directory was deleted and made again does not count.
    if newest is None or newest.get(_JOB_ID) not in (ctx.job_id, before):
        return
    attempt = int(newest[_ATTEMPT])
    _require_known_driver(ctx, attempt, newest.get(_NONCE, ""), place)
    if attempt:
        require_promised(ctx, int(newest[_VERSION]), place)


def _same_directory(ctx: CommitterContext, before: str) -> list[CommitterContext]:
    """The sink, and all others that the job directory knows; also those of the job before."""
    jobs = {ctx.job_id, before} - {""} if ctx.job_id else {ctx.job_id}
    uids = (ctx.uid, *ctx.other_uids)
    return [replace(ctx, uid=uid, job_id=job) for job in sorted(jobs) for uid in uids]


def forget_unknown_output(
    target: TableTarget, ctx: CommitterContext, place: str, before: str
) -> None:
    """Let a job go on that would be refused for what the table has, as its user allows."""
    for one in _same_directory(ctx, before):
        target.look()
        _forget_unknown_mark(target, one, place)
    target.look()
    try:
        _require_known_commits(target, replace(ctx, take_over=False), place, before)
    except ConfigurationError:
        target.mark(target.remembered(SinkIdentity.of(ctx)) or Mark(SinkIdentity.of(ctx)))


def _forget_unknown_mark(target: TableTarget, ctx: CommitterContext, place: str) -> None:
    own = SinkIdentity.of(ctx)
    try:
        require_known_marks(target, replace(ctx, take_over=False), place)
    except ConfigurationError:
        target.mark(Mark(own))
        return
    mark = target.remembered(own)
    if mark is None:
        return
    promised = promised_version(ctx, mark.version)
    if promised < mark.version:
        target.mark(replace(mark, version=promised))


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
        self._target = target
        self._storage = storage
        self._ctx = ctx
        self._kind = kind
        self._place = place
        self._key = key
        self._write_every = write_every
        self._write_bytes = write_bytes
        self._compaction = compaction
        self._identity = SinkIdentity.of(ctx)
        self._joined: MergedFiles | None = None
        self._waited = self._added = 0
        self._name = sink_label(ctx.job, ctx.uid)
        self._ownership = Ownership(storage, place, ctx)
        self._version: str | None = None
        self._recovered = False
        self._before: dict[SinkIdentity, int] = {}
        """The number of a sink that the table had before the last commit."""
        self._tried: dict[SinkIdentity, int] = {}
        """The highest number of a sink that a commit was begun with, whatever became of it."""

    def is_due(self, transactions: Sequence[bytes]) -> bool:
        """Whether so much output waits that it is to be written; asked once a checkpoint."""
        self._waited += 1
        if self._waited >= self._write_every:
            return True
        waiting = (file.length for one in self._decode(transactions) for file in one.files)
        return self._write_bytes is not None and sum(waiting) >= self._write_bytes

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Commit what the table does not have yet; all of it, or nothing.

        1. look how far the table is, and whose it is
        2. join small files, if several checkpoints are written at once
        3. remove the notes: from here on the files may be referred to
        4. commit files and mark; if somebody was faster, start again
        """
        due = self._decode(transactions)
        if due and not self._recovered:
            self._require_files(due)
        for identity, group in self._by_identity(due).items():
            self._commit_group(identity, group)
        self._waited = 0
        if self._compaction is not None:
            self._compaction.added(self._added)
        self._added = 0

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Remove files that the table does not have.

        Where a commit was begun, by this driver or one before it, only the table can tell. It gets
        a mark first, so that a commit which is still under way cannot land afterwards; if it does
        not answer, nothing is removed.
        """
        dropped = self._decode(transactions)
        for identity, group in self._by_identity(dropped).items():
            doubtful = [one for one in group if self._may_be_published(one, identity)]
            if doubtful:
                self._drop_doubtful(doubtful, identity)
            for transaction in group:
                if transaction not in doubtful:
                    self._remove(transaction)

    def recover(self, pending: Sequence[bytes]) -> None:
        self.commit(pending)
        for identity, paths in self._kept().items():
            self._roll_back_left(identity, paths)
        self._recovered = True
        if self._ctx.type is not None:
            adapt = self._target.adapt
            type = self._ctx.type
            self._with_retries(lambda: adapt(type))
        if self._version is None:
            self._with_retries(self._target.look)
            self._version = self._target.version()

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        kept = {path for transaction in self._decode(known) for path in transaction.notes}
        for identity, paths in self._kept().items():
            if (identity.job_id, identity.uid) == (self._ctx.job_id, self._ctx.uid):
                names = FileNames(identity)
                own = [path for path in paths if names.attempt_of(path) == self._ctx.attempt]
                self._remove_left(identity, [path for path in own if path not in kept])

    def close(self) -> None:
        if self._compaction is not None:
            self._compaction.close()

    def target_version(self) -> str | None:
        """The version of the table that has everything committed so far."""
        return self._version

    # -- the commit

    def _commit_group(
        self, identity: SinkIdentity, transactions: Sequence[TableTransaction]
    ) -> None:
        try:
            self._with_retries(lambda: self._publish(identity, transactions))
        finally:
            self._joined = None
        self._drop_staged(transactions)

    def _publish(self, identity: SinkIdentity, transactions: Sequence[TableTransaction]) -> None:
        with self._compaction.alone if self._compaction is not None else nullcontext():
            self._publish_alone(identity, transactions)

    def _publish_alone(
        self, identity: SinkIdentity, transactions: Sequence[TableTransaction]
    ) -> None:
        remembered = self._look(identity)
        # After the look: whoever takes the table over now makes the commit below conflict.
        self._ownership.check()
        require_known_marks(self._target, self._ctx, self._place)
        done = remembered.version
        due = [transaction for transaction in transactions if transaction.version > done]
        if due:
            self._refuse_rolled_back(due, remembered)
            mark = self._signed(replace(remembered, version=due[-1].version))
            self._tried[identity] = max(mark.version, self._tried.get(identity, 0))
            if all(transaction.staged for transaction in due) and self._key:
                self._target.merge(self._newest_rows(due), mark)
                self._added += 1
            elif not any(transaction.staged for transaction in due) and not self._key:
                self._append(due, mark, done)
            else:
                raise ConfigurationError(
                    f"{self._name}: output was prepared in the other mode, 'append' or 'upsert', "
                    "and is not committed yet. Start the job once with its previous mode, stop "
                    "it with a savepoint, then change the mode"
                )
        self._version = self._target.version()

    def _look(self, identity: SinkIdentity) -> Mark:
        """Look at the table anew; returns what it remembers of a sink."""
        self._target.look()
        return self._target.remembered(identity) or Mark(identity)

    def _signed(self, mark: Mark) -> Mark:
        return replace(mark, attempt=self._ctx.attempt, nonce=short_nonce(self._ctx.nonce))

    def _refuse_rolled_back(self, due: Sequence[TableTransaction], remembered: Mark) -> None:
        for transaction in due:
            if transaction.version <= remembered.fence:
                raise SinkError(
                    f"{self._name}: {transaction.rows} rows of epoch {transaction.epoch} of "
                    f"attempt {transaction.attempt} are lost: attempt {remembered.attempt} "
                    "rolled them back, because it did not start from the checkpoint that "
                    "contains them. Start from an earlier checkpoint or a savepoint, which "
                    "writes them again"
                )

    def _append(self, due: Sequence[TableTransaction], mark: Mark, done: int) -> None:
        known = self._joined
        identity = mark.identity
        joins = self._write_every > 1 and identity == self._identity
        joiner = self._joiner(identity)
        if joins and (known is None or known.due != tuple(due)):
            with self._joining():
                self._joined = joiner.join(due)
        joined = self._joined
        if joined is None:
            self._forget_notes(due)
            files = [file for one in due for file in one.files]
            self._target.append(files, mark)
            self._before[identity] = done
            self._added += len(files)
            return
        self._forget_notes(joined.kept)
        self._target.append(joined.files, mark, joined.name)
        self._before[identity] = done
        self._added += len(joined.files)
        # By now nobody else can publish these rows, so what was made of them elsewhere goes.
        self._settle_joins(identity, done, joined.note)
        for transaction in joined.replaced:
            self._remove(transaction)

    def _joiner(self, identity: SinkIdentity) -> FileMerger:
        return FileMerger(self._storage, identity, self._ctx.attempt, self._read)

    def _settle_joins(self, identity: SinkIdentity, before: int, but: str | None = None) -> None:
        with self._joining():
            find_join = partial(self._target.find_join, identity)
            self._joiner(identity).settle(before, find_join, but)

    def _joining(self) -> AbstractContextManager[None]:
        what = f"{self._name}: cannot merge small files of {self._place}"
        return sink_errors(what, (StorageError, pa.ArrowException))

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
                _LOG.info("%s: %s; retrying", self._name, reason)
            time.sleep(min(_LONGEST_WAIT_S, 0.05 * 2**tried) * random.uniform(0.5, 1))
        raise SinkError(
            f"{self._name}: other writers changed {self._place} {_TRIES} times during the "
            f"commit: {reason}"
        )

    # -- rolling back

    def _may_be_published(self, transaction: TableTransaction, identity: SinkIdentity) -> bool:
        """Whether a commit of it was begun: by a driver before this one, or by this one."""
        elsewhere = identity.directory_id not in ("", self._identity.directory_id)
        return (
            elsewhere
            or transaction.attempt < self._ctx.attempt
            or (transaction.version <= self._tried.get(identity, 0))
        )

    def _drop_doubtful(
        self, transactions: Sequence[TableTransaction], identity: SinkIdentity
    ) -> None:
        """Remove what the table does not have of transactions whose commit may have been begun."""
        done = self._fence_out(identity, transactions[-1].version)
        files = [file.path for one in transactions if one.version > done for file in one.files]
        referenced = self._target.referenced(files)
        for transaction in transactions:
            missing = referenced.isdisjoint(file.path for file in transaction.files)
            if transaction.version > done and missing:
                self._remove(transaction)
                continue
            _LOG.warning(
                "%s: not rolling back %d rows of epoch %d: %s already contains them",
                self._name,
                transaction.rows,
                transaction.epoch,
                self._place,
            )
            # Files whose note is still there were joined into others, or never about to be added.
            self._remove_left(identity, transaction.notes)

    def _roll_back_left(self, identity: SinkIdentity, paths: Sequence[str]) -> None:
        """Remove the files that attempts before this one have left of a sink, by their notes."""
        names = FileNames(identity)
        noted = ((names.attempt_of(path), path) for path in paths)
        left = [p for attempt, p in noted if attempt is not None and attempt < self._ctx.attempt]
        with self._joining():
            has_joins = bool(self._joiner(identity).notes())
        if not left and not has_joins:
            return
        # A driver that is only paused may still be about to commit these files.
        fenced = self._fence_out(identity)
        self._settle_joins(identity, self._before.get(identity, fenced))
        if left and identity.job_id != self._ctx.job_id:
            _LOG.warning(
                "%s: dropping output of %d tasks of sink %r that the job had written but not "
                "published before it was started fresh",
                self._name,
                len(left),
                identity.uid,
            )
        self._remove_left(identity, left)

    def _fence_out(self, identity: SinkIdentity, newest: int = 0) -> int:
        """Keep drivers of older attempts, which may only be paused, from committing.

        Also what this one may have under way, up to the number `newest`. Returns the number of the
        sink that the table has.
        """
        fence = max(version_of(self._ctx.attempt, 0) - 1, newest)

        def mark() -> int:
            remembered = self._look(identity)
            if max(remembered.version, remembered.fence) < fence:
                self._target.mark(self._signed(replace(remembered, fence=fence)))
            return remembered.version

        published = self._with_retries(mark)
        self._version = self._target.version()
        return published

    # -- files

    def _decode(self, transactions: Sequence[bytes]) -> list[TableTransaction]:
        decoded = [TableTransaction.decode(self._kind, t, self._ctx) for t in transactions]
        return sorted(decoded, key=lambda one: (one.version, one.partition))

    def _by_identity(
        self, transactions: Sequence[TableTransaction]
    ) -> dict[SinkIdentity, list[TableTransaction]]:
        """Divide transactions by the sinks that wrote them: this one, perhaps by another name."""
        groups: dict[SinkIdentity, list[TableTransaction]] = {}
        for transaction in transactions:
            groups.setdefault(transaction.identity(self._ctx), []).append(transaction)
        return groups

    def _require_files(self, transactions: Sequence[TableTransaction]) -> None:
        """Refuse to refer to files that are gone; a table does not look whether they exist."""
        for identity, group in self._by_identity(transactions).items():
            done = self._look(identity).version
            for one in group:
                if one.version > done:
                    for file in one.files:
                        self._read(file, one)

    def _read(self, file: TableFile, transaction: TableTransaction) -> bytes:
        with sink_errors(f"{self._name}: cannot read {file.path}"):
            try:
                data = self._storage.get(file.path)
            except NotFoundError:
                raise SinkError(
                    f"{self._name}: {file.rows} rows of epoch {transaction.epoch} are lost: "
                    f"{self._place}/{file.path} does not exist. It may have been removed by hand, "
                    "or by a vacuum while the job was down. Restore it, or start from an earlier "
                    "checkpoint"
                ) from None
        if len(data) != file.length:
            raise SinkError(
                f"{self._name}: {self._place}/{file.path} has {len(data)} bytes, but "
                f"{file.length} were written; another program changed it, so it has not been "
                "committed"
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
        with sink_errors(f"{self._name}: cannot remove {path}"):
            self._storage.delete(path)

    def _kept(self) -> dict[SinkIdentity, list[str]]:
        """What the sinks of this job keep below the table, under whatever uid and id of the job."""
        with sink_errors(f"{self._name}: cannot list {self._place}"):
            paths = self._storage.list(str(job_home(self._ctx.job)))
        by_home: dict[PurePosixPath, list[str]] = {}
        for path in paths:
            by_home.setdefault(PurePosixPath(path).parent.parent, []).append(path)
        kept = {}
        for home in sorted(homes_of(self._ctx, by_home)):
            identity = self._identity.found_in(home)
            if identity is not None:  # else nobody knows what the table calls so long a name
                kept[identity] = by_home[home]
        return kept

    def _remove_left(self, identity: SinkIdentity, notes: Sequence[str]) -> None:
        names = FileNames(identity)
        for note in notes:
            what = f"{self._name}: cannot delete the files listed in {note}"
            # If it is not found, its task has removed it itself.
            with sink_errors(what), suppress(NotFoundError):
                remove_noted(self._storage, names, note)


_MOST = 1000
"""Checkpoints hold what waits, so there has to be an end to it."""

_MOST_FILES = 1_000_000
_APP = "turnback.app"
_JOIN = "turnback.join"


class TableOptions(TypedDict, total=False):
    """The keyword options of all table sinks.

    Attributes:
        partition_by: The columns that divide the table; none by default.
        mode: "append", the default, or "upsert": a row whose key the table has replaces it. If
            several elements have the same key, the last one wins, provided that one task writes
            them: use `key_by` with the key before the sink.
        key: The columns that identify a row, for mode "upsert"; none of them may be null.
        write_every: Number of checkpoints after which the table is written, with the small files of
            their epochs combined. Rows become visible later, still exactly once; a savepoint and
            the end of the job write the waiting output.
        write_bytes: Amount of waiting output at which the table is written earlier: bytes, or text
            such as "256 mb".
        compact_files: Number of new files after which small files of the table are combined, in the
            background; `turnback compact` does this once. No row changes, and older versions stay.
        evolve_table: Add the stream's columns that the table lacks; without it, such a job is
            refused.
        storage_options: Access to S3, named as in `S3Storage`; by default from the environment.
    """

    partition_by: Sequence[str]
    mode: str
    key: Sequence[str]
    write_every: int
    write_bytes: int | str | None
    compact_files: int | None
    evolve_table: bool
    storage_options: Mapping[str, str] | None


class TableSink(Sink):
    """A sink for a table in an open format.

    Attributes:
        mode: "append" or "upsert".
        partition_by: Columns that divide the table.
        key: Columns that identify a row, in mode "upsert".
        write_every: Number of checkpoints after which the table is written.
        write_bytes: Amount of waiting output at which it is written earlier.
        compact_files: Number of new files after which the table is compacted.
        evolve_table: Whether the table gets the stream's new columns.
        options: Access to the storage of its files.
    """

    kind: str

    def __init__(
        self,
        *,
        partition_by: Sequence[str] = (),
        mode: str = "append",
        key: Sequence[str] = (),
        write_every: int = 1,
        write_bytes: int | str | None = None,
        compact_files: int | None = None,
        evolve_table: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.options = dict(storage_options or {})
        self.partition_by = column_names(f"{type(self).__name__}: partition_by", partition_by)
        self.key = column_names(f"{type(self).__name__}: key", key)
        self.mode = mode
        if mode not in ("append", "upsert"):
            raise self._refused(f"mode must be 'append' or 'upsert', not {mode!r}")
        if (mode == "upsert") != bool(self.key):
            raise self._refused("mode='upsert' and key require each other: give both or neither")
        self.write_every = self._count("write_every", write_every, "checkpoints")
        self.write_bytes = self._bytes("write_bytes", write_bytes)
        self.compact_files = compact_files
        self.evolve_table = evolve_table
        if not isinstance(evolve_table, bool):
            raise self._refused(f"evolve_table must be True or False, not {evolve_table!r}")
        if compact_files is not None:
            self._count("compact_files", compact_files, "files", least=2, most=_MOST_FILES)
        if self.write_bytes is not None and self.write_every == 1:
            raise self._refused(
                "write_bytes needs write_every, the number of checkpoints after which rows are "
                "written even if there are fewer bytes, for example write_every=30"
            )

    @property
    def needs_checkpoints(self) -> bool:  # type: ignore[override]
        # Between two writes nothing but checkpoints remembers what waits.
        return self.write_every > 1

    # -- what a format adds

    @abstractmethod
    def target(self, ctx: CommitterContext) -> TableTarget:
        """The table, for the driver."""

    @abstractmethod
    def storage(self) -> Storage:
        """The table's directory."""

    @abstractmethod
    def layout(self, type: TypeInfo) -> Layout:
        """How tasks write."""

    @property
    @abstractmethod
    def place(self) -> str:
        """What messages call the table."""

    def ownership(self, ctx: CommitterContext) -> Ownership | None:
        """The record of the job that the table belongs to; None if there is no table yet."""
        return Ownership(self.storage(), self.place, ctx)

    # -- the sink

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return TableWriter(self.layout(ctx.type), ctx)

    def check_target(self, ctx: CommitterContext) -> None:
        self._check_target(ctx)

    def _check_target(self, ctx: CommitterContext) -> str:
        """Check everything; returns the job in this job directory that the table belongs to."""
        self._check_columns(ctx)
        ownership = self.ownership(ctx)
        before = ""
        if ownership is not None:
            ownership.check_target()
            before = ownership.job_before()
        target = self.target(ctx)
        target.check(ctx.type)
        if target.exists():
            target.look()
            require_known_output(target, ctx, self.place, before)
        return before

    def acquire_target(self, ctx: CommitterContext) -> None:
        before = self._check_target(ctx)
        target = self.target(ctx)
        if ctx.type is not None:
            target.create(ctx.type)
        ownership = self.ownership(ctx)
        if ownership is not None:
            ownership.acquire_target()
        if ctx.take_over and target.exists():
            forget_unknown_output(target, ctx, self.place, before)

    def committer(self, ctx: CommitterContext) -> Committer:
        target = self.target(ctx)
        if ctx.type is not None:
            target.create(ctx.type)
            target.check(ctx.type)
        return TableCommitter(
            target,
            self.storage(),
            ctx,
            kind=self.kind,
            place=self.place,
            key=self.key,
            write_every=self.write_every,
            write_bytes=self.write_bytes,
            compaction=self._background(ctx),
        )

    def compact(
        self,
        ctx: CommitterContext,
        *,
        dry_run: bool = False,
        alone: AbstractContextManager[Any] | None = None,
    ) -> Compaction:
        """Join small files of the table, also while the job runs; see `compact_table`."""
        ownership = self.ownership(ctx)
        if ownership is not None:
            ownership.check_target()
        name = sink_label(ctx.job, ctx.uid)
        return compact_table(self.target(ctx), name, self.place, dry_run=dry_run, alone=alone)

    def _background(self, ctx: CommitterContext) -> BackgroundCompaction | None:
        if self.compact_files is None:
            return None
        name = sink_label(ctx.job, ctx.uid)
        return BackgroundCompaction(
            self.compact_files, lambda alone: self.compact(ctx, alone=alone), name
        )

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return TableTransaction.decode(self.kind, transaction, ctx).explain(self.place, ctx)

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        own = SinkIdentity.of(ctx)
        found = {}
        with sink_errors(f"cannot list its files below {self.place}"):
            for names in map(FileNames, {own, own.without_directory}):
                for path in self.storage().list(names.home):
                    task = names.task_of(path)
                    if task is not None:
                        found[task[0]] = TransactionInfo(
                            what=f"files of attempt {names.attempt_of(path)} for {self.place}",
                            id=task[0],
                            epoch=task[1],
                        )
        return found.values()

    def _check_columns(self, ctx: CommitterContext) -> None:
        """Refuse columns that a stream does not have, or that cannot do what they should."""
        if ctx.type is None:
            return
        schema = stream_schema(ctx.type)
        for argument, columns in (("partition_by", self.partition_by), ("key", self.key)):
            for column in columns:
                if column not in schema.names:
                    raise self._refused(
                        f"{argument} contains {column!r}, which the stream does not have; its "
                        f"columns are {', '.join(schema.names)}"
                    )
                kind = schema.field(column).type
                if not is_partitionable(kind):
                    raise self._refused(
                        f"{argument} contains {column!r}, which is of type {kind}; use strings, "
                        "integers, booleans, dates or timestamps"
                    )
        if self.partition_by and set(schema.names) == set(self.partition_by):
            raise self._refused("a table needs at least one column that is not in partition_by")

    def _count(
        self, argument: str, value: int, what: str, least: int = 1, most: int = _MOST
    ) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._refused(
                f"{argument} must be a number of {what} from {least} to {most}, not {value!r}"
            )
        return value

    def _bytes(self, argument: str, value: int | str | None) -> int | None:
        if value is None:
            return None
        size = parse_size(value, f"{type(self).__name__}: {argument}")
        if not size:
            raise self._refused(f"{argument} must be a size above 0, for example '256 mb'")
        return size

    def _described(self) -> dict[str, str]:
        """What descriptions of all formats have, for `_arguments`."""
        described = {
            "kind": self.kind,
            "mode": self.mode,
            "partition_by": json.dumps(self.partition_by),
            "key": json.dumps(self.key),
        }
        if self.write_every > 1:
            described["write_every"] = str(self.write_every)
        if self.write_bytes is not None:
            described["write_bytes"] = str(self.write_bytes)
        if self.evolve_table:
            described["evolve_table"] = "true"
        if self.compact_files is not None:
            described["compact_files"] = str(self.compact_files)
        return described

    @staticmethod
    def _arguments(description: Mapping[str, str]) -> dict[str, Any]:
        """The arguments that `_described` has described."""
        size = description.get("write_bytes")
        files = description.get("compact_files")
        return {
            "partition_by": json.loads(description.get("partition_by", "[]")),
            "mode": description.get("mode", "append"),
            "key": json.loads(description.get("key", "[]")),
            "write_every": int(description.get("write_every", 1)),
            "write_bytes": None if size is None else int(size),
            "evolve_table": "evolve_table" in description,
            "compact_files": None if files is None else int(files),
        }

    def _refused(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{type(self).__name__}: {reason}")


def commit_marks(app: str, mark: Mark, join: str) -> dict[str, str]:
    """What a commit says about itself, to people and for `found_merge`."""
    return {_APP: app, _JOIN: join, **who_commits(mark)}


def found_merge(commits: Iterable[Mapping[str, Any]], app: str, version: int) -> str | None:
    """Find which join published a number; `commits` are what they say, newest first.

    None if they do not reach back that far.
    """
    found = None
    for commit in commits:
        if commit.get(_APP) == app:
            number = int(commit[_VERSION])
            if number >= version:
                found = commit[_JOIN]
            if number <= version:
                return found
    return None


def sync_files(storage: Storage, uris: Iterable[str]) -> None:
    """Make files durable that a library has written to a table on a mounted file system.

    Libraries of table formats do not; object stores need nothing of the kind.
    """
    if not isinstance(storage, LocalStorage):
        return
    folders = set()
    for uri in uris:
        path = Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        folders.add(path.parent)
    for folder in folders:
        sync_directory(folder)
