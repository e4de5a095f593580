"""`MySqlSink` against a real MariaDB."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import pytest
from sql_contract import SqlContract
from sql_server import Driver, MariaDb, Task, with_new_tables, write

from services.mariadb import MariaDbServer
from turnback.core.errors import ConfigurationError, SinkError
from turnback.types.typeinfo import Types


@pytest.fixture
def db(mariadb: MariaDbServer) -> Iterator[MariaDb]:
    yield from with_new_tables(MariaDb(mariadb))


class TestMariaDb(SqlContract):
    odd = ["", "a\tb", "a\nb\r\n", "\\", "\\N", "\\'", "'", "''", '"', "ä€𝄞", "`%s", "a\0b", None]


INSTANT = dt.datetime(2026, 1, 31, 12, 30, 15, 123456, dt.UTC)
LOCAL = INSTANT.replace(tzinfo=None)
TYPES = {
    "b": (Types.BOOLEAN(), "boolean", [True, False, None]),
    "i": (Types.INT(), "integer", [-(2**31), 2**31 - 1, None]),
    "l": (Types.LONG(), "bigint", [-(2**63), 2**63 - 1, None]),
    "d": (Types.DOUBLE(), "double", [0.1, 1e300, None]),
    "big": (Types.BIG_INT(), "decimal(38,0)", [10**37, -1, None]),
    "amount": (Types.BIG_DEC(10, 2), "decimal(10,2)", [Decimal("1.50"), Decimal("-9.99"), None]),
    "day": (Types.SQL_DATE(), "date", [dt.date(2026, 1, 31), dt.date(1000, 1, 1), None]),
    "ts": (Types.SQL_TIMESTAMP(), "datetime(6)", [LOCAL, LOCAL, None]),
    "raw": (Types.BYTES(), "blob", [b"\0\xff'\\n", b"", None]),
    "tags": (Types.LIST(Types.STRING()), "json", [["a\n", "\\'"], [], None]),
}


def test_every_type(db: MariaDb, task: Task, driver: Driver) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (_, kind, _) in TYPES.items())
    db.server.run("DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds ({columns})")
    kind = Types.ROW_NAMED(list(TYPES), [t for t, _, _ in TYPES.values()])
    rows = list(zip(*(values for _, _, values in TYPES.values()), strict=True))
    sink = db.sink("kinds")
    sink.claim(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), *rows)])
    stored = ['["a\\n","\\\\\'"]', "[]", None]
    texts = [(*row[:-1], text) for row, text in zip(rows, stored, strict=True)]
    assert db.server.query("SELECT * FROM kinds") == texts


def test_instants_are_in_utc(db: MariaDb, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (value timestamp(6) NULL)")
    kind = Types.INSTANT()
    sink = db.sink("kinds")
    sink.claim(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), INSTANT)])
    with db.server.connect(init_command="SET time_zone = '+02:00'") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT value FROM kinds")
        assert cursor.fetchall() == ((LOCAL + dt.timedelta(hours=2),),)


def test_nan_is_refused_by_name(db: MariaDb, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (value double)")
    kind = Types.DOUBLE()
    sink = db.sink("kinds")
    sink.claim(driver(type=kind))
    with pytest.raises(SinkError, match=r"column 'value' of shop.kinds cannot hold NaN"):
        write(sink, task(type=kind), float("nan"))


def test_a_value_that_does_not_fit_is_an_error(db: MariaDb, task: Task, driver: Driver) -> None:
    sink = db.sink("latest")
    sink.claim(driver())
    with pytest.raises(SinkError, match="Data too long for column 'post'"):
        write(sink, task(), ("x" * 51, 1))
    assert db.ours() == []


def test_an_engine_without_transactions(db: MariaDb, driver: Driver) -> None:
    db.server.run("ALTER TABLE posts ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match=r"engine MyISAM.*ENGINE = InnoDB"):
        db.sink().check_claim(driver())


def test_a_user_that_may_not(db: MariaDb, driver: Driver) -> None:
    db.server.run(
        "CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'r'",
        "GRANT SELECT ON shop.posts TO reader@'127.0.0.1'",
    )
    sink = db.sink(user="reader", password="r")
    with pytest.raises(ConfigurationError, match="INSERT command denied to user 'reader'"):
        sink.claim(driver())
    db.server.run("GRANT INSERT ON shop.posts TO reader@'127.0.0.1'")
    with pytest.raises(ConfigurationError, match=r"CREATE TABLE IF NOT EXISTS .*turnback_owners"):
        sink.claim(driver())
    db.server.run("DROP USER reader@'127.0.0.1'")
