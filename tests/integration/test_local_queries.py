"""`query` and `diff` without Spark give what they give with it: columns, values and their types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fake_job import FakeJob, schema
from turnback import Savepoint
from turnback.api.savepoint import SavepointDiff
from turnback.cli.output import json_value
from turnback.errors import ConfigurationError
from turnback.snapshot.snapshot import Snapshot
from turnback.spark.state_frames import check_only_reads
from turnback.values.typeinfo import Types
from turnback.views.compare import differences, summary
from turnback.views.local_sql import query

EVERY = Types.ROW_NAMED(
    ["text", "at", "local", "day", "money", "tags", "by_name", "raw", "f", "d", "big", "time"],
    [
        Types.STRING(), Types.INSTANT(), Types.SQL_TIMESTAMP(), Types.SQL_DATE(),
        Types.BIG_DEC(10, 2), Types.LIST(Types.LONG()), Types.MAP(Types.STRING(), Types.INT()),
        Types.BYTES(), Types.FLOAT(), Types.DOUBLE(), Types.BIG_INT(), Types.SQL_TIME(),
    ],
)  # fmt: skip
VALUE = (
    "ü", datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2, 3), date(2026, 1, 2),
    Decimal("1.50"), [1, None], {"a": 1, "b": None}, b"\0", 0.1, 0.1, 10**40,
    datetime(2026, 1, 1, 12, 30).time(),
)  # fmt: skip
TOTAL = schema(value=Types.LONG())
SMALL = schema("small", value=Types.INT(), keys=[Types.STRING(), Types.LONG()])
ALL = schema("every", value=EVERY)
SEEN = schema("seen", "list", Types.STRING())
PRICES = schema("prices", "map", Types.BIG_DEC(10, 2), sub=Types.STRING())
STATES = (
    (TOTAL, {"ann": 7, "bob": None, "cid": -3, "dan": 7}),
    (SMALL, {("x", 1): 2_000_000_000, ("x", 2): 5}),
    (ALL, {"ann": VALUE, "bob": (None,) * len(VALUE)}),
    (SEEN, {"ann": ["x", "y", "z"], "bob": ["z"]}),
    (PRICES, {"ann": {"tea": Decimal("1.10"), "jam": Decimal("2.00")}}),
)


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(str(tmp_path / "jobs"))
    job.attempt()
    return job


QUERIES = [
    "SELECT * FROM count_total",
    "SELECT * FROM count_small",
    "SELECT * FROM count_every",
    "SELECT * FROM count_seen",
    "SELECT * FROM count_prices",
    "SELECT key, value FROM count_total ORDER BY value, key",
    "SELECT key, value FROM count_total ORDER BY value DESC, key DESC LIMIT 2",
    "SELECT count(*), count(value), sum(value), max(value), avg(value) FROM count_total",
    "SELECT sum(value), min(value) FROM count_small",
    "SELECT sum(value), count(DISTINCT map_key) FROM count_prices",
    "SELECT key.f0, key.f1 AS n, value FROM count_small WHERE key.f1 = 2",
    "SELECT value.text, value.money, value.by_name, value.tags FROM count_every",
    "SELECT value / 2 AS half, value % 2 AS odd, -value AS minus, value * 3 + 1 AS more, "
    "abs(value) AS size, length(key) AS width, key || '!' AS loud FROM count_total",
    "SELECT value FROM count_small WHERE value / 3 > 1",
    "SELECT t.key, count(s.value) AS n FROM count_total t LEFT JOIN count_seen s ON t.key = s.key "
    "GROUP BY t.key HAVING count(s.value) >= 0",
    "SELECT key FROM count_total WHERE key IN ('ann', 'bob') AND NOT value IS NULL",
    "SELECT key FROM count_total WHERE value = (SELECT max(value) FROM count_total)",
    "SELECT key FROM count_total WHERE value BETWEEN -5 AND 7 AND key LIKE '%n'",
    "SELECT CASE WHEN value > 0 THEN 'plus' ELSE 'other' END AS sign, count(*) FROM count_total "
    "GROUP BY ALL",
    "WITH a AS (SELECT key AS k FROM count_total) SELECT k FROM a UNION SELECT key FROM count_seen",
    "SELECT coalesce(value, 0) AS v FROM count_total",
    "SELECT s.key, s.position FROM count_seen s JOIN count_prices p ON s.key = p.key",
    "SELECT DISTINCT value FROM count_total",
]


def in_order(rows: list[list[Any]]) -> list[str]:
    return sorted(repr([(type(value).__name__, value) for value in row]) for row in rows)


def test_queries_without_spark_give_what_spark_gives(session: SparkSession, job: FakeJob) -> None:
    snapshot = job.checkpoint(*STATES)
    saved = Savepoint(snapshot, session)
    for sql in QUERIES:
        columns, rows = query(snapshot, sql, 1_000)
        frame = saved.sql(sql)
        theirs = [[json_value(value) for value in row] for row in frame.collect()]
        ours = [[json_value(value) for value in row] for row in rows]
        assert columns == frame.columns, sql
        assert in_order(ours) == in_order(theirs), sql
        if "ORDER BY" in sql:
            assert ours == theirs, sql


def test_spark_only_reads_too(session: SparkSession, job: FakeJob, tmp_path: Path) -> None:
    for sql in (
        f"INSERT OVERWRITE DIRECTORY '{tmp_path}/out' USING csv SELECT 1",
        "CREATE TABLE x AS SELECT 1",
        "WITH a AS (SELECT 1 AS b) INSERT INTO x SELECT * FROM a",
        "SET spark.sql.runSQLOnFiles = true",
        "DROP VIEW count_total",
    ):
        with pytest.raises(ConfigurationError, match="read-only"):
            check_only_reads(session, sql)
    check_only_reads(session, "WITH a AS (SELECT 1 AS b) SELECT * FROM a WHERE b IN (SELECT 1)")


# -- diff


def check_diff(session: SparkSession, old: Snapshot, new: Snapshot) -> dict[str, Any]:
    """Compare both ways; gives what has changed in each state."""
    theirs = SavepointDiff(old, new, session)
    found = summary(old, new)
    assert found == theirs.summary()
    for each in found:
        if each.incomparable is None:
            columns, rows = differences(old, new, each.uid, each.state, 1_000)
            frame = theirs.state(each.uid, each.state)
            assert columns == frame.columns
            collected = [[json_value(v) for v in row] for row in frame.collect()]
            assert in_order([[json_value(v) for v in row] for row in rows]) == in_order(collected)
    return {each.state: each for each in found}


def test_diff_without_spark_gives_what_spark_gives(
    session: SparkSession, job: FakeJob, tmp_path: Path
) -> None:
    old = job.checkpoint(*STATES)
    changed = (*VALUE[:6], {"b": None, "a": 2}, *VALUE[7:])
    new = job.checkpoint(
        (TOTAL, {"ann": 8, "eve": 1}), (ALL, {"ann": changed}), (SEEN, {"ann": ["w"], "eve": ["v"]})
    )
    found = check_diff(session, old, new)
    assert (found["total"].added, found["total"].changed, found["total"].unchanged) == (1, 1, 3)
    columns, rows = differences(old, new, "count", "seen", 10)
    assert columns == ["key", "position", "change", "old", "new"]
    assert rows == [["ann", 3, "added", None, "w"], ["eve", 0, "added", None, "v"]]
    # A fork has a directory of its own, another id, and here another number of key groups.
    fork = FakeJob(str(tmp_path / "jobs"), "fork", groups=48)
    fork.attempt()
    forked = fork.checkpoint(*STATES[:-1], (TOTAL, {"ann": 9}))
    found = check_diff(session, old, forked)
    assert (found["total"].changed, found["total"].unchanged) == (1, 3)
    assert (found["seen"].same, found["prices"].removed) == (True, 2)


def test_diff_across_an_added_field(session: SparkSession, job: FakeJob, tmp_path: Path) -> None:
    before = schema("row", value=Types.ROW_NAMED(["n"], [Types.INT()]))
    after = schema("row", value=Types.ROW_NAMED(["n", "note"], [Types.LONG(), Types.STRING()]))
    old = job.savepoint(str(tmp_path / "old"), (before, {"a": (1,), "b": (2,), "c": (3,)}))
    new = job.savepoint(
        str(tmp_path / "new"), (after, {"a": (1, None), "b": (2, "new"), "d": (4, None)})
    )
    row = check_diff(session, old, new)["row"]
    assert (row.added, row.removed, row.changed, row.unchanged) == (1, 1, 1, 1)
    assert "note" in row.note
    _, rows = differences(old, new, "count", "row", 10)
    assert rows[0] == ["b", "changed", {"n": 2, "note": None}, {"n": 2, "note": "new"}]
    texts = schema("row", value=Types.STRING())
    other = job.savepoint(str(tmp_path / "other"), (texts, {"a": "1"}))
    assert "string" in (check_diff(session, old, other)["row"].incomparable or "")
