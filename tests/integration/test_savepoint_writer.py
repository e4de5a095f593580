"""Savepoints that no job has taken: rewritten, and made from batch data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from shop import (
    EVERY,
    FIRST,
    ITEMS,
    PRICES,
    TOTAL,
    bought,
    buy,
    checkpoint,
    rows,
    saved,
    shop,
    totals,
)

import subtasks_job
from job_support import Jobs
from turnback import Savepoint, SavepointWriter, Types, ValueStateDescriptor, diff
from turnback.errors import (
    ConfigurationError,
    StateError,
)
from turnback.job.directory import JobDirectory
from turnback.testing.streams import newest_state
from turnback.values.keys import KeyCodec

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


def test_operator_state(jobs: Jobs) -> None:
    golden = Path(__file__).parent / "golden" / "subtasks-1"
    (
        SavepointWriter.from_existing(Savepoint.load(golden, jobs.spark))
        .transform_state("keep", "split", lambda df: df.where("value.n < 5"))
        .with_max_parallelism(32)
        .write(jobs.directory / "changed")
    )
    subtasks_job.write(jobs.directory / "events", [100])
    env = jobs.env(parallelism=2).set_max_parallelism(32)
    subtasks_job.build(env, jobs.directory / "events")
    env.execute("subtasks", bounded=True, start_from=jobs.directory / "changed")
    directory = JobDirectory.locate(str(jobs.root), "subtasks")
    kept = newest_state(directory, "keep", "split")
    assert sorted(row[0] for rows in kept.values() for row in rows) == [0, 1, 2, 3, 4, 100]
    assert [len(kept[subtask]) for subtask in (0, 1)] in ([4, 2], [3, 3])
    assert newest_state(directory, "keep", "shared") == {0: {"made": 7}}


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
        (TOTAL, "key string, n bigint", {"key_by": "key"},
         "no column 'value'; the columns are 'key', 'n'"),
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
    with pytest.raises(ConfigurationError, match="Spark's tasks have no access"):
        writer.write("memory://sp")
    existing = SavepointWriter.from_existing(savepoint)
    with pytest.raises(StateError, match="all states of an operator have the keys of its stream"):
        existing.with_state("shop", TOTAL, frame, key_type=str)
    with pytest.raises(ConfigurationError, match="expected a batch DataFrame, got None"):
        existing.transform_state("shop", "total", lambda df: None)
    with pytest.raises(StateError, match="column 'value' is string, expected bigint"):
        existing.transform_state("shop", "total", lambda df: df.withColumn("value", F.lit("x")))
    with pytest.raises(StateError, match="descriptor of 'sum'; call rename_state"):
        existing.transform_state("shop", "total", lambda df: df, ValueStateDescriptor("sum", int))
    with pytest.raises(ConfigurationError, match="is not empty"):
        existing.write(jobs.directory / "sp")
    assert savepoint.verify() == []


def test_what_the_documentation_shows(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
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
