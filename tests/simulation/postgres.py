"""What `psycopg` sees of a PostgreSQL server, kept by a server in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

from simulation.sql import (
    Answer,
    Connection,
    DuplicateError,
    LockTimeoutError,
    Parameters,
    RefusedError,
    Row,
    Server,
    Session,
    SessionOverError,
    Table,
    Transaction,
    forms,
    parsed,
)

_CATALOGUE = {"text": ("text", "text", "S"), "bigint": ("int8", "bigint", "N")}
"""What the catalogue calls types, how it shows them, and their category."""


class PostgresSession(Session):
    """A session of PostgreSQL: a statement that fails spoils its transaction."""

    settings = frozenset(
        {"set_lock_timeout", "schema", "has_table", "has_column", "columns", "unique_indexes"}
        | {"most_prepared", "may", "begin_block", "make_rehearsal", "make_rows", "add_column"}
        | {"set_savepoint", "return_to_savepoint", "unrehearsed"}
    )
    reads = frozenset({"select", "greatest", "list_prepared"})
    forms = forms(
        ("BEGIN", "begin_block"),
        ("COMMIT", "commit_block"),
        ("ROLLBACK", "roll_back_block"),
        ("PREPARE TRANSACTION '(.*)'", "prepare"),
        ("COMMIT PREPARED '(.*)'", "commit_prepared"),
        ("ROLLBACK PREPARED '(.*)'", "roll_back_prepared"),
        ("SELECT gid FROM pg_catalog.pg_prepared_xacts .*", "list_prepared"),
        ("SAVEPOINT before", "set_savepoint"),
        ("ROLLBACK TO SAVEPOINT before", "return_to_savepoint"),
        (r"SELECT set_config\('lock_timeout', %s, false\)", "set_lock_timeout"),
        (r"SELECT coalesce\(current_schema\(\), 'public'\)", "schema"),
        ("SELECT 1 FROM pg_catalog.pg_tables .*", "has_table"),
        ("SELECT 1 FROM pg_catalog.pg_attribute .*", "has_column"),
        ("SELECT a.attname, .*", "columns"),
        ("SELECT c.relname, array_agg.*", "unique_indexes"),
        (r"\nWITH target AS .*", "unrehearsed"),
        ("SHOW max_prepared_transactions", "most_prepared"),
        ("SELECT has_table_privilege.*", "may"),
        (r"CREATE TEMPORARY TABLE (\w+) \(LIKE (\w+) INCLUDING ALL\) ON COMMIT DROP",
         "make_rehearsal"),
        (r"CREATE TEMPORARY TABLE (\w+) ON COMMIT DROP AS SELECT ([\w, ]+) FROM (\w+) "
         "WITH NO DATA", "make_rows"),
        (r"INSERT INTO (\w+) \(([\w, ]+)\) SELECT DISTINCT ON \(([\w, ]+)\) [\w, ]+ FROM (\w+) "
         r"ORDER BY .* ON CONFLICT \([\w, ]+\) DO (?:NOTHING|UPDATE SET (.*))", "upsert"),
        (r"COPY (\w+) \(([\w, ]+)\) FROM STDIN", "copy"),
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.has_failed = False
        self._before: list[tuple[dict[Any, Any], dict[str, Table]]] = []

    def run(self, sql: str, parameters: Parameters = ()) -> Answer:
        name, _ = parsed(type(self), sql)
        ends = ("commit_block", "roll_back_block", "prepare", "return_to_savepoint")
        if self.has_failed and name not in ends:
            raise errors.InFailedSqlTransaction("current transaction is aborted")
        try:
            return super().run(sql, parameters)
        except Exception:
            self.has_failed = self.in_block
            raise

    def refuse(self) -> None:
        self.has_failed = self.in_block

    # -- transactions

    def _settle(self, *, commit: bool) -> None:
        super()._settle(commit=commit and not self.has_failed)
        self.has_failed = False
        self.temporary = {}
        self._before = []

    def begin_block(self, parameters: Parameters) -> Answer:
        if not self.in_block:
            self.begin()
        return -1, []

    def commit_block(self, parameters: Parameters) -> Answer:
        self.commit()
        return -1, []

    def roll_back_block(self, parameters: Parameters) -> Answer:
        self.roll_back()
        return -1, []

    def prepare(self, parameters: Parameters, name: str) -> Answer:
        """Without an open transaction, or if it has failed, this does nothing."""
        if self.transaction is None or self.has_failed:
            self.roll_back()
            return -1, []
        if name in self.server.prepared:
            self.roll_back()
            raise errors.DuplicateObject(f"transaction identifier {name} is already in use")
        self.server.prepared[name] = self.transaction
        self.transaction = None
        self.roll_back()
        return -1, []

    def commit_prepared(self, parameters: Parameters, name: str) -> Answer:
        return self._settle_prepared(name, commit=True)

    def roll_back_prepared(self, parameters: Parameters, name: str) -> Answer:
        return self._settle_prepared(name, commit=False)

    def _settle_prepared(self, name: str, *, commit: bool) -> Answer:
        if self.in_block:
            raise errors.ActiveSqlTransaction("it cannot run inside a transaction block")
        if name not in self.server.prepared:
            raise errors.UndefinedObject(f"prepared transaction {name} does not exist")
        self.server.settle(self.server.prepared.pop(name), commit=commit)
        return -1, []

    def list_prepared(self, parameters: Parameters) -> Answer:
        found = [(name,) for name in self.server.prepared]
        return len(found), found

    def set_savepoint(self, parameters: Parameters) -> Answer:
        assert self.transaction is not None
        self._before.append((dict(self.transaction.changes), dict(self.temporary)))
        return -1, []

    def return_to_savepoint(self, parameters: Parameters) -> Answer:
        assert self.transaction is not None
        changes, temporary = self._before[-1]
        self.transaction.changes = dict(changes)
        self.temporary = dict(temporary)
        self.has_failed = False
        return -1, []

    # -- what there is

    def set_lock_timeout(self, parameters: Parameters) -> Answer:
        self.lock_timeout = float(parameters[0].removesuffix("s"))
        return 1, [(parameters[0],)]

    def schema(self, parameters: Parameters) -> Answer:
        return 1, [("public",)]

    def has_table(self, parameters: Parameters) -> Answer:
        return _found(parameters[1] in self.server.tables)

    def has_column(self, parameters: Parameters) -> Answer:
        table = self.server.tables.get(parameters[1])
        return _found(table is not None and parameters[2] in table.columns)

    def columns(self, parameters: Parameters) -> Answer:
        table = self.server.tables.get(parameters[1])
        rows: list[tuple[Any, ...]] = []
        for name, kind in table.columns.items() if table is not None else ():
            plain = kind.removesuffix(" NOT NULL")
            base, shown, category = _CATALOGUE[plain]
            rows.append((name, base, shown, -1, plain != kind, None, "", False, True, category))
        return len(rows), rows

    def unique_indexes(self, parameters: Parameters) -> Answer:
        table = self.table(parameters[0].rpartition(".")[2].strip('"'))
        rows: list[tuple[Any, ...]] = []
        for columns in table.unique:
            name = "_".join((table.name, *columns, "key"))
            rows.append((name, list(columns), True, True, True, True))
        return len(rows), rows

    def unrehearsed(self, parameters: Parameters) -> Answer:
        return 0, []

    def most_prepared(self, parameters: Parameters) -> Answer:
        return 1, [("100",)]

    def may(self, parameters: Parameters) -> Answer:
        return 1, [(True,) * len(parameters)]

    # -- rows

    def make_rehearsal(self, parameters: Parameters, name: str, like: str) -> Answer:
        model = self.table(like)
        self.temporary[name] = Table(name, dict(model.columns), model.unique)
        return -1, []

    def make_rows(self, parameters: Parameters, name: str, columns: str, like: str) -> Answer:
        model = self.table(like)
        self.temporary[name] = Table(name, {c: model.columns[c] for c in columns.split(", ")})
        return -1, []

    def upsert(
        self,
        parameters: Parameters,
        name: str,
        columns: str,
        keys: str,
        source: str,
        updates: str | None,
    ) -> Answer:
        key = tuple(keys.split(", "))
        names = columns.split(", ")
        updated = [part.split(" = ")[0] for part in updates.split(", ")] if updates else []
        assert self.transaction is not None
        last: dict[tuple[Any, ...], Row] = {}
        for _, row in self.transaction.rows(self.table(source)):
            last[tuple(row[column] for column in key)] = {column: row[column] for column in names}
        ordered = [last[values] for values in sorted(last)]
        return self.add_or_update(self.table(name), ordered, key, updated)

    def copy(self, parameters: Parameters, name: str, columns: str) -> Answer:
        table = self.table(name)
        names = columns.split(", ")

        def add(transaction: Transaction) -> Answer:
            lines = [line.split("\t") for line in parameters[0].splitlines()]
            rows = [dict(zip(names, line, strict=True)) for line in lines]
            return self.add(table, [_read(table, row) for row in rows])

        return self.within(add)


def _read(table: Table, row: Row) -> Row:
    """A line of COPY as values; the tables of the simulation have texts and numbers."""
    return {column: _value(table.columns[column], text) for column, text in row.items()}


def _value(kind: str, text: str) -> Any:
    if text == r"\N":
        return None
    return int(text) if kind.startswith("bigint") else text


def _found(is_there: bool) -> Answer:
    return int(is_there), [(1,)] if is_there else []


class PostgresConnection(Connection):
    """What `psycopg.connect` returns."""

    def __init__(self, server: Server) -> None:
        super().__init__(PostgresSession(server))

    @property
    def closed(self) -> bool:
        return self.is_lost

    def close(self) -> None:
        self.leave()

    def cursor(self) -> PostgresConnection:
        return self

    def execute(self, sql: str, parameters: Parameters | None = None) -> Result:
        with translated():
            return Result(*self.ask(sql, parameters))

    @contextmanager
    def copy(self, statement: str) -> Iterator[Copy]:
        copy = Copy()
        yield copy
        with translated():
            self.ask(statement, ["".join(copy.texts)])


class Copy:
    """What is being copied into a table."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        self.texts.append(text)


class Result:
    """A cursor with an answer."""

    def __init__(self, rowcount: int, rows: Sequence[tuple[Any, ...]]) -> None:
        self.rowcount = rowcount
        self._rows = list(rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


@contextmanager
def translated() -> Iterator[None]:
    """What the server says, as the errors of the client library."""
    try:
        yield
    except LockTimeoutError:
        raise errors.LockNotAvailable("canceling statement due to lock timeout") from None
    except DuplicateError as error:
        raise errors.UniqueViolation(f"duplicate key value in {error}") from None
    except RefusedError as error:
        raise errors.DiskFull(str(error)) from None
    except SessionOverError:
        raise psycopg.OperationalError("the connection is lost") from None
