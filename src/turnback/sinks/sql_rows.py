"""How rows get into a table: in transactions that tasks prepare, or published by the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from turnback.core.errors import SinkError
from turnback.sinks.base import CommitterContext, TransactionInfo, WriterContext
from turnback.sinks.sql_database import (
    Database,
    LostConnectionError,
    TransactionId,
    WrittenField,
    advance,
    has_committed,
    name_sink_in_database,
    progress,
    write_marker,
)
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.sinks.write_ahead import StagedOutput, WriteAheadSink
from turnback.types.columns import Batch
from turnback.types.typeinfo import TypeInfo

GRACE_S = 5.0
"""How long a task waits before it rolls another attempt of itself back.

A copy of a task that Spark started while the first was about to finish is killed within two
seconds; if it had rolled the first one back by then, a promised transaction would be lost.
"""

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
        database, self._database = self._database, None
        if database is not None:
            database.close()


@dataclass
class _Writing:
    """A task's transaction under way."""

    database: Database
    type: TypeInfo
    preparing: bool = False


class PreparedRows(TwoPhaseCommitSink[TransactionId]):
    """Rows in prepared transactions, one per task and epoch, each with a marker of its own."""

    transaction_type = TransactionId

    def __init__(self, target: Target) -> None:
        self._target = target
        self._driver = DriverConnection(target)
        self._open: dict[TransactionId, _Writing] = {}

    def begin(self, ctx: WriterContext) -> TransactionId:
        sink = name_sink_in_database(ctx.job_id, ctx.uid)
        txn = TransactionId(sink, ctx.attempt, ctx.epoch, ctx.partition, ctx.task_attempt_id)
        database = self._target.connect()
        try:
            _roll_back_others(database, txn)
            database.begin(txn)
        except BaseException:
            database.close()
            raise
        self._open[txn] = _Writing(database, ctx.type)
        return txn

    def write(self, txn: TransactionId, element: Any) -> None:
        self.write_batch(txn, Batch(self._open[txn].type, [element]))

    def write_batch(self, txn: TransactionId, batch: Batch) -> None:
        fields = self._target.fields(batch.type)
        columns = [batch.arrow.column(field.position) for field in fields]
        self._open[txn].database.insert([field.column for field in fields], columns)

    def pre_commit(self, txn: TransactionId) -> TransactionId:
        writing = self._open[txn]
        write_marker(writing.database, txn)
        writing.preparing = True
        writing.database.prepare(txn)
        del self._open[txn]
        writing.database.close()
        return txn

    def commit(self, txn: TransactionId) -> None:
        """Commit what is prepared; if it is gone, the marker tells whether it was committed."""
        self._driver.run(lambda database: self._commit(database, txn))

    def _commit(self, database: Database, txn: TransactionId) -> None:
        if not database.commit_prepared(txn) and not has_committed(database, txn):
            raise SinkError(
                f"{self._target!r}: rows of task {txn.partition} in epoch {txn.epoch} are lost: "
                f"{database.where} neither has the prepared transaction {txn.name} "
                "nor a record that it was committed. Was it rolled back by hand, or the database "
                "restored from a backup? Start the job from an earlier checkpoint"
            )

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
        return [_info(txn) for txn in self.dangling(ctx)]

    def dangling(self, ctx: CommitterContext) -> Iterable[TransactionId]:
        sink = name_sink_in_database(ctx.job_id, ctx.uid)
        prepared = self._driver.run(lambda database: database.prepared())
        return [txn for txn in prepared if txn.sink == sink and txn.attempt <= ctx.attempt]


def _info(txn: TransactionId) -> TransactionInfo:
    waiting = "whoever needs the rows that it has locked"
    return TransactionInfo(what=txn.name, id=txn.name, epoch=txn.epoch, waiting=waiting)


def _roll_back_others(database: Database, txn: TransactionId) -> None:
    """Roll back what would hold locks against a task: older attempts of the job, and of the task.

    All that older attempts of the job had promised is committed before the first task of this one.
    """
    ours = [other for other in database.prepared() if other.sink == txn.sink]
    copies = [other for other in ours if other.is_same_task(txn)]
    if copies:
        time.sleep(GRACE_S)
    for other in (*copies, *(other for other in ours if other.attempt < txn.attempt)):
        database.roll_back_prepared(other)


class PublishedRows(WriteAheadSink):
    """Rows that the driver inserts or updates, all of an epoch in one transaction."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._driver = DriverConnection(target)

    def published(self, ctx: CommitterContext) -> int:
        sink = name_sink_in_database(ctx.job_id, ctx.uid)
        return self._driver.run(lambda database: progress(database, sink))

    def publish(self, ctx: CommitterContext, output: StagedOutput) -> None:
        sink = name_sink_in_database(ctx.job_id, ctx.uid)
        self._driver.run(lambda database: self._publish(database, sink, output))

    def _publish(self, database: Database, sink: str, output: StagedOutput) -> None:
        fields = self._target.fields(output.type)
        names = [field.column for field in fields]
        columns = ([b.arrow.column(field.position) for field in fields] for b in output.batches())
        database.begin()
        # Whoever finds it done is late: a repeated publish, or a driver that was replaced.
        if advance(database, sink, output.version):
            database.upsert(names, self._target.key, columns)
            database.commit()
        else:
            database.roll_back()

    def close(self) -> None:
        self._driver.close()
