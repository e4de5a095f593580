"""The simulated SQL servers promise what the real ones do: the same steps, on each of them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import psycopg
import pyarrow as pa
import pymysql
import pytest

from services import mariadb as real_mariadb
from services import postgres as real_postgres
from simulation import databases
from simulation.mariadb import MariaDbConnection
from simulation.postgres import PostgresConnection
from simulation.sql import Network, Server
from turnback.connectors.sql import MySqlSink, PostgresSink, mysql
from turnback.connectors.sql.database import (
    HELPERS,
    Database,
    LostConnectionError,
    TransactionId,
    create_helpers,
    has_committed,
    write_marker,
)
from turnback.connectors.sql.sink import SqlSink
from turnback.errors import SinkError

SINK = "turnback:0123456789ab:job:sink"
FIRST, SECOND = TransactionId(SINK, 1, 1, 0, 1, "x"), TransactionId(SINK, 1, 1, 0, 2, "x")


class Place(ABC):
    """A server, real or simulated, with the tables of the simulation in it."""

    kind: str

    def __init__(self) -> None:
        self._connections: list[Database] = []

    def sink(self, table: str, lock_timeout: float = 20.0) -> SqlSink:
        more: dict[str, Any] = {"table": table, "lock_timeout": lock_timeout}
        if table in ("newest", "all"):
            more |= {"mode": "upsert", "key": "key"}
        return self._sink(more)

    @abstractmethod
    def _sink(self, more: dict[str, Any]) -> SqlSink: ...

    @abstractmethod
    def restart(self) -> None: ...

    def connect(self, table: str = "rows", lock_timeout: float = 20.0) -> Database:
        connection = self.sink(table, lock_timeout).connect()
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        with_prepared = self.connect()
        for txn in with_prepared.prepared():
            with_prepared.roll_back_prepared(txn)
        with_prepared.close()

    def rows(self, table: str = "rows") -> list[tuple[Any, ...]]:
        """What readers see."""
        database = self.connect(table)
        quoted = '"key"' if self.kind == "postgres" else "`key`"
        rows = database.query(
            f"SELECT {quoted}, n FROM {database.helper(table)} WHERE n <= %s", (1000,)
        )
        database.close()
        return sorted(rows)


class RealPlace(Place):
    """A real server."""

    def __init__(self, kind: str, server: Any) -> None:
        super().__init__()
        self.kind = kind
        self._server = server
        server.roll_back_prepared()
        quote = '"' if kind == "postgres" else "`"
        for name in HELPERS:
            server.run(f"DROP TABLE IF EXISTS {name}")
        for name, keys in databases.TABLES.items():
            columns = f"key {databases.TEXTS[kind]} NOT NULL, n bigint NOT NULL"
            definition = columns.replace("key ", f"{quote}key{quote} ", 1)
            definition += keys.replace("(key", f"({quote}key{quote}")
            table = f"{quote}{name}{quote}"
            server.run(f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} ({definition})")

    def _sink(self, more: dict[str, Any]) -> SqlSink:
        if self.kind == "postgres":
            return PostgresSink(self._server.dsn, password=real_postgres.PASSWORD, **more)
        return MySqlSink(**self._server.parameters, password=real_mariadb.PASSWORD, **more)

    def restart(self) -> None:
        self._server.crash()
        self._server.start()


class SimulatedPlace(Place):
    """A simulated server, on a network that never fails."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.server = Server(Network())
        for name, keys in databases.TABLES.items():
            columns = f"key {databases.TEXTS[kind]} NOT NULL, n bigint NOT NULL"
            self.server.create(name, columns + keys)

    def _sink(self, more: dict[str, Any]) -> SqlSink:
        if self.kind == "postgres":
            return PostgresSink(host="simulated", **more)
        return MySqlSink("simulated", database="shop", user="turnback", **more)

    def restart(self) -> None:
        self.server.restart()


@pytest.fixture(params=["real", "simulated"])
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["postgres", "mariadb"])
def place(request: pytest.FixtureRequest, side: str) -> Iterator[Place]:
    kind = request.param
    if side == "real":
        made: Place = RealPlace(kind, request.getfixturevalue(kind))
        yield made
        made.close()
        return
    made = SimulatedPlace(kind)
    with (
        mock.patch("psycopg.connect", lambda **_: PostgresConnection(made.server)),
        mock.patch.object(
            mysql, "_connection_class", lambda: lambda **_: MariaDbConnection(made.server)
        ),
    ):
        yield made


class Waiting:
    """Something that waits for others, in a thread of its own."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._result: list[object] = []
        self._thread = threading.Thread(target=self._run, args=(action,), daemon=True)
        self._thread.start()
        self._thread.join(0.15)
        assert self._thread.is_alive(), f"did not wait: {self._result}"

    def _run(self, action: Callable[[], object]) -> None:
        try:
            self._result.append(action())
        except SinkError as error:
            self._result.append(error)

    def result(self) -> object:
        self._thread.join(15)
        assert self._result, "still waits"
        return self._result[0]


def insert(database: Database, *rows: tuple[str, int]) -> None:
    keys, numbers = zip(*rows, strict=True)
    database.insert(["key", "n"], [pa.array(keys, pa.string()), pa.array(numbers, pa.int64())])


def upsert(database: Database, *rows: tuple[str, int]) -> None:
    keys, numbers = zip(*rows, strict=True)
    columns = [pa.array(keys, pa.string()), pa.array(numbers, pa.int64())]
    database.upsert(["key", "n"], ["key"], [columns])


def prepare(place: Place, txn: TransactionId, *rows: tuple[str, int], table: str = "rows") -> None:
    database = place.connect(table)
    database.begin(txn)
    insert(database, *rows)
    database.prepare(txn)
    database.close()


def claim(database: Database, directory: str) -> None:
    database.execute(
        f"INSERT INTO {database.helper('turnback_owners')} (target, job, directory, job_id) "
        "VALUES (%s, %s, %s, %s)",
        (database.target, "job", directory, "id"),
    )


def owner(database: Database, *, lock: str = "") -> str:
    rows = database.query(
        f"SELECT directory FROM {database.helper('turnback_owners')} WHERE target = %s{lock}",
        (database.target,),
    )
    return str(rows[0][0])


def replace_owner(database: Database, old: str, new: str) -> int:
    return database.execute(
        f"UPDATE {database.helper('turnback_owners')} SET job = %s, directory = %s, job_id = %s "
        "WHERE target = %s AND directory = %s",
        ("job", new, "id", database.target, old),
    )


def test_catalogue(place: Place) -> None:
    found = {}
    for table in databases.TABLES:
        database = place.connect(table)
        columns = [(c.name, c.required, c.folds, c.limits) for c in database.columns()]
        unique = sorted(index.columns for index in database.unique_indexes())
        assert [name for name, *_ in columns] == ["key", "n"]
        assert [(required, folds) for _, required, folds, _ in columns] == [(True, None)] * 2
        assert not any(index.problem for index in database.unique_indexes())
        found[table] = unique
        database.check_prepared_transactions()
        database.check_privileges("upsert")
    assert found == {
        "rows": [],
        "once": [("key", "n")],
        "newest": [("key",)],
        "all": [("key", "n")],
    }
    database = place.connect()
    assert not database.has_table("turnback_progress")
    create_helpers(database)
    create_helpers(database)
    assert database.has_table("turnback_progress")
    assert database.has_column("turnback_progress", "nonce")
    assert not database.has_column("turnback_progress", "other")


def test_what_is_not_committed_is_invisible_and_goes_with_its_connection(place: Place) -> None:
    database = place.connect()
    database.begin()
    insert(database, ("a", 1))
    assert place.rows() == []
    database.commit()
    assert place.rows() == [("a", 1)]
    database.begin()
    insert(database, ("a", 2))
    database.roll_back()
    database.begin()
    insert(database, ("a", 3))
    database.close()
    assert place.rows() == [("a", 1)]


def test_what_is_prepared_waits_for_any_connection(place: Place) -> None:
    prepare(place, FIRST, ("a", 1))
    prepare(place, SECOND, ("b", 1))
    assert place.rows() == []
    other = place.connect()
    assert sorted(other.prepared(), key=lambda txn: txn.task) == [FIRST, SECOND]
    assert other.commit_prepared(FIRST)
    assert not other.commit_prepared(FIRST)
    other.roll_back_prepared(SECOND)
    other.roll_back_prepared(SECOND)
    assert not other.commit_prepared(SECOND)
    assert other.prepared() == []
    assert place.rows() == [("a", 1)]


def test_a_marker_is_there_when_its_transaction_is(place: Place) -> None:
    database = place.connect()
    create_helpers(database)
    database.begin(FIRST)
    insert(database, ("a", 1))
    write_marker(database, FIRST)
    database.prepare(FIRST)
    database.close()
    other = place.connect()
    assert not has_committed(other, FIRST)
    other.commit_prepared(FIRST)
    assert has_committed(other, FIRST)
    assert not has_committed(other, SECOND)


def test_a_restart_keeps_what_is_prepared_and_its_locks(place: Place) -> None:
    prepare(place, FIRST, ("a", 1), table="once")
    idle = place.connect()
    database = place.connect("once")
    database.begin()
    insert(database, ("b", 1))
    place.restart()
    with pytest.raises(LostConnectionError):
        database.commit()
    with pytest.raises(LostConnectionError):
        idle.prepared()
    impatient = place.connect("once", lock_timeout=1)
    assert impatient.prepared() == [FIRST]
    impatient.begin()
    insert(impatient, ("b", 1))
    impatient.commit()
    with pytest.raises(SinkError):
        insert(impatient, ("a", 1))
    assert impatient.commit_prepared(FIRST)
    assert place.rows("once") == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("commits", [True, False])
def test_equal_rows_wait_for_each_other(place: Place, commits: bool) -> None:
    first = place.connect("once")
    second = place.connect("once")
    first.begin()
    insert(first, ("a", 1))
    second.begin()
    waiting = Waiting(lambda: insert(second, ("a", 1)))
    if commits:
        first.commit()
        assert isinstance(waiting.result(), SinkError)
        second.roll_back()
    else:
        first.roll_back()
        assert waiting.result() is None
        second.commit()
    assert place.rows("once") == [("a", 1)]


def test_what_is_prepared_holds_its_locks(place: Place) -> None:
    prepare(place, FIRST, ("a", 1), table="once")
    impatient = place.connect("once", lock_timeout=1)
    impatient.begin()
    with pytest.raises(SinkError):
        insert(impatient, ("a", 1))
    impatient.close()
    patient = place.connect("once")
    patient.begin()
    waiting = Waiting(lambda: insert(patient, ("a", 1)))
    place.connect().roll_back_prepared(FIRST)
    assert waiting.result() is None
    patient.commit()
    assert place.rows("once") == [("a", 1)]


def test_a_note_is_held_against_those_who_change_it(place: Place) -> None:
    first = place.connect()
    create_helpers(first)
    claim(first, "a")
    second = place.connect()
    third = place.connect()
    for holder in (first, second):
        holder.begin()
        assert owner(holder, lock=holder.share_lock) == "a"
    waiting = Waiting(lambda: replace_owner(third, "a", "b"))
    first.commit()
    second.close()
    assert waiting.result() == 1
    assert owner(first) == "b"


def test_who_has_waited_looks_again(place: Place) -> None:
    first = place.connect()
    create_helpers(first)
    claim(first, "a")
    second = place.connect()
    third = place.connect()
    first.begin()
    assert owner(first, lock=" FOR UPDATE") == "a"
    changing = Waiting(lambda: replace_owner(second, "a", "c"))
    reading = Waiting(lambda: owner(third, lock=third.share_lock))
    assert owner(place.connect()) == "a"  # whoever does not lock does not wait
    assert replace_owner(first, "a", "b") == 1
    first.commit()
    assert changing.result() == 0
    assert reading.result() == "b"


def test_counts_of_rows_that_were_changed(place: Place) -> None:
    database = place.connect()
    create_helpers(database)
    claim(database, "a")
    assert replace_owner(database, "b", "c") == 0
    assert replace_owner(database, "a", "b") == 1
    # MariaDB counts only what has other values then.
    assert replace_owner(database, "b", "b") == (1 if place.kind == "postgres" else 0)
    with pytest.raises(SinkError):
        claim(database, "d")


def test_a_statement_that_fails_within_a_transaction(place: Place) -> None:
    for end in ("commit", "prepare"):
        database = place.connect("once")
        txn = FIRST if end == "prepare" else None
        database.begin(txn)
        insert(database, (end, 1))
        with pytest.raises(SinkError):
            insert(database, (end, 2), (end, 1))
        if place.kind == "postgres":
            with pytest.raises(SinkError):
                insert(database, (end, 3))
        else:
            insert(database, (end, 3))
        database.commit() if txn is None else database.prepare(txn)
        database.close()
    # PostgreSQL has not done what was asked of it, and did not say so.
    kept = [] if place.kind == "postgres" else [("commit", 1), ("commit", 3)]
    assert place.rows("once") == kept
    other = place.connect()
    assert other.commit_prepared(FIRST) == (place.kind == "mariadb")


def test_names_are_taken_once(place: Place) -> None:
    prepare(place, FIRST, ("a", 1))
    with pytest.raises(SinkError):
        prepare(place, FIRST, ("a", 2))
    database = place.connect()
    assert database.prepared() == [FIRST]
    assert database.commit_prepared(FIRST)
    assert place.rows() == [("a", 1)]


def test_a_connection_that_has_prepared_is_still_there(place: Place) -> None:
    database = place.connect()
    other = place.connect()
    database.begin(FIRST)
    insert(database, ("a", 1))
    database.prepare(FIRST)
    assert other.prepared() == [FIRST]
    if place.kind == "postgres":
        assert other.commit_prepared(FIRST)
    else:  # it belongs to its connection until that is gone
        waiting = Waiting(lambda: other.commit_prepared(FIRST))
        with pytest.raises(SinkError):
            insert(database, ("a", 2))
        database.close()
        assert waiting.result() is True
    assert place.rows() == [("a", 1)]


def test_what_is_prepared_is_not_settled_within_a_transaction(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "_DETACH_S", 0.1)
    prepare(place, FIRST, ("a", 1))
    database = place.connect()
    database.begin()
    with pytest.raises(SinkError):
        database.commit_prepared(FIRST)
    database.close()
    assert place.connect().prepared() == [FIRST]


def test_upserts(place: Place) -> None:
    database = place.connect("newest")
    for rows in ([("a", 1), ("b", 1), ("a", 2)], [("a", 3)]):
        database.begin()
        upsert(database, *rows)
        database.commit()
    assert place.rows("newest") == [("a", 3), ("b", 1)]
    other = place.connect("newest")
    database.begin()
    upsert(database, ("b", 2), ("c", 1))
    other.begin()
    waiting = Waiting(lambda: upsert(other, ("c", 7)))
    database.commit()
    assert waiting.result() is None
    other.commit()
    assert place.rows("newest") == [("a", 3), ("b", 2), ("c", 7)]


def test_rehearsals_leave_nothing(place: Place) -> None:
    database = place.connect("newest")
    columns = [pa.array(["a", "a"], pa.string()), pa.array([1, 2], pa.int64())]
    database.begin_rehearsal()
    for _ in range(2):
        database.rehearse(["key", "n"], ["key"], columns)
    assert place.rows("newest") == []
    database.close()
    assert place.rows("newest") == []


def test_errors_are_those_of_the_client_library(place: Place) -> None:
    """The sinks tell errors apart by their classes and codes."""
    database: Any = place.connect()
    raw = database._connection
    if place.kind == "postgres":
        with pytest.raises(psycopg.errors.UndefinedObject):
            raw.execute("COMMIT PREPARED 'gone'")
        with pytest.raises(psycopg.errors.UndefinedObject):
            raw.execute("ROLLBACK PREPARED 'gone'")
        return
    for how in ("COMMIT", "ROLLBACK"):
        with pytest.raises(pymysql.err.MySQLError) as caught, raw.cursor() as cursor:
            cursor.execute(f"XA {how} 'gone','1'")
        assert caught.value.args[0] == 1397
