"""Defects of the SQL sinks to plant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from turnback.connectors.sql import sink as sql_rows
from turnback.connectors.sql.owner import Progress, SinkProgress, TableOwner
from turnback.connectors.sql.sink import PreparedRows, PublishedRows


def _task_rolls_back_what_its_copy_prepared() -> Any:
    honest = PreparedRows.begin

    def begin(self: Any, ctx: Any) -> Any:
        txn = honest(self, ctx)
        with sql_rows.DriverConnection(self._target) as database:
            for other in database.prepared():
                same = (other.sink, other.version, other.partition)
                if same == (txn.sink, txn.version, txn.partition):
                    database.roll_back_prepared(other)
        return txn

    return mock.patch.object(PreparedRows, "begin", begin)


def _losers_are_rolled_back_in_epochs_that_wait() -> Any:
    def roll_back(self: Any, ctx: Any) -> None:
        for txn in self.dangling(ctx):
            self.abort(txn)

    return mock.patch.object(PreparedRows, "roll_back_losers", roll_back)


def _what_is_gone_never_counts_as_committed() -> Any:
    return mock.patch.object(sql_rows, "has_committed", lambda database, txn: False)


def _publishes_without_looking_at_progress() -> Any:
    return mock.patch.object(SinkProgress, "known", lambda self, hold=False: Progress())


def _publishes_whoever_owns_the_table() -> Any:
    return mock.patch.object(TableOwner, "check", lambda self, hold=False: None)


def _takes_over_what_is_promised() -> Any:
    return mock.patch.object(TableOwner, "_refuse_unsettled", lambda self, owner: None)


def _commits_in_two_transactions() -> Any:
    """Progress is recorded before the rows are there."""

    def publish(self: Any, database: Any, ctx: Any, output: Any) -> None:
        fields = self._target.fields(output.type)
        names = [field.column for field in fields]
        columns = ([b.arrow.column(field.position) for field in fields] for b in output.batches())
        progress = SinkProgress(database, ctx)
        database.begin()
        TableOwner(database, ctx).check(hold=True)
        if progress.known(hold=True).version >= output.version:
            database.roll_back()
            return
        progress.record(output.version)
        database.commit()
        database.begin()
        database.upsert(names, self._target.key, columns)
        database.commit()

    return mock.patch.object(PublishedRows, "_publish", publish)


PREPARED = ("postgres", "mariadb")
PUBLISHED = ("postgres-upsert", "mariadb-set")
SQL_PLANTS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "sql-task-rolls-back-copies": (_task_rolls_back_what_its_copy_prepared, PREPARED),
    "sql-rolls-back-what-waits": (_losers_are_rolled_back_in_epochs_that_wait, PREPARED),
    "sql-gone-is-lost": (_what_is_gone_never_counts_as_committed, PREPARED),
    "sql-no-progress": (_publishes_without_looking_at_progress, PUBLISHED),
    "sql-no-owner": (_publishes_whoever_owns_the_table, PUBLISHED),
    "sql-takes-over-promises": (_takes_over_what_is_promised, PREPARED),
    "sql-two-transactions": (_commits_in_two_transactions, PUBLISHED),
}
"""Each with the sinks that have it."""
