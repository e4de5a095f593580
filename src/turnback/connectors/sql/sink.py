"""`SqlSink`: what `PostgresSink` and `MySqlSink` have in common."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.config.option import column_names
from turnback.connectors.sql.database import (
    Database,
    LockTimeoutError,
    LostConnectionError,
    TableColumn,
    TransactionId,
    UniqueIndex,
    WrittenField,
    create_helpers,
    has_committed,
    mark_of,
    name_sink_in_database,
    name_without_directory,
    remove_old_markers,
    write_marker,
)
from turnback.connectors.sql.owner import SinkProgress, TableOwner, check_owner_in_task, known_nonce
from turnback.connectors.sql.values import Limits, check_spelling, check_values, portions
from turnback.errors import ConfigurationError, EpochConflictError, SinkError
from turnback.sinks.base import (
    ClosingCommitter,
    Committer,
    CommitterContext,
    GuardedWriter,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    sink_label,
)
from turnback.sinks.staged_elements import StagingWriter
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.sinks.write_ahead import StagedOutput, WriteAheadSink
from turnback.values.columns import Batch, stream_columns
from turnback.values.typeinfo import TypeInfo

_LOG = logging.getLogger(__name__)

R = TypeVar("R")


class DriverConnection:
    """A connection of the driver, opened when it is needed and again when it was lost."""

    def __init__(self, target: SqlSink) -> None:
        self._target = target
        self._database: Database | None = None

    def __enter__(self) -> Database:
        self._database = self._target.connect()
        return self._database

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, action: Callable[[Database], R]) -> R:
        """Do what can be done twice: if the connection is lost it is opened again, once."""
        try:
            return self._run_once(action)
        except LostConnectionError:
            return self._run_once(action)

    def _run_once(self, action: Callable[[Database], R]) -> R:
        if self._database is None:
            self._database = self._target.connect()
        try:
            return action(self._database)
        except BaseException:
            self.close()  # a transaction may be open
            raise

    def close(self) -> None:
        database = self._database
        self._database = None
        if database is not None:
            database.close()


class CheckedRows:
    """The columns of a stream as a table gets them, each value checked before it is written."""

    def __init__(self, target: SqlSink, database: Database, ctx: WriterContext) -> None:
        self._target = target
        self._sink = sink_label(ctx.job, ctx.uid)
        self._database = database
        self._table = database.target
        self._limits: dict[str, Limits] = {}
        self._changing: dict[str, TableColumn] = {}
        for column in database.columns():
            limits = column.limits
            if column.name in target.key:
                blanks = limits.trailing_blanks and not column.ignores_trailing_blanks
                # Keys that are null are equal to none, so that the same one would come again.
                limits = replace(limits, nullable=False, trailing_blanks=blanks)
            self._limits[column.name] = limits
            if column.changes_text:
                self._changing[column.name] = column

    def take(self, batch: Batch) -> tuple[list[str], list[pa.Array]]:
        """Return the names of the columns, and their values if the table takes them as they are."""
        fields = self._target.fields(batch.type)
        columns = [batch.arrow.column(field.position) for field in fields]
        for field, values in zip(fields, columns, strict=True):
            limits = self._limits.get(field.column, Limits())
            where = f"{self._sink}: column {field.column!r} of {self._table}"
            check_values(values, limits, where)
            changing = self._changing.get(field.column)
            if changing is not None and pt.is_string(values.type):
                self._check_spelling(changing, values, where)
        return [field.column for field in fields], columns

    def _check_spelling(self, column: TableColumn, texts: pa.Array, where: str) -> None:
        # Not all at once: a server ends the connection if it is told too much.
        for wanted in portions(pc.unique(texts.drop_null())):
            try:
                spelled = self._database.respelled(column, wanted)
            except LostConnectionError:
                raise
            except SinkError as error:
                raise SinkError(f"{where} does not accept a string: {error}") from error
            check_spelling(spelled, where, is_json=column.is_json)


@dataclass
class _Writing:
    database: Database
    ctx: WriterContext
    rows: CheckedRows
    preparing: bool = False


class PreparedRows(TwoPhaseCommitSink[TransactionId]):
    """Rows in prepared transactions, one per task and epoch, each with a marker of its own.

    Several attempts of one task may have prepared the same rows. Only the driver knows whose
    acknowledgement counts, so no task ever rolls back what another attempt of it has prepared. If
    both write a row that can be there only once, one of them waits for the other's lock, until
    Spark ends it because the other has finished. If Spark does not, the other has died after it
    prepared: then the driver has to replay the epoch, once it has rolled both back.

    Nor does a task roll back what older attempts of the job have prepared late. A copy of the job
    at the same path of another machine has the same names, and only the driver knows the nonces of
    its own attempts: it rolls those back with its next commit, or before it replays the epoch if
    they are in a task's way.
    """

    transaction_type = TransactionId

    def __init__(self, target: SqlSink) -> None:
        self._target = target
        self._driver = DriverConnection(target)
        self._open: dict[TransactionId, _Writing] = {}
        self._committed: TransactionId | None = None
        """The newest that this committer has committed."""

    def begin(self, ctx: WriterContext) -> TransactionId:
        sink = name_sink_in_database(ctx.directory_id, ctx.job_id, ctx.uid)
        task = ctx.task_attempt_id
        driver = mark_of(ctx.nonce) if ctx.directory_id else ""
        txn = TransactionId(sink, ctx.attempt, ctx.epoch, ctx.partition, task, driver)
        database = self._target.connect()
        try:
            if _in_the_way(database.prepared(), txn):
                database.limit_lock_wait(_WAIT_FOR_OTHER_ATTEMPT_S)
            rows = CheckedRows(self._target, database, ctx)
            database.begin(txn)
        except BaseException:
            database.close()
            raise
        self._open[txn] = _Writing(database, ctx, rows)
        return txn

    def write(self, txn: TransactionId, element: Any) -> None:
        self.write_batch(txn, Batch(self._open[txn].ctx.type, [element]))

    def write_batch(self, txn: TransactionId, batch: Batch) -> None:
        writing = self._open[txn]
        names, columns = writing.rows.take(batch)
        try:
            writing.database.insert(names, columns)
        except LockTimeoutError as error:
            with DriverConnection(self._target) as database:
                others = _in_the_way(database.prepared(), txn)
            if not others:
                raise
            whose = "this task" if others[0].attempt == txn.attempt else "the job"
            raise EpochConflictError(
                f"{sink_label(writing.ctx.job, writing.ctx.uid)}: {others[0].name}, which another "
                f"attempt of {whose} has prepared, may hold rows that this one writes: {error}"
            ) from error

    def pre_commit(self, txn: TransactionId) -> TransactionId:
        writing = self._open[txn]
        check_owner_in_task(writing.database, writing.ctx)
        write_marker(writing.database, txn)
        writing.preparing = True
        writing.database.prepare(txn)
        del self._open[txn]
        writing.database.close()
        return txn

    def commit(self, txn: TransactionId) -> None:
        """Commit what is prepared; if it is gone, the marker tells whether it was committed."""
        self._driver.run(lambda database: self._commit(database, txn))
        if self._committed is None or self._committed.version < txn.version:
            self._committed = txn

    def _commit(self, database: Database, txn: TransactionId) -> None:
        if not database.commit_prepared(txn) and not has_committed(database, txn):
            raise SinkError(
                f"{self._target!r}: rows of task {txn.partition} in epoch {txn.epoch} are lost: "
                f"{database.where} neither has the prepared transaction {txn.name} nor a record "
                "that it was committed. It may have been rolled back by hand, or the database "
                "restored from a backup. Start the job from an earlier checkpoint"
            )

    def roll_back_losers(self, ctx: CommitterContext) -> None:
        """Roll back what slower attempts of tasks prepared in epochs that are committed.

        To be called when everything up to an epoch is committed: what is still prepared of such an
        epoch, or of an older attempt of the job, is not what counted, however late it came.
        """
        newest = self._committed
        if newest is None or newest.attempt != ctx.attempt:
            return
        for txn in self.dangling(ctx):
            if txn.version > newest.version:
                continue
            try:
                self.abort(txn)
            except SinkError as error:
                _LOG.warning("%s: %s will be rolled back later: %s", ctx.uid, txn.name, error)

    def abort(self, txn: TransactionId) -> None:
        writing = self._open.pop(txn, None)
        if writing is None:
            self._driver.run(lambda database: database.roll_back_prepared(txn))
            return
        writing.database.close()  # the server rolls back what is not prepared
        if writing.preparing:  # and if only the reply was lost, it is prepared
            with DriverConnection(self._target) as database:
                database.roll_back_prepared(txn)

    def close(self) -> None:
        self._driver.close()

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return _info(self.decode(transaction, ctx))

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        """What this sink has prepared, also before a fresh start of the job, or before an upgrade.

        Among the latter may be what a copy of the job has prepared: its names were the same.
        """
        before = name_without_directory(ctx.job_id, ctx.uid)
        uid = before.rpartition(":")[2]
        prepared = self._driver.run(lambda database: database.prepared())
        return [
            _info(txn)
            for txn in prepared
            if txn.sink == before
            or (txn.directory == ctx.directory_id != "" and txn.sink.rpartition(":")[2] == uid)
        ]

    def dangling(self, ctx: CommitterContext) -> Iterable[TransactionId]:
        """What this attempt has prepared, and what any older one of this job directory has.

        Of older attempts it is everything, whatever the sink was called and whatever the id of the
        job was: all that they had promised was committed before.
        """
        return self._driver.run(lambda database: self._dangling(database, ctx))

    def _dangling(self, database: Database, ctx: CommitterContext) -> list[TransactionId]:
        prepared = [txn for txn in database.prepared() if txn.attempt <= ctx.attempt]
        before = name_without_directory(ctx.job_id, ctx.uid)
        unclear = [txn for txn in prepared if txn.sink == before]
        if unclear and ctx.directory_id and not TableOwner(database, ctx).owns_alone():
            unclear = []  # they may be those of a copy of this job, or of what it was copied from
        mine = [txn for txn in prepared if txn.directory == ctx.directory_id != ""]
        return unclear + [txn for txn in mine if _is_dangling(txn, ctx)]


def _is_dangling(txn: TransactionId, ctx: CommitterContext) -> bool:
    """Whether a transaction of this job directory is of this attempt's sink or an older attempt."""
    if txn.attempt < ctx.attempt:
        # On another machine there may be another job in a directory of the same name.
        return known_nonce(ctx, txn) is not None
    sink = name_sink_in_database(ctx.directory_id, ctx.job_id, ctx.uid)
    return txn.sink == sink and txn.driver in ("", mark_of(ctx.nonce))


def _info(txn: TransactionId) -> TransactionInfo:
    waiting = "transactions that need the rows it has locked"
    return TransactionInfo(what=txn.name, id=txn.name, epoch=txn.epoch, waiting=waiting)


_WAIT_FOR_OTHER_ATTEMPT_S = 2.0
"""How long a task waits for rows of another attempt. Only the time to recover depends on it: one
that gives up too soon makes the driver replay an epoch that Spark would have finished."""


def _in_the_way(prepared: Iterable[TransactionId], txn: TransactionId) -> list[TransactionId]:
    """What may hold rows against a task and is no task's to wait for: the driver settles it.

    Other attempts of the same task in the same epoch, and older attempts of the job, whatever the
    sink was called. All that the latter had promised is committed before the first task.
    """
    return [other for other in prepared if _is_copy(other, txn) or _is_older(other, txn)]


def _is_copy(other: TransactionId, txn: TransactionId) -> bool:
    return other != txn and msgspec.structs.replace(other, task=txn.task) == txn


def _is_older(other: TransactionId, txn: TransactionId) -> bool:
    mine = other.directory == txn.directory if txn.directory else other.sink == txn.sink
    return mine and other.attempt < txn.attempt


class PublishedRows(WriteAheadSink):
    """Rows that the driver inserts or updates, all of an epoch in one transaction."""

    def __init__(self, target: SqlSink) -> None:
        self._target = target
        self._driver = DriverConnection(target)

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return _RehearsingWriter(self._target, ctx)

    def published(self, ctx: CommitterContext) -> int:
        return self._driver.run(lambda database: SinkProgress(database, ctx).known().version)

    def publish(self, ctx: CommitterContext, output: StagedOutput) -> None:
        self._driver.run(lambda database: self._publish(database, ctx, output))

    def _publish(self, database: Database, ctx: CommitterContext, output: StagedOutput) -> None:
        fields = self._target.fields(output.type)
        names = [field.column for field in fields]
        columns = ([b.arrow.column(field.position) for field in fields] for b in output.batches())
        progress = SinkProgress(database, ctx)
        progress.create()
        database.begin()
        # In the same transaction: a former owner or driver that wakes up here writes nothing.
        TableOwner(database, ctx).check(hold=True)
        if progress.known(hold=True).version >= output.version:
            database.roll_back()
            return
        database.upsert(names, self._target.key, columns)
        progress.record(output.version)
        database.commit()

    def close(self) -> None:
        self._driver.close()

    def __repr__(self) -> str:
        return repr(self._target)


class _RehearsingWriter(GuardedWriter):
    """Stages the elements of a task that the table takes.

    What is staged is promised, and the driver publishes it after the checkpoint: too late to find
    out that the table refuses it. So each task publishes its rows into a copy of the table first,
    which is without rows and which nobody else sees.
    """

    def __init__(self, target: SqlSink, ctx: WriterContext) -> None:
        super().__init__(ctx)
        self._target = target
        self._staging = StagingWriter(ctx)
        self._database: Database | None = None
        self._rows: CheckedRows | None = None

    def _add(self, batch: Batch) -> None:
        if self._database is None or self._rows is None:
            self._database = self._target.connect()
            self._rows = CheckedRows(self._target, self._database, self._ctx)
            self._database.begin_rehearsal()
        names, columns = self._rows.take(batch)
        self._database.rehearse(names, self._target.key, columns)
        self._staging.write(batch)

    def prepare(self) -> bytes | None:
        self._close()
        return self._staging.prepare()

    def abort(self) -> None:
        self._close()
        self._staging.abort()

    def _close(self) -> None:
        self._closed = True
        database = self._database
        self._database = None
        if database is not None:
            database.close()


EXACTLY_ONCE = "exactly-once"
UPSERT = "upsert"
_PRUNE_EVERY = 256


class SqlSink(Sink):
    """A table as the target of a stream; see the subclasses.

    Subclasses are pickled to tasks: they hold how to connect, and no connection.
    """

    kind: ClassVar[str]
    needs_checkpoints = True
    holds_locks = True
    parameters: dict[str, Any]
    """How to connect, without anything secret."""
    password_from: str | None
    _secrets: dict[str, Any]
    """Secret parameters other than the password, by name; they are told nowhere either."""

    def __init__(
        self,
        table: str,
        columns: Sequence[str] | Mapping[str, str] | None,
        mode: str,
        key: str | Sequence[str] | None,
    ) -> None:
        self.table = _table(type(self).__name__, table)
        self.columns = _columns(type(self).__name__, columns)
        self.mode, self.key = _mode(type(self).__name__, mode, key)

    @abstractmethod
    def connect(self) -> Database:
        """Open a connection."""

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return self._rows().writer(ctx)

    def check_target(self, ctx: CommitterContext) -> None:
        """Check everything that can be checked before the job starts; writes nothing."""
        with DriverConnection(self) as database:
            self._check(database, ctx)
            owner = TableOwner(database, ctx)
            owner.check_target()
            progress = SinkProgress(database, ctx, owner.job_before())
            progress.check_start(prepares=self.mode == EXACTLY_ONCE)

    def acquire_target(self, ctx: CommitterContext) -> None:
        with DriverConnection(self) as database:
            self._check(database, ctx)
            create_helpers(database)
            owner = TableOwner(database, ctx)
            progress = SinkProgress(database, ctx, owner.job_before())
            prepares = self.mode == EXACTLY_ONCE
            progress.check_start(prepares=prepares)
            owner.acquire_target()
            if ctx.take_over:
                progress.take_over(prepares=prepares)

    def committer(self, ctx: CommitterContext) -> Committer:
        with DriverConnection(self) as database:
            self._check(database, ctx)
            create_helpers(database)
        return SqlCommitter(self, self._rows(), ctx)

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return self._rows().explain(transaction, ctx)

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        rows = self._rows()
        try:
            return list(rows.list_orphans(ctx))
        finally:
            rows.close()

    def fields(self, type_: TypeInfo) -> list[WrittenField]:
        """The fields of the stream that are written.

        Raises:
            ConfigurationError: The stream does not have them all.
        """
        fields = stream_columns(type_)
        names = [name for name, _ in fields]
        columns = self.columns or {name: name for name in names}
        unknown = [name for name in columns if name not in names]
        if unknown:
            raise ConfigurationError(
                f"{self!r}: columns contains {', '.join(map(repr, unknown))}, but the stream has "
                f"{', '.join(map(repr, names))}"
            )
        indexes = {names.index(name): column for name, column in columns.items()}
        return [WrittenField(i, column, fields[i][1]) for i, column in indexes.items()]

    def _check(self, database: Database, ctx: CommitterContext) -> None:
        if self.mode == EXACTLY_ONCE:
            database.check_prepared_transactions()
        found = {column.name: column for column in database.columns()}
        where = f"{sink_label(ctx.job, ctx.uid)}: table {self.table!r} in {database.where}"
        if not found:
            raise ConfigurationError(
                f"{where} does not exist, or the user is not allowed to see it"
            )
        database.check_privileges(self.mode)
        if ctx.type is None:
            return
        fields = self.fields(ctx.type)
        written = {field.column for field in fields}
        problems = [
            f"has no column {field.column!r} ({field.type})"
            for field in fields
            if field.column not in found
        ]
        for field in fields:
            column = found.get(field.column)
            if column is None:
                continue
            if column.generated:
                problems.append(f"generates {column.name!r} itself, so it cannot be written")
            elif (reason := database.objection(field.type, column)) is not None:
                text = (
                    f"has {column.name!r} as {column.declared}, which does not accept {field.type}"
                )
                problems.append(f"{text}: {reason}" if reason else text)
        problems += [
            f"requires {column.name!r} ({column.declared}), which the stream does not have"
            for column in found.values()
            if column.required and column.name not in written
        ]
        if missing := [name for name in self.key if name not in written]:
            problems.append(f"has the key {', '.join(missing)}, which the sink does not write")
        elif self.key:
            problems += _key_problems(self.key, written, found, database.unique_indexes())
        if self.mode == UPSERT:
            problems += database.unrehearsed(written - set(self.key), written)
        if problems:
            raise ConfigurationError(
                f"{where} {'; it '.join(problems)}. Its columns: "
                + ", ".join(f"{c.name} {c.declared}" for c in found.values())
            )
        if self.mode == UPSERT:
            database.begin_rehearsal()  # as each task will
            database.roll_back()

    def _rows(self) -> PreparedRows | PublishedRows:
        return PreparedRows(self) if self.mode == EXACTLY_ONCE else PublishedRows(self)

    def describe(self) -> dict[str, str]:
        described = {"kind": self.kind, "table": self.table, "mode": self.mode}
        described["parameters"] = msgspec.json.encode(self.parameters).decode()
        if self.password_from:
            described["password_from"] = self.password_from
        if self._secrets:
            described["secrets"] = msgspec.json.encode(sorted(self._secrets)).decode()
        if self.columns:
            described["columns"] = msgspec.json.encode(self.columns).decode()
        if self.key:
            described["key"] = msgspec.json.encode(self.key).decode()
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> Self | None:
        """The sink that `describe` described; its password comes from the environment.

        None if it needs other secrets, which are stored nowhere.
        """
        if "secrets" in description:
            return None
        if "table" not in description:
            raise ConfigurationError("the description of a table's sink has no table")
        arguments: dict[str, Any] = {
            "table": description["table"],
            "mode": description.get("mode", EXACTLY_ONCE),
            "columns": msgspec.json.decode(description.get("columns", "null")),
            "key": msgspec.json.decode(description.get("key", "null")),
            "password_from": description.get("password_from"),
        }
        return cls(**arguments, **msgspec.json.decode(description.get("parameters", "{}")))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(table={self.table!r}, mode={self.mode!r})"


class SqlCommitter:
    """Commits only as long as the table is this job's, and this attempt the newest."""

    def __init__(
        self,
        sink: SqlSink,
        inner: PreparedRows | PublishedRows,
        ctx: CommitterContext,
    ) -> None:
        self._sink = sink
        self._ctx = ctx
        self._inner = inner
        self._committer = inner.committer(ctx)
        self._driver = DriverConnection(sink)
        self._commits = 0
        self._oldest_marked: int | None = None

    def commit(self, transactions: Sequence[bytes]) -> None:
        if not transactions:
            return
        if isinstance(self._inner, PreparedRows):
            self._commit_prepared(self._inner, transactions)
        else:
            self._committer.commit(transactions)
        self._commits += 1

    def _commit_prepared(self, rows: PreparedRows, transactions: Sequence[bytes]) -> None:
        if not self._commits:
            self._driver.run(lambda database: SinkProgress(database, self._ctx).begin_attempt())
        self._driver.run(lambda database: self._commit_as_owner(database, transactions))
        rows.roll_back_losers(self._ctx)
        if self._commits % _PRUNE_EVERY == 0:
            self._remove_old_markers(min(rows.decode(t, self._ctx).version for t in transactions))

    def _commit_as_owner(self, database: Database, transactions: Sequence[bytes]) -> None:
        """Commit prepared transactions, by another connection, while nobody can take over."""
        database.begin()
        TableOwner(database, self._ctx).check(hold=True)
        self._committer.commit(transactions)
        database.commit()

    def _remove_old_markers(self, oldest: int) -> None:
        """Remove markers from before what was committed when this was called last.

        What was committed just now, from the version `oldest` on, may be asked for again: that it
        is done is not recorded yet.
        """
        before = self._oldest_marked
        self._oldest_marked = oldest
        ctx = self._ctx
        name = name_sink_in_database(ctx.directory_id, ctx.job_id, ctx.uid)
        if before is not None:
            self._driver.run(lambda database: remove_old_markers(database, name, before))

    def abort(self, transactions: Sequence[bytes]) -> None:
        self._committer.abort(transactions)

    def recover(self, pending: Sequence[bytes]) -> None:
        self.commit(pending)
        self._committer.recover(())
        if isinstance(self._inner, PublishedRows):
            self._roll_back_prepared()

    def _roll_back_prepared(self) -> None:
        """Roll back what sinks of this job have prepared before their mode was changed.

        Such rows are locked, and the first one that is to be updated would wait for ever.
        """
        rows = PreparedRows(self._sink)
        try:
            if self._may_list_prepared(rows):
                rows.committer(self._ctx).recover(())
        finally:
            rows.close()

    def _may_list_prepared(self, rows: PreparedRows) -> bool:
        """Whether the user may list prepared rows; who may not has never prepared any."""
        try:
            rows.dangling(self._ctx)
        except ConfigurationError as error:
            _LOG.debug("%s: %s", sink_label(self._ctx.job, self._ctx.uid), error)
            return False
        return True

    def close(self) -> None:
        self._driver.close()
        if isinstance(self._committer, ClosingCommitter):
            self._committer.close()
        self._inner.close()

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        self._committer.abort_orphans(known)


def _key_problems(
    key: Sequence[str],
    written: Collection[str],
    found: Mapping[str, TableColumn],
    indexes: Sequence[UniqueIndex],
) -> list[str]:
    """Why rows cannot be told apart by a key, and by nothing else."""
    listed = ", ".join(key)
    of_key = [index for index in indexes if set(index.columns) == set(key)]
    problems = [
        f"has the unique index {index.name!r} on ({listed}), which cannot be used: {index.problem}"
        for index in of_key
        if index.problem is not None
    ]
    if not of_key:
        problems.append(f"has no primary key or unique constraint on ({listed})")
    for name in key:
        if found[name].folds is not None:
            problems.append(
                f"treats different values of the key column {name!r} as equal: {found[name].folds}"
            )
    for index in indexes:
        if index in of_key or _never_in_the_way(index, key, written, found):
            continue
        columns = ", ".join(name or "an expression" for name in index.columns)
        problems.append(
            f"has another unique index, {index.name!r} on ({columns}), in which rows with "
            "different keys can be equal: one would replace the other, or could never be "
            "written. Drop it, or make it non-unique"
        )
    return problems


def _never_in_the_way(
    index: UniqueIndex,
    key: Sequence[str],
    written: Collection[str],
    found: Mapping[str, TableColumn],
) -> bool:
    """Whether two rows that an index takes for equal always have the same key, or never exist."""
    if index.problem is None and None not in index.columns and set(index.columns) >= set(key):
        return True
    return any(
        name is not None and name not in written and found[name].unique_by_itself
        for name in index.columns
    )


def positive(sink: str, name: str, seconds: Any) -> float:
    """A number of seconds, or `ConfigurationError`."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise ConfigurationError(
            f"{sink}: {name} must be a number of seconds above 0, not {seconds!r}"
        )
    return float(seconds)


def _table(sink: str, table: str) -> str:
    if not isinstance(table, str) or not table.strip() or "\0" in table:
        raise ConfigurationError(f"{sink}: table must be the name of a table, not {table!r}")
    if table.count(".") > 1 or not all(table.split(".")):
        raise ConfigurationError(f"{sink}: table must be 'table' or 'schema.table', not {table!r}")
    return table


def _columns(sink: str, columns: Any) -> dict[str, str] | None:
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        chosen = dict(columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str | bytes):
        chosen = dict(zip(columns, columns, strict=True))
        if len(chosen) != len(columns):
            raise ConfigurationError(f"{sink}: columns contains a field twice: {list(columns)!r}")
    else:
        chosen = {}
    names = [*chosen, *chosen.values()]
    if not chosen or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(
            f"{sink}: columns must be a list of the fields to write, or a dict from field to "
            f"column, not {columns!r}"
        )
    if len(set(chosen.values())) != len(chosen):
        raise ConfigurationError(f"{sink}: columns contains a column twice: {columns!r}")
    return chosen


def _mode(sink: str, mode: str, key: Any) -> tuple[str, tuple[str, ...]]:
    if mode not in (EXACTLY_ONCE, UPSERT):
        raise ConfigurationError(
            f"{sink}: mode must be {EXACTLY_ONCE!r} or {UPSERT!r}, not {mode!r}"
        )
    names = column_names(f"{sink}: key", key or ())
    if mode == UPSERT and not names:
        raise ConfigurationError(f"{sink}: upsert needs key, the columns that identify a row")
    if mode == EXACTLY_ONCE and names:
        raise ConfigurationError(
            f"{sink}: key requires mode={UPSERT!r}; {EXACTLY_ONCE!r} adds a row for every element"
        )
    return mode, names
