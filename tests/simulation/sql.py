"""A SQL server in memory: what Turnback's sinks use of PostgreSQL and MariaDB, and no more.

Tables, transactions at READ COMMITTED, locks of rows and of unique keys, and transactions that are
prepared under a name: those keep their locks and survive a restart, all others do not. What the two
servers do differently is in `postgres` and `mariadb`, which are what client libraries see of it.
`tests/systems/sql/test_simulated_databases.py` holds both to their real servers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
Row = dict[str, Any]
Parameters = Sequence[Any]


class LockTimeoutError(Exception):
    """Another transaction holds a lock for too long."""


class DuplicateError(Exception):
    """There is such a row already."""


class RefusedError(Exception):
    """The server cannot do it now, for no fault of the client."""


class SessionOverError(Exception):
    """The server has ended the session, or its answer does not come."""


class Network:
    """How clients reach a server: here at once and always."""

    def process(self) -> Any:
        """Who is calling."""

    def call(self, session: Session, what: str, action: Callable[[], T], *, writes: bool) -> T:
        return action()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds; False if it takes too long."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def see(self, server: Server, transaction: Transaction) -> None:
        """Called when a transaction is about to be committed."""

    def has_noticed_end(self, session: Session) -> bool:
        """Whether the server knows by now that a client has left."""
        return session.has_left


@dataclass(eq=False)
class Table:
    """A table, and the rows that are committed, in the order in which they became visible."""

    name: str
    columns: dict[str, str]
    """The type of each."""
    unique: tuple[tuple[str, ...], ...] = ()
    rows: dict[int, Row] = field(default_factory=dict)


@dataclass(eq=False)
class Transaction:
    """What somebody has changed and locked, visible to nobody else."""

    process: Any = None
    """Who has begun it."""
    changes: dict[tuple[Table, int], Row | None] = field(default_factory=dict)
    """New rows and new values by table and number; None for a row that was deleted."""
    locks: list[tuple[Any, ...]] = field(default_factory=list)

    def rows(self, table: Table) -> Iterator[tuple[int, Row]]:
        """What this transaction sees of a table."""
        changed = {number: row for (of, number), row in self.changes.items() if of is table}
        for number, row in table.rows.items():
            if number not in changed:
                yield number, row
        for number, seen in changed.items():
            if seen is not None:
                yield number, seen

    def row(self, table: Table, number: int) -> Row | None:
        if (table, number) in self.changes:
            return self.changes[table, number]
        return table.rows.get(number)


class Server:
    """The server itself, and everything in its one database."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tables: dict[str, Table] = {}
        self.prepared: dict[str, Transaction] = {}
        self.sessions: list[Session] = []
        self.numbers = count(1)
        self._locks: dict[tuple[Any, ...], dict[Transaction, bool]] = {}

    def create(self, name: str, definition: str) -> None:
        """Create a table; the definition is what SQL has between the parentheses."""
        self.tables[name] = parsed_table(name, definition)

    def restart(self) -> None:
        for session in list(self.sessions):
            session.end()

    def lock(self, session: Session, key: tuple[Any, ...], *, exclusive: bool = True) -> None:
        """Wait until nobody else has a lock that excludes this one, and take it."""
        transaction = session.transaction
        assert transaction is not None

        def is_free() -> bool:
            self.end_sessions_of_clients_that_left()
            holders = self._locks.get(key, {})
            others = [shut for holder, shut in holders.items() if holder is not transaction]
            return session.is_over or not (others and (exclusive or any(others)))

        if not is_free() and not self.network.wait(is_free, session.lock_timeout):
            raise LockTimeoutError
        session.require_not_over()
        holders = self._locks.setdefault(key, {})
        holders[transaction] = exclusive or holders.get(transaction, False)
        transaction.locks.append(key)

    def settle(self, transaction: Transaction, *, commit: bool) -> None:
        if commit:
            self.network.see(self, transaction)
            for (table, number), row in transaction.changes.items():
                if row is None:
                    table.rows.pop(number, None)
                else:
                    table.rows[number] = row
        for key in transaction.locks:
            holders = self._locks.get(key, {})
            holders.pop(transaction, None)
            if not holders:
                self._locks.pop(key, None)

    def end_sessions_of_clients_that_left(self) -> None:
        for session in list(self.sessions):
            if not session.is_busy and self.network.has_noticed_end(session):
                session.end()


Answer = tuple[int, list[tuple[Any, ...]]]
"""How many rows a statement has changed or found, and those it returns."""


class Session:
    """A connection as the server sees it. Subclasses add what a server has of its own.

    Attributes:
        process: Who is connected, where somebody can be killed.
        has_left: The client has closed the connection, or lost it.
        is_busy: A statement is being run; the server notices nothing meanwhile.
        is_over: The server has ended it; what was not prepared is rolled back.
    """

    forms: tuple[tuple[re.Pattern[str], str], ...] = ()
    """Statements by their form, and the method for each."""

    settings: frozenset[str] = frozenset()
    """Methods that ask for nothing that matters, or change nothing that others see."""
    reads: frozenset[str] = frozenset({"select", "greatest"})

    def __init__(self, server: Server) -> None:
        self.server = server
        self.process = server.network.process()
        self.lock_timeout = 60.0
        self.transaction: Transaction | None = None
        self.in_block = False
        self.temporary: dict[str, Table] = {}
        self.has_left = False
        self.is_busy = False
        self.is_over = False
        self.leaves_at: tuple[float, float] | None = None
        server.sessions.append(self)

    def run(self, sql: str, parameters: Parameters = ()) -> Answer:
        """Run a statement, in the open transaction or in one of its own."""
        self.server.end_sessions_of_clients_that_left()
        self.require_not_over()
        name, groups = parsed(type(self), sql)
        self.is_busy = True
        try:
            answer: Answer = getattr(self, name)(parameters, *groups)
            return answer
        finally:
            self.is_busy = False

    def refuse(self) -> None:
        """Fail a statement, without an effect of it."""

    def require_not_over(self) -> None:
        if self.is_over:
            raise SessionOverError

    def end(self) -> None:
        self.is_over = True
        self.roll_back()
        if self in self.server.sessions:
            self.server.sessions.remove(self)

    # -- transactions

    def begin(self) -> None:
        self.transaction = Transaction(self.process)
        self.in_block = True

    def commit(self) -> None:
        self._settle(commit=True)

    def roll_back(self) -> None:
        self._settle(commit=False)

    def _settle(self, *, commit: bool) -> None:
        transaction = self.transaction
        self.transaction = None
        self.in_block = False
        if transaction is not None:
            self.server.settle(transaction, commit=commit)

    def within(self, action: Callable[[Transaction], Answer]) -> Answer:
        """Do something in the open transaction, or in one of its own that is committed."""
        if self.in_block:
            assert self.transaction is not None
            return action(self.transaction)
        self.transaction = Transaction(self.process)
        try:
            answer = action(self.transaction)
        except BaseException:
            self.roll_back()
            raise
        self.commit()
        return answer

    # -- tables

    def table(self, name: str) -> Table:
        return self.temporary.get(name) or self.server.tables[name]

    def create_table(self, parameters: Parameters, name: str, columns: str) -> Answer:
        if name not in self.server.tables:
            self.server.tables[name] = parsed_table(name, columns)
        return 0, []

    def add_column(self, parameters: Parameters, name: str, column: str, kind: str) -> Answer:
        self.table(name).columns[column] = kind
        return 0, []

    # -- rows

    def insert(self, parameters: Parameters, name: str, columns: str) -> Answer:
        row = dict(zip(columns.split(", "), parameters, strict=True))
        return self.within(lambda _: self.add(self.table(name), [row]))

    def add(self, table: Table, rows: Iterable[Row]) -> Answer:
        """Insert rows; waits for others who insert equal ones, to learn whether they do."""
        assert self.transaction is not None
        added = 0
        for row in rows:
            whole = {column: row.get(column) for column in table.columns}
            for unique in table.unique:
                if self._locked_equal(table, unique, whole) is not None:
                    raise DuplicateError(table.name)
            self.transaction.changes[table, next(self.server.numbers)] = whole
            added += 1
        return added, []

    def add_or_update(
        self, table: Table, rows: Iterable[Row], key: tuple[str, ...], updated: Sequence[str]
    ) -> Answer:
        """Insert rows, or update those with the same key."""
        assert self.transaction is not None
        changed = 0
        for row in rows:
            whole = {column: row.get(column) for column in table.columns}
            number = self._locked_equal(table, key, whole)
            if number is None:
                self.transaction.changes[table, next(self.server.numbers)] = whole
            else:
                self.server.lock(self, (table, number))
                found = self.transaction.row(table, number)
                assert found is not None
                values = {column: row[column] for column in updated}
                self.transaction.changes[table, number] = {**found, **values}
            changed += 1
        return changed, []

    def _locked_equal(self, table: Table, unique: tuple[str, ...], row: Row) -> int | None:
        """Lock a key against everybody else; the number of the row that has it."""
        assert self.transaction is not None
        key = tuple(row[column] for column in unique)
        if None in key:
            return None
        self.server.lock(self, (table, unique, key))
        for number, other in self.transaction.rows(table):
            if tuple(other[column] for column in unique) == key:
                return number
        return None

    def update(self, parameters: Parameters, name: str, values: str, where: str) -> Answer:
        columns = [value.split(" = ")[0] for value in values.split(", ")]
        new = dict(zip(columns, parameters, strict=False))
        table = self.table(name)
        matches = condition(where, parameters[len(columns) :])

        def change(transaction: Transaction) -> Answer:
            found = self.found(transaction, table, matches, exclusive=True)
            for number, row in found:
                transaction.changes[table, number] = {**row, **new}
            return self.changed(found, new), []

        return self.within(change)

    def changed(self, found: list[tuple[int, Row]], new: Row) -> int:
        """How many rows a server says it has changed."""
        return len(found)

    def delete(self, parameters: Parameters, name: str, where: str) -> Answer:
        table = self.table(name)
        matches = condition(where, parameters)

        def remove(transaction: Transaction) -> Answer:
            found = self.found(transaction, table, matches, exclusive=True)
            for number, _ in found:
                transaction.changes[table, number] = None
            return len(found), []

        return self.within(remove)

    def select(
        self,
        parameters: Parameters,
        distinct: str | None,
        columns: str,
        name: str,
        where: str,
        order: str | None,
        offset: str | None,
        lock: str | None,
    ) -> Answer:
        table = self.table(name)
        matches = condition(where, parameters)
        names = columns.split(", ")

        def read(transaction: Transaction) -> Answer:
            exclusive = None if lock is None else "UPDATE" in lock
            found = self.found(transaction, table, matches, exclusive=exclusive)
            rows = [tuple(1 if n == "1" else row[n] for n in names) for _, row in found]
            if distinct:
                rows = list(dict.fromkeys(rows))
            if order:
                rows.sort(reverse=True)
            if offset:
                rows = rows[int(offset) : int(offset) + 1]
            return len(rows), rows

        return self.within(read)

    def greatest(
        self, parameters: Parameters, group: str, column: str, name: str, where: str
    ) -> Answer:
        """The greatest value of a column for each value of another one."""
        columns = f"{group}, {column}"
        _, rows = self.select(parameters, None, columns, name, where, None, None, None)
        greatest = dict(sorted(rows))
        return len(greatest), list(greatest.items())

    def found(
        self,
        transaction: Transaction,
        table: Table,
        matches: Callable[[Row], bool],
        *,
        exclusive: bool | None,
    ) -> list[tuple[int, Row]]:
        """Rows that match; those that are locked are looked at again when they are."""
        found = [(number, row) for number, row in transaction.rows(table) if matches(row)]
        if exclusive is None:
            return found
        kept = []
        for number, _ in found:
            self.server.lock(self, (table, number), exclusive=exclusive)
            row = transaction.row(table, number)
            if row is not None and matches(row):
                kept.append((number, row))
        return kept


class Connection:
    """A connection as its client sees it: one that is lost cannot be used again."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_lost = False

    def ask(self, sql: str, parameters: Parameters | None) -> Answer:
        """Have a statement run.

        Raises:
            SessionOverError: It was run, or will be, or not.
        """
        return self.do(sql, lambda: self.session.run(sql, parameters or ()), parameters)

    def do(self, sql: str, action: Callable[[], Answer], parameters: Parameters | None) -> Answer:
        session = self.session
        if self.is_lost:
            raise SessionOverError
        name, _ = parsed(type(session), sql)
        try:
            if name in session.settings:
                return action()
            what = f"{sql} {list(parameters)}" if parameters else sql
            network = session.server.network
            return network.call(session, what, action, writes=name not in session.reads)
        except SessionOverError:
            self.leave()
            raise

    def leave(self) -> None:
        self.is_lost = True
        self.session.has_left = True


FORMS = (
    (r"CREATE TABLE (?:IF NOT EXISTS )?(\w+) \((.*)\)", "create_table"),
    (r"ALTER TABLE (\w+) ADD COLUMN (\w+) (\w+)", "add_column"),
    (r"INSERT INTO (\w+) \(([\w, ]+)\) VALUES \([%s, ]+\)", "insert"),
    (r"UPDATE (\w+) SET (.*) WHERE (.*)", "update"),
    (r"DELETE FROM (\w+) WHERE (.*)", "delete"),
    (r"SELECT (\w+), max\((\w+)\) FROM (\w+) WHERE (.*) GROUP BY \w+", "greatest"),
    (
        r"SELECT (DISTINCT )?([\w, ]+) FROM (\w+) WHERE (.*?)( ORDER BY version DESC)?"
        r"(?: LIMIT 1 OFFSET (\d+))?( FOR UPDATE| FOR SHARE| LOCK IN SHARE MODE)?",
        "select",
    ),
)


def forms(*own: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """The statements that a server knows: its own ones first."""
    return tuple((re.compile(form, re.DOTALL), name) for form, name in (*own, *FORMS))


@lru_cache(maxsize=4096)
def parsed(kind: type[Session], sql: str) -> tuple[str, tuple[str | None, ...]]:
    """The method that runs a statement, and the parts of it."""
    plain = re.sub(r"[\"`]", "", sql)
    plain = re.sub(r"\b(?:public|shop|pg_temp)\.", "", plain)
    for form, name in kind.forms:
        if match := form.fullmatch(plain):
            return name, match.groups()
    raise NotImplementedError(f"the simulated server does not know: {sql}")


def parsed_table(name: str, definition: str) -> Table:
    columns = {}
    unique = []
    for key in re.findall(r"(?:PRIMARY KEY|UNIQUE) \(([\w, ]+)\)", definition):
        unique.append(tuple(key.split(", ")))
    rest = re.sub(r", (?:PRIMARY KEY|UNIQUE) \([\w, ]+\)", "", definition)
    for part in rest.split(", "):
        column, kind = part.split(" ", 1)
        columns[column] = kind.removesuffix(" PRIMARY KEY")
        if kind.endswith(" PRIMARY KEY"):
            unique.append((column,))
    return Table(name, columns, tuple(unique))


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda value, other: value == other,
    "<>": lambda value, other: value is not None and value != other,
    "<=": lambda value, other: value is not None and value <= other,
    "<": lambda value, other: value is not None and value < other,
    ">": lambda value, other: value is not None and value > other,
}
Test = Callable[[Row], bool]
_PLAIN = re.compile(r"(\w+) (=|<>|<=|<|>) %s")
_AMONG = re.compile(r"(\w+) IN \(([%s, ]+)\)")
_EITHER = re.compile(r"\((\w+) = %s OR LEFT\((\w+), (\d+)\) = %s\)")
_BEGINS = re.compile(r"LEFT\((\w+), (\d+)\) = %s")


def condition(where: str, parameters: Parameters) -> Test:
    """What follows WHERE, as a function of a row."""
    values = iter(parameters)
    tests = [bind(values) for bind in _terms(where)]
    if len(tests) == 1:
        return tests[0]
    return lambda row: all(holds(row) for holds in tests)


@lru_cache(maxsize=256)
def _terms(where: str) -> list[Callable[[Iterator[Any]], Test]]:
    """For each term, what makes a test of it, given the values of all that follow."""
    return [_term(term) for term in where.split(" AND ")]


def _term(term: str) -> Callable[[Iterator[Any]], Test]:
    if match := _PLAIN.fullmatch(term):
        return partial(_compares, match[1], _COMPARED[match[2]])
    if match := _AMONG.fullmatch(term):
        return partial(_is_among, match[1], len(match[2].split(", ")))
    if match := _EITHER.fullmatch(term):
        return partial(_is_or_begins, match[1], int(match[3]))
    if match := _BEGINS.fullmatch(term):
        return partial(_begins, match[1], int(match[2]))
    raise NotImplementedError(f"the simulated server does not know: {term}")


def _compares(column: str, compare: Callable[[Any, Any], bool], values: Iterator[Any]) -> Test:
    value = next(values)
    return lambda row: compare(row[column], value)


def _is_among(column: str, count: int, values: Iterator[Any]) -> Test:
    among = [next(values) for _ in range(count)]
    return lambda row: row[column] in among


def _is_or_begins(column: str, length: int, values: Iterator[Any]) -> Test:
    whole = next(values)
    start = next(values)
    return lambda row: row[column] == whole or row[column][:length] == start


def _begins(column: str, length: int, values: Iterator[Any]) -> Test:
    start = next(values)
    return lambda row: row[column][:length] == start
