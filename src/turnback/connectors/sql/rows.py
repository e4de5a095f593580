"""How rows get into a table: in transactions that tasks prepare, or published by the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.connectors.sql.database import (
    Database,
    LockTimeoutError,
    LostConnectionError,
    TableColumn,
    TransactionId,
    WrittenField,
    has_committed,
    mark_of,
    name_sink_in_database,
    name_without_directory,
    write_marker,
)
from turnback.connectors.sql.owner import TableOwner, check_owner_in_task
from turnback.connectors.sql.progress import SinkProgress, known_nonce
from turnback.connectors.sql.values import Limits, check_spelling, check_values
from turnback.core.errors import EpochConflictError, SinkError
from turnback.sinks.base import (
    CommitterContext,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    aborted_on_failure,
    name_sink,
    require_open,
)
from turnback.sinks.staged_elements import StagingWriter
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.sinks.write_ahead import StagedOutput, WriteAheadSink
from turnback.values.columns import Batch
from turnback.values.typeinfo import TypeInfo

_LOG = logging.getLogger(__name__)

R = TypeVar("R")


class Target(Protocol):
    """A table that can be connected to."""

    key: tuple[str, ...]

    def connect(self) -> Database: ...

    def fields(self, type_: TypeInfo) -> list[WrittenField]: ...


class DriverConnection:
    """A connection of the driver, opened when it is needed and again when it was lost."""

    def __init__(self, target: Target) -> None:
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

    def __init__(self, target: Target, database: Database, ctx: WriterContext) -> None:
        self._target = target
        self._sink = name_sink(ctx.job, ctx.uid)
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
        """Return the names of the columns, and their values.

        Raises:
            SinkError: The table would refuse a value, or change it.
        """
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
        wanted = pc.unique(texts.drop_null()).to_pylist()
        if not wanted:
            return
        try:
            spelled = self._database.respelled(column, wanted)
        except LostConnectionError:
            raise
        except SinkError as error:
            raise SinkError(f"{where} does not take a text: {error}") from error
        check_spelling(spelled, where, is_json=column.is_json)


@dataclass
class _Writing:
    """A task's transaction under way."""

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

    def __init__(self, target: Target) -> None:
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
                f"{name_sink(writing.ctx.job, writing.ctx.uid)}: {others[0].name}, which another "
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
                f"{database.where} neither has the prepared transaction {txn.name} "
                "nor a record that it was committed. Was it rolled back by hand, or the database "
                "restored from a backup? Start the job from an earlier checkpoint"
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
                _LOG.warning("%s: %s is rolled back later: %s", ctx.uid, txn.name, error)

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

    def left_behind(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
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
    waiting = "whoever needs the rows that it has locked"
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

    def __init__(self, target: Target) -> None:
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


class _RehearsingWriter(SinkWriter):
    """Stages the elements of a task that the table takes.

    What is staged is promised, and the driver publishes it after the checkpoint: too late to find
    out that the table refuses it. So each task publishes its rows into a copy of the table first,
    which is without rows and which nobody else sees.
    """

    def __init__(self, target: Target, ctx: WriterContext) -> None:
        self._target = target
        self._ctx = ctx
        self._staging = StagingWriter(ctx)
        self._database: Database | None = None
        self._rows: CheckedRows | None = None
        self._closed = False

    def write(self, batch: Batch) -> None:
        require_open(self._closed, name_sink(self._ctx.job, self._ctx.uid))
        if not len(batch):
            return
        with aborted_on_failure(self):
            self._rehearse(batch)
            self._staging.write(batch)

    def _rehearse(self, batch: Batch) -> None:
        if self._database is None or self._rows is None:
            self._database = self._target.connect()
            self._rows = CheckedRows(self._target, self._database, self._ctx)
            self._database.begin_rehearsal()
        names, columns = self._rows.take(batch)
        self._database.rehearse(names, self._target.key, columns)

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
