"""What `pymysql` sees of a MariaDB server, kept by a server in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymysql import err

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
)

TEXT = "varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_CATALOGUE: dict[str, tuple[Any, ...]] = {
    TEXT: ("varchar", "varchar(200)", 200, 800, "utf8mb4", "utf8mb4_bin"),
    "bigint": ("bigint", "bigint(20)", None, None, None, None),
}
"""What the catalogue has of types: name, whole type, characters, bytes, character set and
collation."""
_XID = "'(.*)','(.*)'"
_LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'|(NULL)|(-?\d+)|(\), \()|, ")


class MariaDbSession(Session):
    """A session of MariaDB: a statement that fails has no effect, and its transaction goes on.

    A transaction that was prepared belongs to its session as long as that lasts; only then can
    others settle it.
    """

    settings = frozenset(
        {"set_lock_timeout", "set_something", "has_table", "has_column", "columns"}
        | {"unique_indexes", "engine", "explain", "begin_block", "start", "end_branch"}
        | {"make_rehearsal", "unrehearsed"}
    )
    reads = frozenset({"select", "greatest", "list_prepared"})
    forms = forms(
        ("BEGIN", "begin_block"),
        ("COMMIT", "commit_block"),
        ("ROLLBACK", "roll_back_block"),
        (f"XA START {_XID}", "start"),
        (f"XA END {_XID}", "end_branch"),
        (f"XA PREPARE {_XID}", "prepare"),
        (f"XA COMMIT {_XID}", "commit_prepared"),
        (f"XA ROLLBACK {_XID}", "roll_back_prepared"),
        ("XA RECOVER", "list_prepared"),
        ("SET SESSION (?:sql_mode.* )?innodb_lock_wait_timeout = %s", "set_lock_timeout"),
        ("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "set_something"),
        ("SELECT 1 FROM information_schema.tables .*", "has_table"),
        ("SELECT 1 FROM information_schema.columns .*", "has_column"),
        ("SELECT column_name, .*", "columns"),
        ("SELECT index_name, .*", "unique_indexes"),
        (r"\nSELECT 'foreign key' .*", "unrehearsed"),
        ("SELECT engine .*", "engine"),
        ("EXPLAIN .*", "explain"),
        (r"CREATE TEMPORARY TABLE IF NOT EXISTS (\w+) LIKE (\w+)", "make_rehearsal"),
        (r"INSERT INTO (\w+) \(([\w, ]+)\) VALUES \(([^%]*?)\)(?: ON DUPLICATE KEY UPDATE (.*))?",
         "insert_literals"),
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.branch: str | None = None
        """The XA transaction that is open or prepared here."""
        self.is_prepared = False

    def run(self, sql: str, parameters: Parameters = ()) -> Answer:
        before = dict(self.transaction.changes) if self.transaction is not None else {}
        if self.is_prepared and not sql.startswith("XA "):
            raise err.OperationalError(1399, "XAER_RMFAIL: in the PREPARED state")
        try:
            return super().run(sql, parameters)
        except Exception:
            if self.transaction is not None:
                self.transaction.changes = before
            raise

    def end(self) -> None:
        super().end()
        self._leave_branch()

    def _leave_branch(self) -> None:
        self.branch = None
        self.is_prepared = False

    # -- transactions

    def begin_block(self, parameters: Parameters) -> Answer:
        self._require_no_branch()
        self.commit()
        self.begin()
        return 0, []

    def commit_block(self, parameters: Parameters) -> Answer:
        self._require_no_branch()
        self.commit()
        return 0, []

    def roll_back_block(self, parameters: Parameters) -> Answer:
        self._require_no_branch()
        self.roll_back()
        return 0, []

    def _require_no_branch(self) -> None:
        if self.branch is not None:
            raise err.OperationalError(1399, "XAER_RMFAIL: there is an XA transaction")

    def start(self, parameters: Parameters, sink: str, branch: str) -> Answer:
        self._require_no_branch()
        name = f"{sink}:{branch}"
        if name in self.server.prepared or any(s.branch == name for s in self._others()):
            raise err.OperationalError(1440, "XAER_DUPID: The XID already exists")
        self.begin()
        self.branch = name
        return 0, []

    def _others(self) -> list[MariaDbSession]:
        return [s for s in self.server.sessions if isinstance(s, MariaDbSession)]

    def end_branch(self, parameters: Parameters, sink: str, branch: str) -> Answer:
        if self.branch != f"{sink}:{branch}":
            raise err.OperationalError(1397, "XAER_NOTA: Unknown XID")
        return 0, []

    def prepare(self, parameters: Parameters, sink: str, branch: str) -> Answer:
        if self.branch != f"{sink}:{branch}" or self.transaction is None:
            raise err.OperationalError(1397, "XAER_NOTA: Unknown XID")
        self.server.prepared[self.branch] = self.transaction
        self.transaction = None
        self.roll_back()
        self.is_prepared = True
        return 0, []

    def commit_prepared(self, parameters: Parameters, sink: str, branch: str) -> Answer:
        return self._settle_prepared(f"{sink}:{branch}", commit=True)

    def roll_back_prepared(self, parameters: Parameters, sink: str, branch: str) -> Answer:
        return self._settle_prepared(f"{sink}:{branch}", commit=False)

    def _settle_prepared(self, name: str, *, commit: bool) -> Answer:
        if self.in_block:
            raise err.OperationalError(1400, "XAER_OUTSIDE: Some work is done outside")
        held = any(s.branch == name for s in self._others() if s is not self)
        if held or name not in self.server.prepared:
            raise err.OperationalError(1397, "XAER_NOTA: Unknown XID")
        self.server.settle(self.server.prepared.pop(name), commit=commit)
        if self.branch == name:
            self._leave_branch()
        return 0, []

    def list_prepared(self, parameters: Parameters) -> Answer:
        rows: list[tuple[Any, ...]] = []
        for name in self.server.prepared:
            sink, _, branch = name.rpartition(":")
            rows.append((1, len(sink), len(branch), sink + branch))
        return len(rows), rows

    # -- what there is

    def set_lock_timeout(self, parameters: Parameters) -> Answer:
        self.lock_timeout = float(parameters[0])
        return 0, []

    def set_something(self, parameters: Parameters) -> Answer:
        return 0, []

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
            base, whole, *text = _CATALOGUE[plain]
            rows.append((name, base, whole, int(plain == kind), None, "", *text))
        return len(rows), rows

    def unique_indexes(self, parameters: Parameters) -> Answer:
        rows: list[tuple[Any, ...]] = []
        for columns in self.table(parameters[1]).unique:
            rows += [("_".join(columns), column, None) for column in columns]
        return len(rows), rows

    def unrehearsed(self, parameters: Parameters) -> Answer:
        return 0, []

    def engine(self, parameters: Parameters) -> Answer:
        return 1, [("InnoDB",)]

    def explain(self, parameters: Parameters) -> Answer:
        return 1, [()]

    # -- rows

    def changed(self, found: list[tuple[int, Row]], new: Row) -> int:
        """Rows that have the new values already do not count."""
        return sum(any(row[column] != new[column] for column in new) for _, row in found)

    def make_rehearsal(self, parameters: Parameters, name: str, like: str) -> Answer:
        model = self.table(like)
        self.temporary.setdefault(name, Table(name, dict(model.columns), model.unique))
        return 0, []

    def insert_literals(
        self, parameters: Parameters, name: str, columns: str, values: str, updates: str | None
    ) -> Answer:
        table = self.table(name)
        names = columns.split(", ")
        rows = [dict(zip(names, row, strict=True)) for row in _rows(values)]

        def add(transaction: Transaction) -> Answer:
            if updates is None:
                return self.add(table, rows)
            updated = [part.split(" = ")[0] for part in updates.split(", ")]
            (key,) = table.unique
            return self.add_or_update(table, rows, key, updated)

        return self.within(add)


def _rows(values: str) -> Iterator[list[Any]]:
    """What follows VALUES, without the outermost parentheses."""
    row: list[Any] = []
    for match in _LITERAL.finditer(values):
        text, null, number, end = match.groups()
        if end is not None:
            yield row
            row = []
        elif text is not None or null is not None:
            row.append(text)
        elif number is not None:
            row.append(int(number))
    yield row


def _found(is_there: bool) -> Answer:
    return int(is_there), [(1,)] if is_there else []


class MariaDbConnection(Connection):
    """What `pymysql.connect` returns."""

    def __init__(self, server: Server) -> None:
        super().__init__(MariaDbSession(server))
        self._rows: list[tuple[Any, ...]] = []

    @property
    def open(self) -> bool:
        return not self.is_lost

    def close(self) -> None:
        self.leave()

    @contextmanager
    def cursor(self) -> Iterator[MariaDbConnection]:
        yield self

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        with translated():
            count, self._rows = self.ask(sql, parameters)
        return count

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


@contextmanager
def translated() -> Iterator[None]:
    """What the server says, as the errors of the client library."""
    try:
        yield
    except LockTimeoutError:
        raise err.OperationalError(1205, "Lock wait timeout exceeded") from None
    except DuplicateError as error:
        raise err.IntegrityError(1062, f"Duplicate entry in {error}") from None
    except RefusedError as error:
        raise err.OperationalError(1021, f"Disk full: {error}") from None
    except SessionOverError:
        raise err.OperationalError(2013, "Lost connection") from None
