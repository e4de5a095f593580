"""What sinks of databases make of their arguments; no server is asked."""

import os
import pickle
import ssl
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest

from turnback.connectors.redis import RedisSink
from turnback.connectors.registry import sink_from_description
from turnback.connectors.sql import MySqlSink, PostgresSink
from turnback.connectors.sql.database import (
    TransactionId,
    mark_of,
    name_job_in_database,
    name_sink_in_database,
    name_without_directory,
)
from turnback.connectors.sql.mysql import _connection_class
from turnback.connectors.sql.postgres import _copied
from turnback.connectors.sql.values import Limits, check_values, chunks, joined_rows, plain_text
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import directory_digest

DSN = "host=db port=5433 dbname=shop user=me"
SECRET = "hunter2-%s'"


def postgres(**arguments):
    return PostgresSink(**({"dsn": DSN, "table": "posts"} | arguments))


def mysql(**arguments):
    return MySqlSink(**({"database": "shop", "user": "me", "table": "posts"} | arguments))


def redis(**arguments):
    return RedisSink(**({"key": "post"} | arguments))


SQL_PROBLEMS = [
    ({"table": ""}, "table must be the name of a table"),
    ({"table": 7}, "table must be the name of a table"),
    ({"table": "a.b.c"}, "'table' or 'schema.table', not 'a.b.c'"),
    ({"table": "a."}, "'table' or 'schema.table'"),
    ({"mode": "at-least-once"}, "'exactly-once' or 'upsert', not 'at-least-once'"),
    ({"mode": "upsert"}, "upsert needs key"),
    ({"mode": "upsert", "key": ["id", "id"]}, "list of distinct names"),
    ({"mode": "upsert", "key": [7]}, "key must be the name of a column"),
    ({"key": "id"}, "key requires mode='upsert'"),
    ({"columns": []}, "columns must be a list of the fields to write"),
    ({"columns": "post"}, "columns must be a list of the fields to write"),
    ({"columns": 7}, "columns must be a list of the fields to write"),
    ({"columns": ["post", "post"]}, "contains a field twice"),
    ({"columns": {"a": "x", "b": "x"}}, "contains a column twice"),
    ({"columns": {"a": None}}, "a dict from field to column"),
    ({"lock_timeout": 0}, "lock_timeout must be a number of seconds above 0, not 0"),
    ({"lock_timeout": "1 s"}, "lock_timeout must be a number of seconds"),
    ({"password_from": "TURNBACK_NOT_SET"}, "is not set"),
    ({"password_from": ""}, "password_from must be the name of an environment variable"),
    ({"password": SECRET, "password_from": "HOME"}, "a password or password_from, not both"),
]


@pytest.mark.parametrize("make", [postgres, mysql])
@pytest.mark.parametrize(("arguments", "told"), SQL_PROBLEMS)
def test_bad_arguments_of_tables(make, arguments, told):
    with pytest.raises(ConfigurationError) as refused:
        make(**arguments)
    assert told in str(refused.value)
    assert make.__name__ in str(refused.value).lower()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "arguments", "told"),
    [
        (postgres, {"dsn": f"host=db {SECRET} x"}, "libpq cannot read dsn"),
        (postgres, {"dsn": 7}, "dsn must be a string"),
        (postgres, {"dsn": "", "colour": "red"}, "libpq cannot read dsn and colour"),
        (mysql, {"host": ""}, "host must be a string"),
        (mysql, {"user": None}, "user must be a string"),
        (mysql, {"database": 7}, "database must be a string"),
        (mysql, {"port": "3306"}, "port must be a number up to 65535, not '3306'"),
        (mysql, {"port": 70000}, "port must be a number up to 65535"),
        (mysql, {"table": "shop.posts"}, "specify the database with database="),
        (redis, {"url": "http://db"}, "url must be 'redis://host:6379/0'"),
        (redis, {"url": f"redis://:{SECRET}@db:port/0"}, "url must be 'redis://host:6379/0'"),
        (redis, {"url": 7}, "url must be 'redis://host:6379/0'"),
        (redis, {"key": ""}, "key must be the name of a column"),
        (redis, {"key": []}, "key must be the name of a column"),
        (redis, {"key": ["a", "a"]}, "a list of distinct names"),
        (redis, {"values": []}, "values must be the name of a column"),
        (redis, {"layout": "list"}, "'hash' or 'string', not 'list'"),
        (redis, {"prefix": None}, "prefix must be a string"),
        (redis, {"ttl": 0}, "ttl must be at least a millisecond, not 0"),
        (redis, {"ttl": -1}, "ttl must be at least a millisecond"),
        (redis, {"ttl": "1 h"}, "ttl must be a number of seconds, not '1 h'"),
        (redis, {"password_from": "TURNBACK_NOT_SET"}, "is not set"),
    ],
)
def test_other_bad_arguments(make, arguments, told):
    with pytest.raises(ConfigurationError) as refused:
        make(**arguments)
    assert told in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("module", ["psycopg", "pymysql", "redis"])
def test_a_missing_client_is_named(module, monkeypatch):
    make = {"psycopg": postgres, "pymysql": mysql, "redis": redis}[module]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'turnback\["):
        make()


def test_certificates_of_the_system_are_read_once(monkeypatch):
    read, real = [], ssl.create_default_context
    monkeypatch.setattr(
        ssl, "create_default_context", lambda **how: read.append(how) or real(**how)
    )
    _connection_class.cache_clear()
    connect = _connection_class()
    one, other = (connect(defer_connect=True).ctx for _ in range(2))
    assert one is other
    assert len(read) == 1
    assert connect(defer_connect=True, ssl={"check_hostname": False}).ctx is not one


def test_clients_are_not_imported_before_they_are_needed():
    program = "import sys; from turnback.connectors.sql import PostgresSink, MySqlSink; "
    program += "from turnback.connectors.redis import RedisSink; "
    program += "print(sorted({'psycopg', 'pymysql', 'redis'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


@pytest.mark.parametrize(
    "sink",
    [
        postgres(dsn=f"{DSN} password='{SECRET.replace(chr(39), chr(92) + chr(39))}'"),
        postgres(password=SECRET),
        mysql(password=SECRET),
        redis(url="redis://me:hunter2-%25s%27@db:6379/0"),
        redis(url="redis://db:6379/0?db=1&password=hunter2-%2525s%2527"),
    ],
    ids=["dsn", "postgres", "mysql", "redis", "redis query"],
)
def test_a_password_is_kept_for_connections_and_told_nowhere(sink):
    assert sink._password == SECRET
    assert pickle.loads(pickle.dumps(sink))._password == SECRET
    assert "hunter2" not in f"{sink!r} {sink} {sink.describe()}"


def test_secrets_in_the_query_of_a_redis_url_are_given_to_the_client_only():
    url = "rediss://me@db:6380/0?ssl_keyfile=/k&ssl_password=hunter2&Token=hunter3&timeout=5"
    sink = pickle.loads(pickle.dumps(redis(url=url)))
    assert sink.url == "rediss://me@db:6380/0?ssl_keyfile=/k&timeout=5"
    assert sink._secrets == {"ssl_password": "hunter2", "Token": "hunter3"}
    assert sink._password is None
    assert "hunter" not in f"{sink!r} {sink} {sink.describe()}"


@pytest.mark.parametrize(
    "sink",
    [
        postgres(dsn=f"{DSN} sslkey=/key", sslpassword=SECRET),
        mysql(ssl={"key": "/key", "cert": "/cert", "password": SECRET}),
    ],
    ids=["postgres", "mysql"],
)
def test_the_password_of_a_key_is_told_nowhere(sink):
    assert SECRET in pickle.loads(pickle.dumps(sink))._secrets.values()
    assert "hunter2" not in f"{sink!r} {sink} {sink.describe()}"
    assert sink_from_description(sink.describe()) is None, "only the program has it"


def test_a_password_from_the_environment(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "usual")
    monkeypatch.setenv("SHOP", SECRET)
    assert postgres()._password == "usual"
    assert postgres(password_from="SHOP")._password == SECRET
    assert mysql(password_from="SHOP")._password == SECRET
    assert redis(password_from="SHOP")._password == SECRET


@pytest.mark.parametrize(
    "sink",
    [
        postgres(columns={"post": "title"}),
        postgres(mode="upsert", key=["post", "day"], table="shop.posts"),
        mysql(columns=["post"]),
        mysql(mode="upsert", key="post", unix_socket="/run/db", ssl={"ca": "/ca"}),
    ],
)
def test_sinks_are_made_anew(sink):
    os.environ.pop("PGPASSWORD", None)
    again = sink_from_description(sink.describe())
    assert type(again) is type(sink)
    assert vars(again) == vars(sink)


def test_names_of_transactions_fit_xa_and_are_read_back():
    directory = directory_digest("file:///jobs/likes")
    short = name_sink_in_database(directory, "5f0c", "out-1")
    assert short == f"turnback:{directory}:5f0c:out-1"
    for job_id, uid in (("5f0c", "out"), ("j" * 99, "ü"), ("a:b", "c d" * 50), ("", "")):
        sink = name_sink_in_database(directory, job_id, uid)
        assert sink.startswith(name_job_in_database(directory, job_id))
        driver = mark_of("0123456789abcdef" * 2)
        txn = TransactionId(sink, 2**23 - 1, 2**40 - 1, 99_999, 2**40, driver)
        assert len(sink) <= 64
        assert len(txn.branch) <= 64
        assert TransactionId.parse(sink, txn.branch) == txn
        assert txn.directory == directory
    other = name_sink_in_database(directory, "a", "b  c")
    assert name_sink_in_database(directory, "a", "b c") != other


def test_names_without_a_directory_are_those_of_older_versions():
    sink = name_sink_in_database("", "5f0c", "out-1")
    assert sink == name_without_directory("5f0c", "out-1") == "turnback:5f0c:out-1"
    txn = TransactionId.parse(sink, "1.2.3.4")
    assert txn == TransactionId(sink, 1, 2, 3, 4)
    assert (txn.directory, txn.driver, txn.marker) == ("", "", sink)
    # As a manifest of that time holds it.
    stored = {"sink": sink, "attempt": 1, "epoch": 2, "partition": 3, "task": 4}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=TransactionId) == txn


@pytest.mark.parametrize(
    ("sink", "branch"),
    [("theirs", "1.2.3.4"), ("turnback:a:b", "1.2.3"), ("turnback:a", "1.2.3.4"), ("", "")],
)
def test_transactions_of_other_programs_are_not_ours(sink, branch):
    assert TransactionId.parse(sink, branch) is None


def test_rows_are_cut_into_chunks_and_none_is_split(monkeypatch):
    monkeypatch.setattr("turnback.connectors.sql.values.CHUNK_BYTES", 10)
    rows = pa.array(["aaaa", "b" * 30, "", "cc", "dddd", "eeee"])
    texts = list(chunks(rows, "|"))
    assert "|".join(texts) == "|".join(rows.to_pylist())
    assert texts == ["aaaa", "b" * 30, "|cc|dddd|eeee"]
    assert list(chunks(pa.array([], pa.string()), "|")) == []


def test_copy_text():
    columns = [pa.array(["a\tb", None, "\\N"]), pa.array([b"\xff", b"", None]), pa.array([1, 2, 3])]
    assert joined_rows([_copied(c) for c in columns], "\t").to_pylist() == [
        "a\\tb\t\\\\xff\t1",
        "\\N\t\\\\x\t2",
        "\\\\N\t\\N\t3",
    ]
    assert plain_text(pa.array([True, None])).to_pylist() == ["true", None]


@pytest.mark.parametrize(
    ("values", "limits", "told"),
    [
        (pa.array(["a", None]), Limits(nullable=False), "does not accept null"),
        (pa.array(["ää", "äää"]), Limits(most_characters=2), "'äää': the limit is 2 characters"),
        (pa.array(["ab", "a"]), Limits(exact_characters=2), "'a': it would be padded to 2"),
        (pa.array(["a", "ää"]), Limits(most_bytes=3), "the limit is 3 bytes"),
        (pa.array([b"ab", b"a"]), Limits(exact_bytes=2), "exactly 2 bytes"),
        (pa.array(["a", "b "]), Limits(trailing_blanks=False), "'b ': trailing spaces"),
        (pa.array(["a", "b\0"]), Limits(nul=False), "the character 0"),
        (
            pa.array([1.0, float("inf")]),
            Limits(only_finite=True),
            "inf: the database does not support NaN",
        ),
        (pa.array([0.0, -0.0]), Limits(negative_zero=False), "-0.0: the database would store 0.0"),
        (pa.array(["a", "A"]), Limits(members=("a",)), "'A': it is not one of"),
        (pa.array(["x" * 99]), Limits(most_characters=9), r"'x{39}\.\.\.: the limit is 9 char"),
        (pa.array([["a", "b"]]), Limits(most_characters=8), "9 characters|8 characters"),
    ],
)
def test_values_that_a_column_does_not_take(values, limits, told):
    check_values(values, Limits(), "column 'x'")
    with pytest.raises(SinkError, match=f"column 'x' .*{told}"):
        check_values(values, limits, "column 'x'")


def test_nulls_fit_whatever_else_a_column_asks_for():
    limits = Limits(
        most_characters=1,
        exact_characters=1,
        most_bytes=1,
        exact_bytes=1,
        trailing_blanks=False,
        nul=False,
        only_finite=True,
        negative_zero=False,
        members=("a",),
    )
    for kind in (pa.string(), pa.binary(), pa.float64(), pa.float32(), pa.int64()):
        check_values(pa.array([None, None], kind), limits, "column 'x'")
        check_values(pa.array([], kind), limits, "column 'x'")
