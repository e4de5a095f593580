"""Queries that DuckDB answers in this process, those that are left to Spark, those nobody runs."""

from __future__ import annotations

import sys

import pytest

from fake_job import FakeJob, schema
from turnback.errors import ConfigurationError, CorruptFileError
from turnback.values.typeinfo import Types
from turnback.views import local_sql
from turnback.views.local_sql import LeftToSpark, query

TOTAL = schema()
SEEN = schema("seen", "list", Types.STRING())


@pytest.fixture
def snapshot(tmp_path):
    job = FakeJob(str(tmp_path / "jobs"))
    job.attempt()
    job.checkpoint((TOTAL, {"ann": 3, "bob": None}), (SEEN, {"ann": ["x", "y"], "bob": ["z"]}))
    return job.checkpoint((TOTAL, {"cid": 4}), (SEEN, {"ann": ["w"]}))


@pytest.mark.parametrize(
    ("sql", "columns", "rows"),
    [
        ("SELECT key, value FROM count_total ORDER BY value", ["key", "value"],
         [["bob", None], ["ann", 3], ["cid", 4]]),
        ("SELECT * FROM COUNT_SEEN", ["key_group", "key", "position", "value"], None),
        ("SELECT key, position, value FROM count_seen ORDER BY 1, 2", ["key", "position", "value"],
         [["ann", 0, "x"], ["ann", 1, "y"], ["ann", 2, "w"], ["bob", 0, "z"]]),
        ("SELECT count(*), sum(t.value), count(DISTINCT key) FROM count_total t",
         ["count(1)", "sum(value)", "count(DISTINCT key)"], [[3, 7, 3]]),
        ("WITH a AS (SELECT key AS k FROM count_total) SELECT k FROM a WHERE k LIKE 'a%'",
         ["k"], [["ann"]]),
        ("SELECT KEY, value / 2 AS half FROM count_total WHERE value IS NOT NULL ORDER BY 1 DESC",
         ["KEY", "half"], [["cid", 2.0], ["ann", 1.5]]),
    ],
)  # fmt: skip
def test_what_is_answered_here(snapshot, sql, columns, rows):
    found = query(snapshot, sql, 100)
    assert found[0] == columns
    assert rows is None or found[1] == rows
    assert len(query(snapshot, sql, 1)[1]) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT round(value) AS r FROM count_total",
        "SELECT value / value AS q FROM count_total",
        "SELECT value / 0 AS q FROM count_total",
        "SELECT CAST(value AS string) AS s FROM count_total",
        'SELECT key FROM count_total WHERE key = "ann"',
        "SELECT `key` FROM count_total",
        r"SELECT key FROM count_total WHERE key = 'a\n'",
        "SELECT value + 1 FROM count_total",
        "SELECT value * 1.5 AS v FROM count_total",
        "SELECT * FROM (SELECT count(*) FROM count_total)",
        "SELECT * EXCLUDE (key) FROM count_total",
        "SELECT * FROM count_total TABLESAMPLE (10 PERCENT)",
        "SELECT DISTINCT ON (key) key FROM count_total",
        "SELECT key FROM default.count_total",
        "SELECT explode(array(1, 2)) AS e",
        "SELECT row_number() OVER (ORDER BY key) AS n FROM count_total",
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT getenv('HOME') AS h",
        "SELECT read_text('/etc/hostname') AS h",
        "SELECT key[0] AS k FROM count_total",
        "SELECT nonsense(",
    ],
)
def test_what_duckdb_might_answer_otherwise_is_left_to_spark(snapshot, sql):
    with pytest.raises(LeftToSpark):
        query(snapshot, sql, 100)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO count_total VALUES (1)",
        "CREATE TABLE x AS SELECT 1",
        "DROP TABLE count_total",
        "COPY count_total TO '/tmp/x.csv'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA version",
        "UPDATE count_total SET value = 1",
        "SELECT 1 AS a; SELECT 2 AS b",
    ],
)
def test_a_snapshot_is_only_read(snapshot, sql):
    with pytest.raises(ConfigurationError, match="read-only: use a single SELECT"):
        query(snapshot, sql, 100)


def test_the_database_reaches_nothing_but_the_tables(snapshot, monkeypatch, tmp_path):
    """Even if the list of what is answered here let everything pass."""
    import duckdb

    (tmp_path / "secret.csv").write_text("a\n1\n")
    monkeypatch.setattr(local_sql._Check, "tables", lambda self: {"count_total"})
    for sql in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"SELECT * FROM '{tmp_path}/secret.csv'",
        f"SELECT * FROM read_text('{tmp_path}/secret.csv')",
    ):
        with pytest.raises(LeftToSpark, match=r"disabled|not exist") as refused:
            query(snapshot, sql, 10)
        assert isinstance(refused.value.__cause__, duckdb.Error)


def test_an_unknown_table_or_column_is_named_with_the_nearest(snapshot):
    with pytest.raises(
        ConfigurationError, match="no table 'count_totl'; did you mean 'count_total'"
    ):
        query(snapshot, "SELECT * FROM count_totl", 1)
    with pytest.raises(
        ConfigurationError, match="no table 'x'; available tables: count_seen, count_total"
    ):
        query(snapshot, "SELECT * FROM x", 1)
    with pytest.raises(ConfigurationError, match=r'"vale" not found.*value'):
        query(snapshot, "SELECT vale FROM count_total", 1)


def test_large_states_and_a_missing_duckdb_are_left_to_spark(snapshot, monkeypatch):
    monkeypatch.setattr(local_sql, "MOST_ROWS", 2)
    with pytest.raises(LeftToSpark, match="large"):
        query(snapshot, "SELECT key FROM count_total", 1)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(LeftToSpark, match=r"pip install 'turnback\[query\]'"):
        query(snapshot, "SELECT key FROM count_total", 1)


def test_a_damaged_file_is_reported(snapshot):
    from turnback.state.files import storage_of

    storage, path = storage_of(snapshot.storage), snapshot.manifest.state[0].path
    storage.put(path, storage.get(path)[:-1])
    with pytest.raises(CorruptFileError):
        query(snapshot, "SELECT key FROM count_total", 1)
