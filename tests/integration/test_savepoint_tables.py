"""State of savepoints and checkpoints as tables: read, queried and compared."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from shop import (
    EVERY,
    FIRST,
    TOTAL,
    bought,
    buy,
    checkpoint,
    rows,
    saved,
    shop,
    totals,
)

from job_support import Jobs
from services.s3 import s3_server
from turnback import Savepoint, SavepointWriter, Types, ValueStateDescriptor, diff
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import (
    CorruptFileError,
    IncompatibleStateError,
    StateError,
)
from turnback.snapshot.preflight import Verdict
from turnback.values.keys import KeyCodec

# -- reading


@pytest.mark.parametrize("where", ["savepoint", "native savepoint", "checkpoint"])
def test_states_are_tables(jobs: Jobs, where: str) -> None:
    bought(jobs, *FIRST)
    bought(jobs, ("ann", "tea", 2))  # a second state file, which replaces rows of the first
    ways: dict[str, Callable[[Jobs], Path]] = {
        "savepoint": saved,
        "native savepoint": lambda jobs: saved(jobs, format=SavepointFormat.NATIVE),
        "checkpoint": checkpoint,
    }
    found = Savepoint.load(ways[where](jobs), jobs.spark)
    total = found.state("shop", "total")
    assert [(f.name, f.dataType.simpleString()) for f in total.schema] == [
        ("key_group", "int"),
        ("key", "string"),
        ("value", "bigint"),
    ]
    assert totals(total) == {"ann": 9, "bob": 5, "cid": 1}
    codec = KeyCodec((Types.STRING(),), by_columns=True)
    groups = {row["key"]: row["key_group"] for row in total.collect()}
    assert groups == {key: codec.group(key, 128) for key in ("ann", "bob", "cid")}
    items = found.state("shop", "items").orderBy("position")
    assert rows(items.where("key = 'ann'"), "value") == [("jam",), ("tea",), ("tea",)]
    assert [r["value"] for r in items.where("key = 'ann'").collect()] == ["tea", "jam", "tea"]
    prices = found.state("shop", "prices")
    assert rows(prices, "key", "map_key", "value") == [
        ("ann", "jam", 4),
        ("ann", "tea", 2),
        ("bob", "jam", 5),
        ("cid", "tea", 1),
    ]
    assert found.verify() == []


def test_sql_over_all_states(jobs: Jobs, savepoint: Savepoint) -> None:
    bought(jobs, ("ann", "tea", 10))
    later = Savepoint.load(checkpoint(jobs), jobs.spark)
    query = """
        SELECT t.key, t.value, count(p.map_key) AS kinds
        FROM shop_total t JOIN shop_prices p ON t.key = p.key GROUP BY ALL ORDER BY 1
    """
    assert [tuple(r) for r in savepoint.sql(query).collect()] == [
        ("ann", 7, 2),
        ("bob", 5, 1),
        ("cid", 1, 1),
    ]
    # The tables of one are not those of the other, nor of the session.
    assert later.sql("SELECT max(value) FROM shop_total").first()[0] == 17
    assert savepoint.sql("SELECT max(value) FROM shop_total").first()[0] == 7
    assert set(savepoint.views()) == {"shop_total", "shop_items", "shop_prices"}
    for session in (jobs.spark, SparkSession.getActiveSession()):
        assert not [t for t in session.catalog.listTables() if t.name.startswith("shop")]


def test_no_state_is_taken_for_small_and_collected_in_the_driver(savepoint: Savepoint) -> None:
    joined = savepoint.sql("SELECT * FROM shop_total t JOIN shop_prices p ON t.key = p.key")
    assert "Broadcast" not in joined._jdf.queryExecution().executedPlan().toString()


def test_a_checkpoint_in_the_drivers_memory(jobs: Jobs) -> None:
    buy(jobs, *FIRST)
    env = shop(jobs)
    env.set_state_backend("memory")
    report = env.execute(f"in memory {jobs.directory}", bounded=True)
    where = f"{report.job_dir}/checkpoints/chk-{report.last_checkpoint}.json"
    found = Savepoint.load(where, jobs.spark)
    assert totals(found.state("shop", "total")) == {"ann": 7, "bob": 5, "cid": 1}


def test_on_s3(jobs: Jobs, savepoint: Savepoint) -> None:
    with s3_server(jobs.directory) as server:
        where = f"{server.create_bucket('turnback')}/savepoints/changed"
        writer = SavepointWriter.from_existing(savepoint)
        writer.transform_state("shop", "total", lambda df: df.where("key != 'ann'"))
        writer.write(where, storage_options=server.options)
        found = Savepoint.load(where, jobs.spark, storage_options=server.options)
        assert totals(found.state("shop", "total")) == {"bob": 5, "cid": 1}
        summary = diff(savepoint, found).summary()
        assert [(s.state, s.removed) for s in summary if not s.same] == [("total", 1)]
        again = SavepointWriter.from_existing(found).write(f"{where}-again")
        assert again.verify() == []
        again.delete()
        assert found.verify() == []


def test_an_edited_file_is_not_read(jobs: Jobs, savepoint: Savepoint) -> None:
    (file,) = (Path(jobs.directory) / "sp" / "state" / "shop" / "total").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    (problem,) = savepoint.verify()
    assert "damaged" in problem.reason
    with pytest.raises(Exception, match=r"total/[\w-]+\.parquet is damaged"):
        savepoint.state("shop", "total").collect()
    writer = SavepointWriter.from_existing(savepoint)
    with pytest.raises(CorruptFileError, match="damaged"):
        writer.write(jobs.directory / "copy")
    with pytest.raises(CorruptFileError, match="damaged"):
        writer.with_max_parallelism(16).write(jobs.directory / "copy")
    with pytest.raises(CorruptFileError, match="damaged"):
        diff(savepoint, savepoint).summary()
    assert not [p for p in (jobs.directory / "copy").rglob("*") if p.is_file()]


def test_the_preflight_starts_nothing(jobs: Jobs, savepoint: Savepoint) -> None:
    report = savepoint.check(shop(jobs))
    assert report.ok
    assert {r.state for r in report.of(Verdict.RESTORED)} == {"total", "items", "prices", ""}
    assert not savepoint.check(shop(jobs, uid="store")).ok
    assert savepoint.check(shop(jobs, uid="store"), {"shop": "store"}).ok


# -- comparing


def test_what_differs_between_two(jobs: Jobs, savepoint: Savepoint) -> None:
    bought(jobs, ("ann", "tea", 2), ("dan", "jam", 8))
    now = Savepoint.load(checkpoint(jobs), jobs.spark)
    changes = diff(savepoint, now)
    assert changes.states() == [("shop", "items"), ("shop", "prices"), ("shop", "total")]
    total = changes.state("shop", "total")
    assert total.columns == ["key", "change", "old", "new"]
    assert sorted(tuple(r) for r in total.collect()) == [
        ("ann", "changed", 7, 9),
        ("dan", "added", None, 8),
    ]
    prices = changes.state("shop", "prices")
    assert sorted(tuple(r) for r in prices.collect()) == [
        ("ann", "tea", "changed", 3, 2),
        ("dan", "jam", "added", None, 8),
    ]
    items = changes.state("shop", "items")
    assert rows(items, "key", "change", "new") == [("ann", "added", "tea"), ("dan", "added", "jam")]
    backwards = diff(now, savepoint).state("shop", "total")
    assert rows(backwards, "key", "change") == [("ann", "changed"), ("dan", "removed")]
    counts = {
        (s.uid, s.state): (s.added, s.removed, s.changed, s.unchanged) for s in changes.summary()
    }
    assert counts == {
        ("shop", "items"): (2, 0, 0, 4),
        ("shop", "prices"): (1, 0, 1, 3),
        ("shop", "total"): (1, 0, 1, 2),
    }
    assert all(s.same for s in diff(now, checkpoint(jobs), jobs.spark).summary())
    with pytest.raises(StateError, match="did you mean 'total'"):
        changes.state("shop", "totl")


def test_states_of_one_side_and_of_other_types(jobs: Jobs, savepoint: Savepoint) -> None:
    spark = jobs.spark
    texts = spark.createDataFrame([("ann", "7")], "key string, value string")
    changed = (
        SavepointWriter.from_existing(savepoint)
        .with_state("shop", ValueStateDescriptor("total", str), texts)
        .remove_state("shop", "items")
        .with_state("other", TOTAL, savepoint.state("shop", "total"), key_type=str)
        .with_max_parallelism(16)
        .write(jobs.directory / "changed")
    )
    changes = diff(savepoint, changed)
    found = {(s.uid, s.state): s for s in changes.summary()}
    assert found["shop", "total"].incomparable == "its value type was bigint and is now string"
    assert not found["shop", "total"].same
    assert (found["shop", "items"].removed, found["shop", "items"].added) == (4, 0)
    assert (found["other", "total"].removed, found["other", "total"].added) == (0, 3)
    assert found["shop", "prices"].same
    assert found["shop", "prices"].unchanged == 4
    with pytest.raises(
        IncompatibleStateError, match="'total' of operator 'shop' cannot be compared"
    ):
        changes.state("shop", "total")
    removed = changes.state("shop", "items").where("change = 'removed'")
    assert rows(removed, "old") == [("jam",), ("jam",), ("tea",), ("tea",)]


# -- every type

EVERY_DDL = (
    "key string, value struct<text:string,at:timestamp,local:timestamp_ntz,day:date,"
    "money:decimal(10,2),tags:array<bigint>,map:map<string,array<int>>,raw:binary,f:float,"
    "big:string,time:string>"
)
VALUE = (
    "ü", datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2, 3), date(2026, 1, 2),
    Decimal("1.50"), [1, None], {"a": [1], "b": None}, b"\0", 0.5, str(10**40), "12:30:00",
)  # fmt: skip


def test_every_type_there_and_back_and_compared(jobs: Jobs) -> None:
    spark = jobs.spark
    state = ValueStateDescriptor("every", EVERY)
    other = (*VALUE[:6], {"b": None, "a": [1]}, *VALUE[7:])  # the map in another order
    third = (*VALUE[:6], {"b": None, "a": [2]}, *VALUE[7:])
    made = []
    for name, of_b in (("one", VALUE), ("two", third)):
        frame = spark.createDataFrame(
            [("a", VALUE if name == "one" else other), ("b", of_b), ("c", (None,) * len(VALUE))],
            EVERY_DDL,
        )
        writer = SavepointWriter.new(spark=spark).with_state("op", state, frame, key_by="key")
        made.append(writer.write(jobs.directory / name))
    found = made[0].state("op", "every")
    assert found.drop("key_group").schema == spark.createDataFrame([], EVERY_DDL).schema
    (row,) = found.where("key = 'a'").select("value.*").collect()
    wanted = spark.createDataFrame([("a", VALUE)], EVERY_DDL).select("value.*").first()
    assert row == wanted
    (summary,) = diff(*made).summary()
    assert (summary.changed, summary.unchanged) == (1, 2)
    assert rows(diff(*made).state("op", "every"), "key", "change") == [("b", "changed")]
