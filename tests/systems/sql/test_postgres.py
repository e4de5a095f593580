"""`PostgresSink` against a real server."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from sql_contract import SqlContract
from sql_server import Driver, Postgres, Task, with_new_tables, write

from services.postgres import PostgresServer, postgres_server
from turnback.connectors.sql.postgres import PostgresDatabase
from turnback.errors import ConfigurationError, SinkError
from turnback.values.typeinfo import Types


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Postgres]:
    yield from with_new_tables(Postgres(postgres))


class TestPostgres(SqlContract):
    numbered = "bigserial"
    odd = ["", "a\tb", "a\nb\r\n", "\\", "\\N", "\\.", "\\t", "'", '"', "ä€𝄞", "{", "a\\", None]


def test_a_string_with_a_nul_is_refused_by_name(db: Postgres, task: Task, driver: Driver) -> None:
    sink = db.sink()
    sink.acquire_target(driver())
    with pytest.raises(SinkError, match=r"column 'post' of public.posts .*the character 0"):
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
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), *rows)])
    assert db.server.query("SELECT * FROM kinds") == rows


def test_json_is_json(db: Postgres, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (value json)")
    kind = Types.MAP(Types.STRING(), Types.LIST(Types.LONG()))
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), {"a\t": [1, 2]})])
    assert db.server.query("SELECT value->>'a\t' FROM kinds") == [("[1,2]",)]


def test_prepared_transactions_are_off(task: Task, driver: Driver) -> None:
    with postgres_server(max_prepared=0) as server:
        server.run("CREATE TABLE posts (post text, n bigint)")
        off = Postgres(server)
        with pytest.raises(ConfigurationError, match="max_prepared_transactions = 100"):
            off.sink().check_target(driver())
        assert server.query("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]
        server.run("CREATE UNIQUE INDEX ON posts (post)")
        upsert = off.sink(mode="upsert", key="post")
        upsert.acquire_target(driver())
        upsert.committer(driver()).commit([write(upsert, task(), ("a", 1))])
        assert off.rows() == [("a", 1)]


def test_a_role_that_may_not(db: Postgres, driver: Driver) -> None:
    db.server.run(
        "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN PASSWORD 'r'",
        "GRANT SELECT ON posts TO reader",
    )  # fmt: skip
    sink = db.sink(user="reader", password="r")
    with pytest.raises(
        ConfigurationError, match=r"'reader' is not allowed to INSERT.*GRANT INSERT ON"
    ):
        sink.acquire_target(driver())
    db.server.run("GRANT INSERT ON posts TO reader")
    with pytest.raises(ConfigurationError, match=r"CREATE TABLE IF NOT EXISTS .*turnback_owners"):
        sink.acquire_target(driver())
    db.server.run("REVOKE ALL ON posts FROM reader", "DROP ROLE reader")


def test_a_locked_row_is_waited_for_and_then_told(db: Postgres, task: Task, driver: Driver) -> None:
    sink = db.sink("latest", lock_timeout=0.2)
    sink.acquire_target(driver())
    held = write(sink, task(), ("a", 1))
    with pytest.raises(SinkError, match="lock timeout"):
        write(sink, task(epoch=8), ("a", 2))
    assert len(db.ours()) == 1
    sink.committer(driver()).abort([held])


def test_columns_that_change_values(db: Postgres, driver: Driver) -> None:
    db.create("value timestamp(0)")
    with pytest.raises(ConfigurationError, match="rounds to 0 of 6 digits of a second"):
        db.sink("kinds").check_target(driver(type=Types.SQL_TIMESTAMP()))


ID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
SPELLED = [
    ("uuid", ID, ID.upper()),
    ("inet", "10.0.0.1", "10.0.0.1/32"),
    ("inet[]", "{10.0.0.1, ::1}", "{10.0.0.1/32}"),
    ("cidr", "10.0.0.0/8", "10/8"),
    ("macaddr", "08:00:2b:01:02:03", "08-00-2b-01-02-03"),
    ("int4range", "[1,5)", "[1,4]"),
    ("numrange", "[1.0,5)", "[1.0, 5)"),
    ("point", "(1,2)", "1,2"),
    ("varbit", "101", "B101"),
    ("bit(3)", "101", "1011"),
    ("name", "a" * 63, "a" * 64),
    ('"char"', "a", "ab"),
    ("oid", "7", "07"),
    ("xml", "<a/>", None),
    ("jsonb", '{"b":[1.50,true, null],"aa":"\\u00e4"}', '{"a": 1, "a": 2}'),
    ("uuid[]", f"{{ {ID}, NULL}}", f"{{{ID.upper()}}}"),
    ("int4[]", '{ 1,"2" }', "{01}"),
    ("varchar(2)[]", "{ab, NULL}", "{abc}"),
    ("numeric(5,1)[]", "{1.5}", "{1.55}"),
    ("text[]", '{"a b", c }', None),
]


@pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
@pytest.mark.parametrize(("column", "kept", "changed"), SPELLED)
def test_text_is_refused_in_the_task_if_it_would_be_read_back_otherwise(
    db: Postgres, task: Task, driver: Driver, column: str, kept: str, changed: str | None, mode: str
) -> None:
    db.create(f"k bigint PRIMARY KEY, value {column}")
    kind = Types.ROW_NAMED(["k", "value"], [Types.LONG(), Types.STRING()])
    sink = db.sink("kinds", mode=mode, key="k" if mode == "upsert" else None)
    sink.acquire_target(driver(type=kind))
    staged = write(sink, task(type=kind), (1, kept), (2, None))
    sink.committer(driver(type=kind)).commit([staged])
    stored = db.server.query("SELECT value IS NULL FROM kinds ORDER BY k")
    assert stored == [(False,), (True,)]
    if changed is not None:
        with pytest.raises(
            SinkError, match=r"column 'value' of .* does not accept .* read back as"
        ):
            write(sink, task(type=kind, epoch=8), (3, kept), (4, changed))
    assert db.ours() == []


@pytest.mark.parametrize(
    ("column", "text"), [("uuid", "secret"), ("jsonb", "{secret"), ("int4[]", "{secret}")]
)
def test_text_that_a_column_does_not_read_is_refused_by_its_name(
    db: Postgres, task: Task, driver: Driver, column: str, text: str
) -> None:
    db.create(f"value {column}")
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=Types.STRING()))
    with pytest.raises(SinkError, match=r"column 'value' of .* does not accept a string") as told:
        write(sink, task(type=Types.STRING()), text)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("column", ["jsonb", "numrange"])
def test_texts_that_are_one_value_are_no_keys(db: Postgres, driver: Driver, column: str) -> None:
    db.create(f"value {column} PRIMARY KEY")
    sink = db.sink("kinds", mode="upsert", key="value")
    with pytest.raises(ConfigurationError, match="different texts"):
        sink.check_target(driver(type=Types.ROW_NAMED(["value"], [Types.STRING()])))


def test_statements_are_not_prepared_which_a_pooler_could_not_find(db: Postgres) -> None:
    database = db.sink().connect()
    for _ in range(10):
        database.query("SELECT %s::int", (1,))
    assert database.query("SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    database.close()


def test_text_that_comes_back_as_it_was(db: Postgres, task: Task, driver: Driver) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "DROP TYPE IF EXISTS mood")
    db.server.run("CREATE TYPE mood AS ENUM ('so so', 'ok')")
    db.create("value json, mood mood, mail varchar")
    kind = Types.ROW_NAMED(["value", "mood", "mail"], [Types.STRING()] * 3)
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    row = ('{"b": 1.0,  "a": 2, "b": 3}', "so so", "Ann@Example.org ")
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), row)])
    assert db.server.query("SELECT value::text, mood::text, mail FROM kinds") == [row]
    db.server.run("DROP TABLE kinds", "DROP TYPE mood")


def test_an_index_that_takes_different_texts_for_one_is_no_key(
    db: Postgres, driver: Driver
) -> None:
    db.create("k text, n bigint")
    db.server.run(
        "DROP COLLATION IF EXISTS alike",
        "CREATE COLLATION alike"
        " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE UNIQUE INDEX ON kinds (k COLLATE alike)",
    )
    kind = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
    sink = db.sink("kinds", mode="upsert", key="k")
    with pytest.raises(ConfigurationError, match="a nondeterministic collation"):
        sink.check_target(driver(type=kind))
    db.server.run("DROP TABLE kinds", "DROP COLLATION alike")


def test_texts_that_are_one_array_are_no_keys(db: Postgres, driver: Driver) -> None:
    db.create("value text[] PRIMARY KEY")
    sink = db.sink("kinds", mode="upsert", key="value")
    with pytest.raises(ConfigurationError, match=r"different texts, such as .* are the same array"):
        sink.check_target(driver(type=Types.ROW_NAMED(["value"], [Types.STRING()])))
    db.sink("kinds").check_target(driver(type=Types.ROW_NAMED(["value"], [Types.STRING()])))


def test_a_column_of_a_domain_is_what_the_domain_is(db: Postgres, driver: Driver) -> None:
    db.server.run(
        "DROP TABLE IF EXISTS kinds",
        "DROP DOMAIN IF EXISTS price",
        "CREATE DOMAIN price AS numeric(10,2)",
    )
    db.create("value price")
    with pytest.raises(ConfigurationError, match="rounds to 2 decimals"):
        db.sink("kinds").check_target(driver(type=Types.BIG_DEC(12, 4)))


@pytest.mark.parametrize(
    ("base", "value"), [("jsonb", '{"a":1,"a":2}'), ("varchar(3)", "EUR "), ("name", "x" * 64)]
)
def test_a_column_of_a_domain_of_a_domain_changes_no_text(
    db: Postgres, task: Task, driver: Driver, base: str, value: str
) -> None:
    db.server.run(
        "DROP TABLE IF EXISTS kinds",
        "DROP DOMAIN IF EXISTS outer_domain",
        "DROP DOMAIN IF EXISTS inner_domain",
        f"CREATE DOMAIN inner_domain AS {base}",
        "CREATE DOMAIN outer_domain AS inner_domain NOT NULL",
    )
    db.create("value outer_domain")
    kind = Types.STRING()
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    with pytest.raises(SinkError, match="does not accept"):
        write(sink, task(type=kind), value)
    with pytest.raises(SinkError, match="does not accept null"):
        write(sink, task(type=kind, epoch=8), None)


def test_large_texts_are_not_checked_all_at_once(
    db: Postgres, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server ends the connection at a gigabyte, however often the epoch is tried again."""
    asked: list[int] = []
    respelled = PostgresDatabase.respelled

    def counted(self: PostgresDatabase, column: Any, texts: Sequence[str]) -> Any:
        asked.append(sum(map(len, texts)))
        return respelled(self, column, texts)

    monkeypatch.setattr(PostgresDatabase, "respelled", counted)
    db.create("value jsonb")
    kind = Types.STRING()
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    values = [f'"{letter * 700_000}"' for letter in "abcd"]
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), *values)])
    assert len(asked) == 4
    assert db.server.query("SELECT count(*) FROM kinds") == [(4,)]


def test_text_of_a_fixed_length_is_not_padded(db: Postgres, task: Task, driver: Driver) -> None:
    db.create("value char(3)")
    kind = Types.STRING()
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), "EUR")])
    with pytest.raises(SinkError, match="'EU': it would be padded to 3 characters"):
        write(sink, task(type=kind, epoch=8), "EU")


@pytest.mark.parametrize(
    ("table", "key", "told"),
    [
        ("k bigint, n bigint, UNIQUE (k) DEFERRABLE", "k", "DEFERRABLE"),
        ("k bigint, n bigint, UNIQUE (k) INCLUDE (n)", ["k", "n"], r"no primary key .*\(k, n\)"),
        ("k bigint, n bigint; CREATE UNIQUE INDEX ON kinds (k) WHERE n > 0", "k", "some of the"),
        ("k bigint, n bigint; CREATE UNIQUE INDEX ON kinds ((k + 1))", "k", "no primary key"),
    ],
)
def test_keys_that_are_none(
    db: Postgres, driver: Driver, table: str, key: str | list[str], told: str
) -> None:
    columns, _, index = table.partition(";")
    db.create(columns)
    if index:
        db.server.run(index)
    kind = Types.ROW_NAMED(["k", "n"], [Types.LONG(), Types.LONG()])
    with pytest.raises(ConfigurationError, match=told):
        db.sink("kinds", mode="upsert", key=key).check_target(driver(type=kind))


K_AND_N = Types.ROW_NAMED(["k", "n"], [Types.LONG(), Types.LONG()])
REFUSING = {
    "foreign key": (
        ["CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint CONSTRAINT known REFERENCES parents)"],
        "has the foreign key 'known'.* DROP CONSTRAINT",
    ),
    "reference": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint, UNIQUE (k, n))",
            "CREATE TABLE children (k bigint, n bigint,"
            " CONSTRAINT of_kind FOREIGN KEY (k, n) REFERENCES kinds (k, n))",
        ],
        "foreign key 'of_kind' of children",
    ),
    "EXCLUDE": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint,"
            " CONSTRAINT apart EXCLUDE USING gist (int8range(n, n + 2) WITH &&))",
        ],
        "has the EXCLUDE constraint 'apart'",
    ),
    "trigger": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint)",
            "CREATE TRIGGER strict BEFORE UPDATE ON kinds FOR EACH ROW EXECUTE FUNCTION refuse()",
        ],
        "has the trigger 'strict'.* ALTER TABLE kinds DISABLE TRIGGER",
    ),
    "check": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint, most bigint DEFAULT 9,"
            " CONSTRAINT few CHECK (n < most))",
        ],
        "has the CHECK constraint 'few'.* ALTER TABLE kinds DROP CONSTRAINT",
    ),
    "check of a generated column": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint, most bigint DEFAULT 9,"
            " twice bigint GENERATED ALWAYS AS (n * 2) STORED,"
            " CONSTRAINT few CHECK (twice < most))",
        ],
        "has the CHECK constraint 'few'",
    ),
    "check that old rows may break": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint, old bigint)",
            "ALTER TABLE kinds ADD CONSTRAINT few CHECK (old < 9) NOT VALID",
        ],
        "has the CHECK constraint 'few'",
    ),
    "rule": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint)",
            "CREATE RULE quiet AS ON UPDATE TO kinds WHERE new.n = 7 DO INSTEAD NOTHING",
        ],
        "has the rule 'quiet'",
    ),
    "ranges": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint) PARTITION BY RANGE (k)",
            "CREATE TABLE few PARTITION OF kinds FOR VALUES FROM (0) TO (10)",
        ],
        "CREATE TABLE kinds_default PARTITION OF kinds DEFAULT",
    ),
    "lists in a partition": (
        [
            "CREATE TABLE kinds (k bigint, n bigint, PRIMARY KEY (k, n)) PARTITION BY RANGE (k)",
            "CREATE TABLE few PARTITION OF kinds DEFAULT PARTITION BY LIST (n)",
        ],
        "no default partition in few",
    ),
    "constraint of a partition": (
        [
            "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint) PARTITION BY RANGE (k)",
            "CREATE TABLE few PARTITION OF kinds (CONSTRAINT small CHECK (n < 3)) DEFAULT",
        ],
        "its own constraint, 'small' of few",
    ),
    "partition": (
        [
            "CREATE TABLE parents_of_kinds (k bigint PRIMARY KEY, n bigint) PARTITION BY RANGE (k)",
            "CREATE TABLE kinds PARTITION OF parents_of_kinds FOR VALUES FROM (0) TO (10)",
        ],
        "is a partition of parents_of_kinds",
    ),
}


@pytest.fixture
def empty(db: Postgres) -> Iterator[Postgres]:
    """A server without the table `kinds`, and what may be made beside it."""
    tables = "kinds, few, parents, children, parents_of_kinds"
    db.server.run(
        f"DROP TABLE IF EXISTS {tables} CASCADE",
        "CREATE TABLE parents (id bigint PRIMARY KEY)",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'refused'; END $$",
    )
    yield db
    db.server.run(f"DROP TABLE IF EXISTS {tables} CASCADE")


@pytest.mark.parametrize("what", REFUSING)
def test_what_refuses_rows_only_when_they_are_published(
    empty: Postgres, driver: Driver, what: str
) -> None:
    statements, told = REFUSING[what]
    empty.server.run(*statements)
    keys = ["k", "n"] if "list" in what else "k"
    sink = empty.sink("kinds", mode="upsert", key=keys)
    with pytest.raises(ConfigurationError, match=told):
        sink.check_target(driver(type=K_AND_N))


def test_row_security_refuses_rows_only_when_they_are_published(
    empty: Postgres, driver: Driver
) -> None:
    empty.create("k bigint PRIMARY KEY, n bigint")
    empty.server.run(
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN PASSWORD 'r'",
        "GRANT SELECT, INSERT, UPDATE ON kinds TO reader",
        "ALTER TABLE kinds ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY small ON kinds WITH CHECK (n < 3)",
    )
    sink = empty.sink("kinds", mode="upsert", key="k", user="reader", password="r")
    with pytest.raises(ConfigurationError, match='ALTER ROLE "reader" BYPASSRLS'):
        sink.check_target(driver(type=K_AND_N))
    empty.server.run("REVOKE ALL ON kinds FROM reader", "DROP TABLE kinds", "DROP ROLE reader")


def test_what_refuses_no_row_that_was_rehearsed(
    empty: Postgres, task: Task, driver: Driver
) -> None:
    empty.server.run(
        "CREATE TABLE kinds (k bigint PRIMARY KEY, n bigint CHECK (n < 9), other bigint CHECK"
        " (other < 9), CHECK (k <> n), twice bigint GENERATED ALWAYS AS (n * 2) STORED"
        " CHECK (twice < 18)) PARTITION BY RANGE (k)",
        "CREATE TABLE few PARTITION OF kinds FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parents_of_kinds PARTITION OF kinds DEFAULT PARTITION BY HASH (k)",
        "CREATE TABLE rest PARTITION OF parents_of_kinds FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "CREATE TABLE children (k bigint REFERENCES kinds)",
        "CREATE TRIGGER off BEFORE UPDATE ON kinds FOR EACH ROW EXECUTE FUNCTION refuse()",
        "ALTER TABLE kinds DISABLE TRIGGER off",
        "CREATE TRIGGER kept BEFORE DELETE ON kinds FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    sink = empty.sink("kinds", mode="upsert", key="k")
    sink.acquire_target(driver(type=K_AND_N))
    staged = write(sink, task(type=K_AND_N), (1, 2), (99, 3), (1, 4))
    sink.committer(driver(type=K_AND_N)).commit([staged])
    assert sorted(empty.kinds()) == [(1, 4, None, 8), (99, 3, None, 6)]


def test_rows_that_are_added_may_have_foreign_keys(
    empty: Postgres, task: Task, driver: Driver
) -> None:
    """They are checked when a task writes or prepares them."""
    empty.create("k bigint, n bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED")
    sink = empty.sink("kinds")
    sink.acquire_target(driver(type=K_AND_N))
    with pytest.raises(SinkError, match="foreign key"):
        write(sink, task(type=K_AND_N), (1, 2))
    assert empty.ours() == []


def test_a_unique_index_may_include_columns(db: Postgres, task: Task, driver: Driver) -> None:
    db.create("k bigint, n bigint, UNIQUE (k) INCLUDE (n)")
    kind = Types.ROW_NAMED(["k", "n"], [Types.LONG(), Types.LONG()])
    sink = db.sink("kinds", mode="upsert", key="k")
    sink.acquire_target(driver(type=kind))
    sink.committer(driver(type=kind)).commit([write(sink, task(type=kind), (1, 2), (1, 3))])
    assert db.kinds() == [(1, 3)]


def test_a_key_too_long_for_its_index_is_refused_in_the_task(
    db: Postgres, task: Task, driver: Driver
) -> None:
    db.create("k text PRIMARY KEY, n bigint")
    kind = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
    sink = db.sink("kinds", mode="upsert", key="k")
    sink.acquire_target(driver(type=kind))
    noise = random.Random(7).randbytes(9_000).hex()  # or it would be compressed
    with pytest.raises(SinkError, match="index row"):
        write(sink, task(type=kind), (noise, 1))


@pytest.mark.parametrize("value", ['a "quoted" secret', "secret"])
def test_an_error_names_the_column_and_not_the_value(
    db: Postgres, task: Task, driver: Driver, value: str
) -> None:
    db.server.run("DROP TABLE IF EXISTS kinds", "DROP TYPE IF EXISTS mood")
    db.server.run("CREATE TYPE mood AS ENUM ('ok')")
    db.create("value mood")
    sink = db.sink("kinds")
    sink.acquire_target(driver(type=Types.STRING()))
    with pytest.raises(SinkError, match=r"column 'value' of public.kinds") as told:
        write(sink, task(type=Types.STRING()), value)
    assert "secret" not in str(told.value)
    assert "mood" in str(told.value)
    db.server.run("DROP TABLE kinds", "DROP TYPE mood")
