"""`SqlSink`: what `PostgresSink` and `MySqlSink` have in common."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec

from turnback.connectors.sql.database import (
    Database,
    TableColumn,
    UniqueIndex,
    WrittenField,
    create_helpers,
    name_sink_in_database,
    remove_old_markers,
)
from turnback.connectors.sql.owner import TableOwner
from turnback.connectors.sql.progress import SinkProgress
from turnback.connectors.sql.rows import DriverConnection, PreparedRows, PublishedRows
from turnback.core.errors import ConfigurationError
from turnback.sinks.base import (
    ClosingCommitter,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    name_sink,
)
from turnback.values.columns import stream_columns
from turnback.values.typeinfo import TypeInfo

_LOG = logging.getLogger(__name__)
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

    def check_claim(self, ctx: CommitterContext) -> None:
        """Check everything that can be checked before the job starts; writes nothing."""
        with DriverConnection(self) as database:
            self._check(database, ctx)
            owner = TableOwner(database, ctx)
            owner.check_claim()
            progress = SinkProgress(database, ctx, owner.job_before())
            progress.check_start(prepares=self.mode == EXACTLY_ONCE)

    def claim(self, ctx: CommitterContext) -> None:
        with DriverConnection(self) as database:
            self._check(database, ctx)
            create_helpers(database)
            owner = TableOwner(database, ctx)
            progress = SinkProgress(database, ctx, owner.job_before())
            prepares = self.mode == EXACTLY_ONCE
            progress.check_start(prepares=prepares)
            owner.claim()
            if ctx.take_over:
                progress.take_over(prepares=prepares)

    def committer(self, ctx: CommitterContext) -> Committer:
        with DriverConnection(self) as database:
            self._check(database, ctx)
            create_helpers(database)
        return SqlCommitter(self, self._rows(), ctx)

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return self._rows().explain(transaction, ctx)

    def left_behind(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        rows = self._rows()
        try:
            return list(rows.left_behind(ctx))
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
                f"{self!r}: columns names {', '.join(map(repr, unknown))}, but the stream has "
                f"{', '.join(map(repr, names))}"
            )
        indexes = {names.index(name): column for name, column in columns.items()}
        return [WrittenField(i, column, fields[i][1]) for i, column in indexes.items()]

    def _check(self, database: Database, ctx: CommitterContext) -> None:
        if self.mode == EXACTLY_ONCE:
            database.check_prepared_transactions()
        found = {column.name: column for column in database.columns()}
        where = f"{name_sink(ctx.job, ctx.uid)}: table {self.table!r} in {database.where}"
        if not found:
            raise ConfigurationError(f"{where} does not exist, or its user may not see it")
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
                problems.append(f"generates {column.name!r} itself, so that it cannot be written")
            elif (reason := database.objection(field.type, column)) is not None:
                told = f"has {column.name!r} as {column.declared}, which does not take {field.type}"
                problems.append(f"{told}: {reason}" if reason else told)
        problems += [
            f"requires {column.name!r} ({column.declared}), which the stream does not have"
            for column in found.values()
            if column.required and column.name not in written
        ]
        if missing := [name for name in self.key if name not in written]:
            problems.append(f"is to have the key {', '.join(missing)}, which is not written")
        elif self.key:
            problems += _key_problems(self.key, written, found, database.unique_indexes())
        if self.mode == UPSERT:
            problems += database.unrehearsed(written - set(self.key))
        if problems:
            raise ConfigurationError(
                f"{where} {'; it '.join(problems)}. It has: "
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
            _LOG.debug("%s: %s", name_sink(self._ctx.job, self._ctx.uid), error)
            return False
        return True

    def close(self) -> None:
        self._driver.close()
        if isinstance(self._committer, ClosingCommitter):
            self._committer.close()
        self._inner.close()

    def discard_others(self, known: Sequence[bytes]) -> None:
        self._committer.discard_others(known)


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
                f"takes different values of the key column {name!r} for equal: {found[name].folds}"
            )
    for index in indexes:
        if index in of_key or _never_in_the_way(index, key, written, found):
            continue
        columns = ", ".join(name or "an expression" for name in index.columns)
        problems.append(
            f"has another unique index, {index.name!r} on ({columns}), by which rows of different "
            "keys can be equal: one would replace the other, or could never be written. Drop it, "
            "or make it an index that is not unique"
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
        raise ConfigurationError(f"{sink}: {name} is a number of seconds above 0, not {seconds!r}")
    return float(seconds)


def _table(sink: str, table: str) -> str:
    if not isinstance(table, str) or not table.strip() or "\0" in table:
        raise ConfigurationError(f"{sink}: table is the name of a table, not {table!r}")
    if table.count(".") > 1 or not all(table.split(".")):
        raise ConfigurationError(f"{sink}: give 'table' or 'schema.table', not {table!r}")
    return table


def _columns(sink: str, columns: Any) -> dict[str, str] | None:
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        chosen = dict(columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str | bytes):
        chosen = dict(zip(columns, columns, strict=True))
        if len(chosen) != len(columns):
            raise ConfigurationError(f"{sink}: columns names a field twice: {list(columns)!r}")
    else:
        chosen = {}
    names = [*chosen, *chosen.values()]
    if not chosen or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(
            f"{sink}: columns is a list of the fields to write, or a dict from field to column, "
            f"not {columns!r}"
        )
    if len(set(chosen.values())) != len(chosen):
        raise ConfigurationError(f"{sink}: columns names a column twice: {columns!r}")
    return chosen


def _mode(sink: str, mode: str, key: Any) -> tuple[str, tuple[str, ...]]:
    if mode not in (EXACTLY_ONCE, UPSERT):
        raise ConfigurationError(f"{sink}: mode is {EXACTLY_ONCE!r} or {UPSERT!r}, not {mode!r}")
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise ConfigurationError(
            f"{sink}: key is the name of a column, or a list of different ones, not {key!r}"
        )
    if mode == UPSERT and not names:
        raise ConfigurationError(
            f"{sink}: upsert needs key, the columns that say which row is meant"
        )
    if mode == EXACTLY_ONCE and names:
        raise ConfigurationError(
            f"{sink}: key is for mode={UPSERT!r}; {EXACTLY_ONCE!r} adds a row for every element"
        )
    return mode, names
