"""`PostgresSink` against a real server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import pytest
from sql_contract import SqlContract
from sql_server import Driver, Postgres, Task, with_new_tables, write

from services.postgres import PostgresServer, postgres_server
from turnback.core.errors import ConfigurationError, SinkError
from turnback.types.typeinfo import Types


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Postgres]:
    yield from with_new_tables(Postgres(postgres))


class TestPostgres(SqlContract):
    odd = ["", "a\tb", "a\nb\r\n", "\\", "\\N", "\\.", "\\t", "'", '"', "ä€𝄞", "{", "a\\", None]


def test_a_string_with_a_nul_is_refused_by_name(db: Postgres, task: Task, driver: Driver) -> None:
    sink = db.sink()
    sink.claim(driver())
    with pytest.raises(SinkError, match="0x00"):
        write(sink, task(), ("a\0b", 1))


INSTANT = dt.datetime(2026, 1, 31, 12, 30, 15, 123456, dt.UTC)
TYPES = {
    "b": (Types.BOOLEAN(), "boolean", [True, False, None]),
    "i": (Types.INT(), "integer", [-(2**31), 2**31 - 1, None]),
    "l": (Types.LONG(), "bigint", [-(2**63), 2**63 - 1, None]),
    "f": (Types.FLOAT(), "real", [1.5, float("-inf"), None]),
    "d": (Types.DOUBLE(), "double precision", [0.1, 1e300, None]),
    "big": (Types.BIG_INT(), "numeric", [10**37, -1, None]),
    "dec": (Types.BIG_DEC(10, 2), "numeric(10,2)", [Decimal("1.50"), Decimal("-99.99"), None]),
    "day": (Types.SQL_DATE(), "date", [dt.date(2026, 1, 31), dt.date(1, 1, 1), None]),
    "t": (Types.SQL_TIME(), "time", [dt.time(23, 59, 59, 999999), dt.time(0), None]),
    "ts": (Types.SQL_TIMESTAMP(), "timestamp", [INSTANT.replace(tzinfo=None)] * 2 + [None]),
    "at": (Types.INSTANT(), "timestamptz", [INSTANT, INSTANT, None]),
    "raw": (Types.BYTES(), "bytea", [b"\0\xff\\n", b"", None]),
    "tags": (Types.LIST(Types.STRING()), "jsonb", [["a\n", "\\"], [], None]),
}


def test_every_type(db: Postgres, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds")
    columns = ", ".join(f"{name} {kind}" for name, (_, kind, _) in TYPES.items())
    db.server.run(f"CREATE TABLE kinds ({columns})")
    kind = Types.ROW_NAMED(list(TYPES), [t for t, _, _ in TYPES.values()])
    rows = list(zip(*(values for _, _, values in TYPES.values()), strict=True))
    sink = db.sink("public.kinds")
    sink.claim(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), *rows)])
    assert db.server.query("SELECT * FROM kinds") == rows


def test_json_is_json(db: Postgres, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (value json)")
    kind = Types.MAP(Types.STRING(), Types.LIST(Types.LONG()))
    sink = db.sink("kinds")
    sink.claim(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), {"a\t": [1, 2]})])
    assert db.server.query("SELECT value->>'a\t' FROM kinds") == [("[1,2]",)]


def test_prepared_transactions_are_off(task: Task, driver: Driver) -> None:
    with postgres_server(max_prepared=0) as server:
        server.run("CREATE TABLE posts (post text, n bigint)")
        off = Postgres(server)
        with pytest.raises(ConfigurationError, match="max_prepared_transactions = 100"):
            off.sink().check_claim(driver())
        assert server.query("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]
        server.run("CREATE UNIQUE INDEX ON posts (post)")
        upsert = off.sink(mode="upsert", key="post")
        upsert.claim(driver())
        upsert.committer(driver()).commit([write(upsert, task(), ("a", 1))])
        assert off.rows() == [("a", 1)]


def test_a_role_that_may_not(db: Postgres, driver: Driver) -> None:
    db.server.run(
        "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN PASSWORD 'r'",
        "GRANT SELECT ON posts TO reader",
    )  # fmt: skip
    sink = db.sink(user="reader", password="r")
    with pytest.raises(ConfigurationError, match=r"'reader' may not INSERT.*GRANT INSERT ON"):
        sink.claim(driver())
    db.server.run("GRANT INSERT ON posts TO reader")
    with pytest.raises(ConfigurationError, match=r"CREATE TABLE IF NOT EXISTS .*turnback_owners"):
        sink.claim(driver())
    db.server.run("REVOKE ALL ON posts FROM reader", "DROP ROLE reader")


def test_a_locked_row_is_waited_for_and_then_told(db: Postgres, task: Task, driver: Driver) -> None:
    sink = db.sink("latest", lock_timeout=0.2)
    sink.claim(driver())
    held = write(sink, task(), ("a", 1))
    with pytest.raises(SinkError, match="lock timeout"):
        write(sink, task(epoch=8), ("a", 2))
    assert len(db.ours()) == 1
    sink.committer(driver()).abort([held])
