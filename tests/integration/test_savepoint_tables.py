"""State of savepoints and checkpoints as tables: read, queried, compared, rewritten, made."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from job_support import Jobs
from services.s3 import s3_server
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Savepoint,
    SavepointWriter,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    diff,
)
from turnback.config.savepoints import SavepointFormat
from turnback.core.errors import (
    ConfigurationError,
    CorruptFileError,
    IncompatibleStateError,
    StateError,
)
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.preflight import Verdict
from turnback.spark.savepoints import Exporter, ExportOrder
from turnback.state.files import StorageRef
from turnback.types.keys import KeyCodec

OUT = "user string, spent bigint, items array<string>, prices array<bigint>"
TOTAL = ValueStateDescriptor("total", int)
ITEMS = ListStateDescriptor("items", str)
PRICES = MapStateDescriptor("prices", str, int)


class Shop(KeyedProcessFunction):
    """Three kinds of state; every element gives all that is known of its key."""

    total = TOTAL
    items = ITEMS
    prices = PRICES

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.price)
        self.items.add(value.item)
        self.prices.put(value.item, value.price)
        user = ctx.get_current_key()
        prices = sorted(self.prices.values())
        yield (
            (user if isinstance(user, str) else str(user)),
            self.total.value(),
            self.items.get(),
            prices,
        )


def buy(jobs: Jobs, *records: tuple[str, str, int]) -> None:
    jobs.feed("buys", *({"user": u, "item": i, "price": p} for u, i, p in records))


def shop(
    jobs: Jobs, out: str = "out", uid: str = "shop", key: Any = ("user",), **key_type: Any
) -> StreamExecutionEnvironment:
    env = jobs.env()
    buys = jobs.files(env, "buys", "user string, item string, price bigint")
    seen = buys.key_by(*key, **key_type).process(Shop(), OUT).uid(uid)
    seen.sink_to(jobs.sink(out)).uid("out")
    return env


def saved(
    jobs: Jobs, name: str = "sp", format: SavepointFormat = SavepointFormat.CANONICAL
) -> Path:
    """A savepoint of the job's last checkpoint."""
    path = jobs.directory / name
    directory, id = SavepointDirectory.locate(path), uuid.uuid4().hex
    directory.begin(id)
    order = ExportOrder(
        id=id,
        target=StorageRef(str(path)),
        writer=directory.writer,
        format=format,
        trigger="test",
        label="first",
        note=None,
        origin=None,
    )
    exporter = Exporter(jobs.spark, StorageRef(str(jobs.path())))
    made = exporter.export(jobs.checkpoints()[-1], order, 1_700_000_000_000, lambda *_: None)
    directory.complete(made)
    return path


def checkpoint(jobs: Jobs) -> Path:
    return jobs.path() / "checkpoints" / f"{jobs.checkpoints()[-1].name}.json"


def bought(jobs: Jobs, *records: tuple[str, str, int]) -> None:
    """Run the job over these until they are in a checkpoint."""
    buy(jobs, *records)
    shop(jobs).execute("job", bounded=True)


FIRST = [("ann", "tea", 3), ("bob", "jam", 5), ("ann", "jam", 4), ("cid", "tea", 1)]


@pytest.fixture
def savepoint(jobs: Jobs) -> Savepoint:
    bought(jobs, *FIRST)
    return Savepoint.load(saved(jobs), jobs.spark)


def totals(frame: DataFrame) -> dict[Any, Any]:
    return {row["key"]: row["value"] for row in frame.collect()}


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


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
    assert found["shop", "total"].incomparable == "its value type was bigint and is string"
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

EVERY = Types.ROW_NAMED(
    ["text", "at", "local", "day", "money", "tags", "map", "raw", "f", "big", "time"],
    [
        Types.STRING(),
        Types.INSTANT(),
        Types.SQL_TIMESTAMP(),
        Types.SQL_DATE(),
        Types.BIG_DEC(10, 2),
        Types.LIST(Types.LONG()),
        Types.MAP(Types.STRING(), Types.LIST(Types.INT())),
        Types.BYTES(),
        Types.FLOAT(),
        Types.BIG_INT(),
        Types.SQL_TIME(),
    ],
)  # fmt: skip
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


# -- writing


def test_a_changed_savepoint_and_a_job_from_it(jobs: Jobs, savepoint: Savepoint) -> None:
    spark = jobs.spark
    changed = (
        SavepointWriter.from_existing(savepoint)
        .transform_state("shop", "total", lambda df: df.withColumn("value", F.col("value") * 100))
        .transform_state("shop", "prices", lambda df: df.where("map_key != 'jam'"))
        .with_state(
            "shop", ITEMS,
            spark.createDataFrame(
                [("ann", 1, "second"), ("ann", 0, "first")],
                "key string, position bigint, value string",
            ),
        )
        .change_uid("shop", "store")
        .write(jobs.directory / "changed", label="hundred", note="cents")
    )  # fmt: skip
    assert (changed.label, changed.note, changed.epoch) == ("hundred", "cents", savepoint.epoch)
    assert (changed.job, changed.max_parallelism) == ("job", 128)
    assert changed.metadata.origin.uri == savepoint.location
    assert totals(changed.state("store", "total")) == {"ann": 700, "bob": 500, "cid": 100}
    assert {s.uid for s in changed.states()} == {"store"}
    assert {op.uid for op in changed.operators} == {"buys", "store", "out"}
    assert changed.verify() == []
    assert totals(savepoint.state("shop", "total"))["ann"] == 7  # the first is as it was
    buy(jobs, ("ann", "pie", 1), ("bob", "tea", 2))
    env = shop(jobs, "fork", uid="store")
    assert changed.check(env).ok
    env.execute("fork", bounded=True, start_from=changed.location, fork=True)
    assert jobs.out("fork") == [
        ("ann", 701, ["first", "second", "pie"], [1, 3]),
        ("bob", 502, ["tea"], [2]),
    ]


def test_states_that_stay_are_copied_byte_by_byte(jobs: Jobs, savepoint: Savepoint) -> None:
    copy = SavepointWriter.from_existing(savepoint).rename_state("shop", "total", "sum")
    copy.remove_state("shop", "prices").write(jobs.directory / "copy")

    def files(name: str, state: str) -> list[bytes]:
        found = sorted((jobs.directory / name / "state" / "shop" / state).glob("*"))
        return sorted(file.read_bytes() for file in found)

    assert files("copy", "sum") == files("sp", "total")
    assert files("copy", "items") == files("sp", "items")
    assert not (jobs.directory / "copy" / "state" / "shop" / "prices").exists()
    found = Savepoint.load(jobs.directory / "copy", jobs.spark)
    assert [s.name for s in found.states()] == ["items", "sum"]
    assert found.metadata.sources.keys() == savepoint.metadata.sources.keys()
    assert found.verify() == []


@pytest.mark.parametrize("groups", [7, 1024])
def test_another_number_of_key_groups(jobs: Jobs, savepoint: Savepoint, groups: int) -> None:
    writer = SavepointWriter.from_existing(checkpoint(jobs)).with_max_parallelism(groups)
    rewritten = writer.write(jobs.directory / "rewritten")
    assert rewritten.max_parallelism == groups
    codec = KeyCodec((Types.STRING(),), by_columns=True)
    for row in rewritten.state("shop", "total").collect():
        assert row["key_group"] == codec.group(row["key"], groups)
    assert all(s.same for s in diff(savepoint, rewritten).summary())
    buy(jobs, ("ann", "pie", 1))
    env = shop(jobs, "fork")
    assert not rewritten.check(env).ok
    env.set_max_parallelism(groups)
    assert rewritten.check(env).ok
    env.execute("fork", bounded=True, start_from=rewritten.location, fork=True)
    assert jobs.out("fork") == [("ann", 8, ["tea", "jam", "pie"], [1, 3, 4])]


def test_sources_are_forgotten_or_taken_from_elsewhere(jobs: Jobs, savepoint: Savepoint) -> None:
    fresh = SavepointWriter.from_existing(savepoint).without_sources()
    fresh.write(jobs.directory / "fresh")
    shop(jobs, "again").execute(
        "again", bounded=True, start_from=jobs.directory / "fresh", fork=True
    )
    assert ("cid", 2, ["tea", "tea"], [1]) in jobs.out("again")  # all input a second time
    only = SavepointWriter.new(spark=jobs.spark).with_sources(savepoint)
    only.write(jobs.directory / "only")
    buy(jobs, ("cid", "pie", 1))
    shop(jobs, "only out").execute(
        "only", bounded=True, start_from=jobs.directory / "only", fork=True
    )
    assert jobs.out("only out") == [("cid", 1, ["pie"], [1])]


def test_sources_by_hand(jobs: Jobs) -> None:
    writer = SavepointWriter.new(spark=jobs.spark, job="mine", max_parallelism=64)
    writer.with_sources({"kafka": {"topic": {"0": 17}}, "new": None})
    made = writer.write(jobs.directory / "sp")
    assert made.sources == {"kafka": '{"topic": {"0": 17}}', "new": None}
    assert (made.job, made.epoch, made.max_parallelism) == ("mine", 0, 64)
    assert made.states() == []


# -- bootstrap


def bootstrap(jobs: Jobs, key: str, **keyed: Any) -> Savepoint:
    """Three states out of batch data; `key` is the expression of the key column."""
    spark = jobs.spark
    past = spark.createDataFrame(
        [("ann", "tea", 3, 0), ("ann", "jam", 4, 1), ("bob", "jam", 5, 0)],
        "user string, item string, price bigint, position bigint",
    ).withColumn("key", F.expr(key))
    total = past.groupBy("user", "key").agg(F.sum("price").alias("value"))
    prices = past.withColumnsRenamed({"item": "map_key", "price": "value"})
    return (
        SavepointWriter.new(spark=spark)
        .with_state("shop", TOTAL, total, **keyed)
        .with_state("shop", ITEMS, past.withColumnRenamed("item", "value"), **keyed)
        .with_state("shop", PRICES, prices, **keyed)
        .write(jobs.directory / "past")
    )


@pytest.mark.parametrize("how", ["column", "function"])
def test_a_job_starts_from_batch_data(jobs: Jobs, how: str) -> None:
    buy(jobs, ("ann", "pie", 1), ("eve", "pie", 2))
    if how == "column":
        made = bootstrap(jobs, "user", key_by="user")
        env = shop(jobs)
        ann, eve = "ann", "eve"
    else:
        made = bootstrap(jobs, "upper(user)", key_type=str)
        env = shop(jobs, key=(lambda row: row.user.upper(),), key_type=str)
        ann, eve = "ANN", "EVE"
    assert made.check(env).ok
    env.execute("job", bounded=True, start_from=made.location, fork=True)
    assert jobs.out() == [
        (ann, 8, ["tea", "jam", "pie"], [1, 3, 4]),
        (eve, 2, ["pie"], [2]),
    ]


def test_keys_of_several_columns(jobs: Jobs) -> None:
    spark = jobs.spark
    past = spark.createDataFrame(
        [("ann", "tea", 3), ("ann", "jam", 4)], "user string, item string, value bigint"
    )
    made = (
        SavepointWriter.new(spark=spark)
        .with_state("shop", TOTAL, past, key_by=["user", "item"])
        .write(jobs.directory / "past")
    )
    assert rows(made.state("shop", "total"), "key.f0", "key.f1", "value") == [
        ("ann", "jam", 4),
        ("ann", "tea", 3),
    ]
    # Written again by key, and for another number of key groups: found all the same.
    again = SavepointWriter.from_existing(made).with_state(
        "shop", TOTAL, made.state("shop", "total")
    )
    again = again.with_max_parallelism(32).write(jobs.directory / "again")
    buy(jobs, ("ann", "tea", 1), ("ann", "pie", 1))
    env = shop(jobs, key=("user", "item"))
    env.set_max_parallelism(32)
    env.execute("job", bounded=True, start_from=again.location, fork=True)
    assert [(row[0], row[1]) for row in jobs.out()] == [
        ("('ann', 'pie')", 1),
        ("('ann', 'tea')", 4),
    ]


# -- what is refused


@pytest.mark.parametrize(
    ("descriptor", "columns", "data", "told"),
    [
        (TOTAL, "key string, value bigint", [("a", 1), ("b", 1), ("a", 1)],
         "state 'total' of operator 'op': there are two rows for the key 'a'"),
        (PRICES, "key string, map_key string, value bigint", [("a", "x", 1), ("a", "x", 2)],
         "two rows for the map key 'x' of the key 'a'"),
        (TOTAL, "key string, value bigint", [("a", 1), (None, 1)],
         "state 'total' of operator 'op', column key: null cannot be a key"),
        (TOTAL, "key string, value bigint", [("a", None)], "a value is null"),
        (ITEMS, "key string, position bigint, value string", [("a", 1 << 32, "x")], "epoch 1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", [{"key_by": "key"}, {"key_type": str}])
def test_rows_that_cannot_be_state(
    jobs: Jobs, descriptor: Any, columns: str, data: Any, told: str, how: dict[str, Any]
) -> None:
    frame = jobs.spark.createDataFrame(data, columns)
    writer = SavepointWriter.new(spark=jobs.spark).with_state("op", descriptor, frame, **how)
    with pytest.raises(StateError, match=told):
        writer.write(jobs.directory / "sp")
    # Nothing is left, so that the next attempt can use the same directory.
    assert not [p for p in (jobs.directory / "sp").rglob("*") if p.is_file()]
    good = jobs.spark.createDataFrame(data[:0], columns)
    SavepointWriter.new(spark=jobs.spark).with_state("op", descriptor, good, **how).write(
        jobs.directory / "sp"
    )


@pytest.mark.parametrize(
    ("descriptor", "columns", "how", "told"),
    [
        (TOTAL, "key string, value int", {"key_by": "key"},
         "state 'total' of operator 'op': column 'value' is int, expected bigint; cast it"),
        (TOTAL, "key string, n bigint", {"key_by": "key"}, "no column 'value', only 'key', 'n'"),
        (TOTAL, "key string, value bigint", {"key_by": "user"}, "no column 'user'"),
        (TOTAL, "key string, value bigint", {"key_type": int},
         "column 'key' is string, expected bigint"),
        (ITEMS, "key string, value string", {"key_by": "key"}, "no column 'position'"),
        (PRICES, "key string, map_key int, value bigint", {"key_by": "key"}, "'map_key' is int"),
        (ValueStateDescriptor("v", EVERY), "key string, value struct<text:string>",
         {"key_by": "key"}, "is struct<text:string>, expected struct<text:string,at"),
        (TOTAL, "key interval day to second, value bigint", {"key_by": "key"}, "cannot be state"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit(
    jobs: Jobs, descriptor: Any, columns: str, how: dict[str, Any], told: str
) -> None:
    frame = jobs.spark.createDataFrame([], columns)
    with pytest.raises(StateError, match=told):
        SavepointWriter.new(spark=jobs.spark).with_state("op", descriptor, frame, **how)


def test_what_a_writer_refuses(jobs: Jobs, savepoint: Savepoint) -> None:
    frame = jobs.spark.createDataFrame([("a", 1)], "key string, value bigint")
    writer = SavepointWriter.new(spark=jobs.spark)
    with pytest.raises(ConfigurationError, match=r"key_by= \(columns\) or key_type="):
        writer.with_state("op", TOTAL, frame)
    with pytest.raises(ConfigurationError, match="not both"):
        writer.with_state("op", TOTAL, frame, key_by="key", key_type=str)
    with pytest.raises(ConfigurationError, match="Spark's tasks have no part"):
        writer.write("memory://sp")
    existing = SavepointWriter.from_existing(savepoint)
    with pytest.raises(StateError, match="all states of an operator have the keys of its stream"):
        existing.with_state("shop", TOTAL, frame, key_type=str)
    with pytest.raises(ConfigurationError, match="a batch DataFrame is needed, got None"):
        existing.transform_state("shop", "total", lambda df: None)
    with pytest.raises(StateError, match="column 'value' is string, expected bigint"):
        existing.transform_state("shop", "total", lambda df: df.withColumn("value", F.lit("x")))
    with pytest.raises(StateError, match="descriptor of 'sum'; call rename_state"):
        existing.transform_state("shop", "total", lambda df: df, ValueStateDescriptor("sum", int))
    with pytest.raises(ConfigurationError, match="is not empty"):
        existing.write(jobs.directory / "sp")
    assert savepoint.verify() == []


def test_what_the_documentation_shows(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (shown,) = (block for block in blocks if "SavepointWriter" in block)
    monkeypatch.chdir(jobs.directory)
    bought(jobs, *FIRST)
    saved(jobs, "savepoints/before")
    bought(jobs, ("ann", "refund", -50))
    saved(jobs, "savepoints/after")
    past = jobs.spark.createDataFrame([("ann", 1)], "user string, value bigint")
    exec(shown, {"past": past})
    cleaned = Savepoint.load("savepoints/cleaned")
    assert totals(cleaned.state("store", "total")) == {"bob": 5, "cid": 1}
    assert totals(Savepoint.load("savepoints/from-the-warehouse").state("shop", "total")) == {
        "ann": 1
    }
