"""`MySqlSink` against a real MariaDB."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sql_contract import SqlContract
from sql_server import Driver, MariaDb, Task, with_new_tables, write

from services.mariadb import MariaDbServer
from turnback.errors import ConfigurationError, SinkError
from turnback.values.typeinfo import Types


@pytest.fixture
def db(mariadb: MariaDbServer) -> Iterator[MariaDb]:
    yield from with_new_tables(MariaDb(mariadb))


class TestMariaDb(SqlContract):
    numbered = "bigint AUTO_INCREMENT"
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
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), *rows)])
    stored = ['["a\\n","\\\\\'"]', "[]", None]
    texts = [(*row[:-1], text) for row, text in zip(rows, stored, strict=True)]
    assert db.server.query("SELECT * FROM kinds") == texts


def test_json_comes_back_as_it_was_written(db: MariaDb, task: Task, driver: Driver) -> None:
    db.create("value json")
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=Types.STRING()))
    text = '{"b": 1.0,  "a": 2}'
    staged = write(sink, task(type=Types.STRING()), text)
    sink.committer(driver(type=Types.STRING())).commit([staged])
    assert db.kinds() == [(text,)]


def test_instants_are_in_utc(db: MariaDb, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (value timestamp(6) NULL)")
    kind = Types.INSTANT()
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), INSTANT)])
    with db.server.connect(init_command="SET time_zone = '+02:00'") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT value FROM kinds")
        assert cursor.fetchall() == ((LOCAL + dt.timedelta(hours=2),),)


def test_nan_is_refused_by_name(db: MariaDb, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (value double)")
    kind = Types.DOUBLE()
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    with pytest.raises(SinkError, match=r"column 'value' of shop.kinds does not accept nan"):
        write(sink, task(type=kind), float("nan"))


def test_a_value_that_does_not_fit_is_an_error(db: MariaDb, task: Task, driver: Driver) -> None:
    sink = db.sink("latest")
    sink.acquire_target(driver())
    with pytest.raises(
        SinkError, match=r"column 'post' of shop.latest .*the limit is 50 characters"
    ):
        write(sink, task(), ("x" * 51, 1))
    assert db.ours() == []


def test_an_engine_without_transactions(db: MariaDb, driver: Driver) -> None:
    db.server.run("ALTER TABLE posts ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match=r"engine MyISAM.*ENGINE = InnoDB"):
        db.sink().check_target(driver())


def test_a_user_that_may_not(db: MariaDb, driver: Driver) -> None:
    db.server.run(
        "CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'r'",
        "GRANT SELECT ON shop.posts TO reader@'127.0.0.1'",
    )
    sink = db.sink(user="reader", password="r")
    with pytest.raises(ConfigurationError, match="INSERT command denied to user 'reader'"):
        sink.acquire_target(driver())
    db.server.run("GRANT INSERT ON shop.posts TO reader@'127.0.0.1'")
    with pytest.raises(ConfigurationError, match=r"CREATE TABLE IF NOT EXISTS .*turnback_owners"):
        sink.acquire_target(driver())
    db.server.run("DROP USER reader@'127.0.0.1'")


@pytest.mark.parametrize(
    ("column", "kind", "value", "told"),
    [
        ("char(5)", Types.STRING(), "ab ", "trailing spaces would be lost"),
        ("binary(4)", Types.BYTES(), b"a", "exactly 4 bytes"),
        ("varbinary(2)", Types.BYTES(), b"abc", "the limit is 2 bytes"),
        ("tinytext", Types.STRING(), "ä" * 128, "the limit is 255 bytes"),
        ("tinytext CHARACTER SET latin1", Types.STRING(), "a" * 250 + " " * 6, "255 characters"),
        ("enum('a', 'it''s')", Types.STRING(), "A", "not one of the column's values"),
        ("double", Types.DOUBLE(), -0.0, "would store 0.0"),
        ("text CHARACTER SET latin1", Types.STRING(), "ł", "Incorrect string value"),
        ("timestamp(6) NULL", Types.INSTANT(), dt.datetime(1960, 1, 1, tzinfo=dt.UTC), "Incorrect"),
    ],
)
def test_values_that_would_be_changed(
    db: MariaDb, task: Task, driver: Driver, column: str, kind: Any, value: Any, told: str
) -> None:
    db.create(f"value {column}")
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    with pytest.raises(SinkError, match=told):
        write(sink, task(type=kind), value)


def test_values_that_fit_are_not_refused(db: MariaDb, task: Task, driver: Driver) -> None:
    db.create(r"a char(5), b binary(1), e enum('a', 'it''s', 'C:\\new', 'two\nlines'), d double")
    types = [Types.STRING(), Types.BYTES(), Types.STRING(), Types.DOUBLE()]
    kind = Types.ROW_NAMED(["a", "b", "e", "d"], types)
    rows = [("ab", b"x", "it's", 0.0), (None, None, None, None)]
    rows += [(None, None, value, None) for value in ("C:\\new", "two\nlines")]
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), *rows)])
    assert db.kinds() == rows


@pytest.mark.parametrize(
    ("column", "kind", "told"),
    [
        ("datetime", Types.SQL_TIMESTAMP(), r"truncates fractions of a second; use datetime\(6\)"),
        ("timestamp(3) NULL", Types.INSTANT(), r"use timestamp\(6\)"),
        ("set('a', 'b')", Types.STRING(), "reorder its members"),
        ("uuid", Types.LIST(Types.STRING()), "does not accept"),
        ("double(10,2)", Types.DOUBLE(), "it rounds; use double"),
        ("int GENERATED ALWAYS AS (1) VIRTUAL", Types.INT(), "generates 'value' itself"),
    ],
)
def test_columns_that_change_values(db: MariaDb, driver: Driver, column: str, kind: Any, told: str):
    db.create(f"value {column}")
    with pytest.raises(ConfigurationError, match=told):
        db.sink("kinds").check_target(driver(type=kind))


@pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
@pytest.mark.parametrize(
    ("column", "kept", "changed"),
    [
        (
            "uuid",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        ),
        ("inet4", "10.0.0.1", "10.0.0.256"),
        ("inet6", "2001:db8::1", "2001:db8:0::1"),
    ],
)
def test_text_is_refused_in_the_task_if_it_would_be_read_back_otherwise(
    db: MariaDb, task: Task, driver: Driver, column: str, kept: str, changed: str, mode: str
) -> None:
    db.create(f"k bigint PRIMARY KEY, value {column}")
    kind = Types.ROW_NAMED(["k", "value"], [Types.LONG(), Types.STRING()])
    sink = db.sink("kinds", mode=mode, key="k" if mode == "upsert" else None)
    sink.acquire_target(driver(type=kind))
    staged = write(sink, task(type=kind), (1, kept), (2, None))
    sink.committer(driver(type=kind)).commit([staged])
    assert [str(value) for _, value in sorted(db.kinds())] == [kept, "None"]
    with pytest.raises(SinkError, match=r"column 'value' of .* does not accept .* it would be"):
        write(sink, task(type=kind, epoch=8), (3, kept), (4, changed))
    assert db.ours() == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("post varchar(20) PRIMARY KEY, n bigint", "collation utf8mb4_general_ci .*utf8mb4_bin"),
        (
            "post varchar(50) COLLATE utf8mb4_bin NOT NULL, n bigint, UNIQUE (post(3))",
            "only a prefix of a column",
        ),
    ],
)
def test_keys_that_are_none(db: MariaDb, driver: Driver, columns: str, told: str) -> None:
    db.create(columns)
    with pytest.raises(ConfigurationError, match=told):
        db.sink("kinds", mode="upsert", key="post").check_target(driver())


@pytest.mark.parametrize(("collation", "told"), [("bin", "trailing spaces"), ("nopad_bin", None)])
def test_keys_that_differ_in_blanks(
    db: MariaDb, task: Task, driver: Driver, collation: str, told: str | None
) -> None:
    db.create(f"post varchar(20) COLLATE utf8mb4_{collation} PRIMARY KEY, n bigint")
    sink = db.sink("kinds", mode="upsert", key="post")
    sink.acquire_target(driver())
    rows = [("a", 1), ("a ", 2), ("A", 3), ("ä", 4)]
    if told is None:
        sink.committer(driver()).commit([write(sink, task(), *rows)])
        assert set(db.kinds()) == set(rows)
    else:
        with pytest.raises(SinkError, match=told):
            write(sink, task(), *rows)


def test_an_unsigned_column_refuses_negative_numbers(
    db: MariaDb, task: Task, driver: Driver
) -> None:
    db.create("value int unsigned")
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=Types.INT()))
    with pytest.raises(SinkError, match="Out of range"):
        write(sink, task(type=Types.INT()), -1)


def test_upsert_needs_temporary_tables(db: MariaDb, driver: Driver) -> None:
    db.server.run(
        "CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'r'",
        "GRANT SELECT, INSERT, UPDATE ON shop.latest TO reader@'127.0.0.1'",
    )
    sink = db.sink("latest", mode="upsert", key="post", user="reader", password="r")
    with pytest.raises(ConfigurationError, match="GRANT CREATE TEMPORARY TABLES"):
        sink.check_target(driver())
    db.server.run("DROP USER reader@'127.0.0.1'")


@pytest.mark.parametrize(
    "how",
    [
        "PARTITION BY HASH (k) PARTITIONS 2",
        "WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME"
        " (PARTITION old HISTORY, PARTITION new CURRENT)",
    ],
)
def test_rows_for_a_table_with_partitions(
    db: MariaDb, task: Task, driver: Driver, how: str
) -> None:
    db.server.run(
        "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint) {how}"
    )
    kind = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
    sink = db.sink("kinds", mode="upsert", key="k")
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), (1, 2), (1, 3))])
    assert db.kinds() == [(1, 3)]


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (
            [
                "CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint, CONSTRAINT known"
                " FOREIGN KEY (v) REFERENCES parents (id))",
            ],
            "foreign key 'known'.* DROP FOREIGN KEY `known`",
        ),
        (
            [
                "CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint)",
                "CREATE TRIGGER strict BEFORE UPDATE ON kinds FOR EACH ROW SIGNAL SQLSTATE '45000'",
            ],
            "trigger 'strict'",
        ),
        (
            [
                "CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint, most bigint DEFAULT 9,"
                " CHECK (v < most))",
            ],
            r"CHECK constraint of .* \(most, v\)",
        ),
        (
            [
                "CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint CHECK (v < most),"
                " most bigint DEFAULT 9 COMMENT 'it''s')",
            ],
            r"CHECK constraint of .* \(most, v\)",
        ),
        (
            [
                "CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint) PARTITION BY RANGE (k)"
                " (PARTITION few VALUES LESS THAN (10))",
            ],
            "by RANGE without a partition .* MAXVALUE",
        ),
        (
            [
                "CREATE TABLE kinds (k bigint, v bigint, PRIMARY KEY (k, v))"
                " PARTITION BY RANGE COLUMNS (k, v)"
                " (PARTITION few VALUES LESS THAN (10, MAXVALUE))",
            ],
            "by RANGE COLUMNS without a partition",
        ),
        (
            [
                "CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint) PARTITION BY LIST (k)"
                " (PARTITION few VALUES IN (1, 2), PARTITION zero VALUES IN (0))",
            ],
            "by LIST without a partition .* DEFAULT",
        ),
    ],
)
def test_what_refuses_rows_only_when_they_are_published(
    db: MariaDb, driver: Driver, statements: list[str], told: str
) -> None:
    db.server.run(
        "DROP TABLE IF EXISTS kinds, parents",
        "CREATE TABLE parents (id bigint PRIMARY KEY)",
        *statements,
    )
    kind = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
    key = ["k", "v"] if "COLUMNS" in told else "k"
    with pytest.raises(ConfigurationError, match=told):
        db.sink("kinds", mode="upsert", key=key).check_target(driver(type=kind))
    db.server.run("DROP TABLE kinds, parents")


@pytest.mark.parametrize(
    "partitions",
    [
        "RANGE (k) (PARTITION few VALUES LESS THAN (10), PARTITION rest VALUES LESS THAN MAXVALUE)",
        "RANGE COLUMNS (k) (PARTITION rest VALUES LESS THAN (MAXVALUE))",
        "RANGE COLUMNS (k, v) (PARTITION `the rest` VALUES LESS THAN (MAXVALUE, MAXVALUE))",
        "LIST (k) (PARTITION few VALUES IN (1, 2), PARTITION rest DEFAULT)",
        "LIST COLUMNS (k) (PARTITION few VALUES IN (1, 2), PARTITION rest DEFAULT)",
    ],
)
def test_partitions_that_take_every_row(
    db: MariaDb, task: Task, driver: Driver, partitions: str
) -> None:
    db.server.run(
        "DROP TABLE IF EXISTS kinds",
        f"CREATE TABLE kinds (k bigint, v bigint, PRIMARY KEY (k, v)) PARTITION BY {partitions}",
    )
    kind = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
    sink = db.sink("kinds", mode="upsert", key=["k", "v"])
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), (1, 2), (99, 3))])
    assert sorted(db.kinds()) == [(1, 2), (99, 3)]


def test_checks_of_a_table_with_partitions_are_rehearsed(
    db: MariaDb, task: Task, driver: Driver
) -> None:
    db.server.run(
        "DROP TABLE IF EXISTS kinds",
        "CREATE TABLE kinds (k bigint PRIMARY KEY, v bigint CHECK (v < 10), CHECK (k <> v),"
        " other json COMMENT 'no CHECK (`v` < `other`)')"
        " COMMENT 'a\n PARTITION BY b' PARTITION BY HASH (k) PARTITIONS 2",
    )
    kind = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
    sink = db.sink("kinds", mode="upsert", key="k")
    sink.acquire_target(driver(type=kind))
    for refused in ((1, 11), (2, 2)):
        with pytest.raises(SinkError, match="CONSTRAINT"):
            write(sink, task(type=kind), refused)
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), (1, 2), (1, 3))])
    assert db.kinds() == [(1, 3, None)]
