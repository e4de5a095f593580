"""State with a time to live in whole jobs: expiry by the clock, savepoints, changed programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from job_support import COUNTED, Jobs, counted
from local_engine import LocalEngine, collected, environment, source
from saved_jobs import FIRST, SECOND, build, feed, rows, save, settled
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
)
from turnback.driver.epochs import MergeTask
from turnback.functions import CheckpointedFunction, KeyedBatchFunction, KeyedColumns
from turnback.sinks import DiscardSink
from turnback.snapshot.diff import state_pair
from turnback.snapshot.find import load_savepoint
from turnback.snapshot.preflight import Verdict, check
from turnback.snapshot.snapshot import state_rows
from turnback.snapshot.writer import export_tasks
from turnback.state.expiry import merge_limits
from turnback.state.files import StorageRef, plan_merges
from turnback.state.schema import state_prefix
from turnback.state.stores import HashMapStore
from turnback.testing import JobHarness
from turnback.testing import source as pushed
from turnback.views.browse import page
from turnback.views.compare import page as differences
from turnback.views.compare import states

MINUTE = 60_000


def ttl(time: Time, **how: bool) -> StateTtlConfig:
    builder = StateTtlConfig.new_builder(time)
    if how.get("full"):
        builder = builder.cleanup_full_snapshot()
    if how.get("quiet"):
        builder = builder.disable_cleanup_in_background()
    return builder.build()


class Counts(KeyedProcessFunction):
    """Gives every element of a key its number, as long as the key is remembered."""

    def __init__(self, config: StateTtlConfig | None) -> None:
        self.config = config

    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("count", int)
        if self.config is not None:
            descriptor.enable_time_to_live(self.config)
        self.count = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield ctx.get_current_key(), n


class BatchCounts(KeyedBatchFunction):
    count = ValueStateDescriptor("count", int).enable_time_to_live(ttl(Time.minutes(10)))

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.Table:
        now = pc.add(state.read(self.count).fill_null(0), 1)
        state.write(self.count, now)
        return pa.table({"key": state.keys, "n": now})


class Engine:
    """One attempt of a small job whose clock the test moves."""

    def __init__(self, root: Path, function: Any, parallelism: int = 2, **how: Any) -> None:
        env = environment(parallelism)
        stream = source(env, "s", "k string, n bigint").key_by("k")
        self.sink = collected(stream.process(function, COUNTED).uid("count"), "out")
        self.engine = LocalEngine(env.plan(), root, **{"backend": "rocksdb", **how})

    def at(self, minute: float, keys: str) -> list[Any]:
        self.engine.clock.set_now_ms(round(minute * MINUTE))
        before = len(self.sink.results)
        self.engine.epoch({"s": [(k, 0) for k in keys]})
        return sorted(map(tuple, self.sink.results[before:]))


@pytest.mark.parametrize("function", [Counts(ttl(Time.minutes(10))), BatchCounts()])
def test_keys_are_forgotten_by_the_clock_of_the_epoch(tmp_path: Path, function: Any) -> None:
    job = Engine(tmp_path, function)
    assert job.at(0, "ab") == [("a", 1), ("b", 1)]
    assert job.at(9, "a") == [("a", 2)]
    assert job.at(10, "ab") == [("a", 3), ("b", 1)]
    assert job.at(30, "ab") == [("a", 1), ("b", 1)]


def test_a_clock_that_is_set_back_brings_nothing_back(tmp_path: Path) -> None:
    """What has expired may be gone from some files and stores, and not from others."""
    job = Engine(tmp_path, Counts(ttl(Time.minutes(10), quiet=True)))
    assert job.at(0, "a") == [("a", 1)]
    assert job.at(30, "b") == [("b", 1)]
    assert job.at(5, "ab") == [("a", 1), ("b", 2)]


def test_merging_shrinks_what_nobody_asks_for_any_more(tmp_path: Path) -> None:
    job = Engine(tmp_path, Counts(ttl(Time.minutes(10))), parallelism=1)
    engine = job.engine
    sizes = []
    for minute in range(60):
        job.at(minute, "abcdefghijklmnop"[minute % 16] * 2)
        job.at(minute, "".join(chr(256 + 20 * minute + number) for number in range(20)))
        assert engine.acks is not None
        (id, files) = next(iter(engine.file_index.items()))
        schemas = [schema for ack in engine.acks.acks for schema in ack.schemas]
        limits = merge_limits(schemas, minute * MINUTE)
        for merge in plan_merges(files):
            task = MergeTask(
                id, merge.files, merge.final, ("count",), (0, 127), engine.storage, 1, limits
            )
            engine.file_index.replace(id, merge.files, task.run())
        sizes.append(sum(file.rows for file in engine.file_index.of_level(id[0])[id[1]]))
    assert max(sizes) < 3 * 10 * 22
    again = Engine(tmp_path / "x", Counts(ttl(Time.minutes(10))), 1, files=engine.file_index.live())
    again.engine.storage, again.engine.number = engine.storage, engine.number
    # Of the last ten minutes, twice each; the others are forgotten.
    assert again.at(59, "fa") == [("a", 1), ("f", 3)]


# -- savepoints


def minutes_old(path: Path) -> set[int]:
    table = pq.read_table(path / "state" / "count" / "count")
    now = datetime.now(UTC)
    return {(now - at) // timedelta(minutes=1) for at in table["updated_at"].to_pylist()}


DAY = ttl(Time.days(1))
CHANGES = {
    "as it was": (DAY, DAY, Verdict.RESTORED, ""),
    "switched on": (None, DAY, Verdict.MIGRATED, "values are kept for 1 d, previously for ever"),
    "switched off": (DAY, None, Verdict.MIGRATED, "values are kept for ever, previously for 1 d"),
    "made longer": (
        DAY,
        ttl(Time.days(2)),
        Verdict.RESTORED,
        "values are kept for 2 d, previously for 1 d",
    ),
}


class Declared(Counts):
    """Declares its state, so that a preflight knows it."""

    def open(self, runtime_context: Any) -> None:
        pass


def declared(config: StateTtlConfig | None) -> Any:
    descriptor = ValueStateDescriptor("count", int)
    if config is not None:
        descriptor.enable_time_to_live(config)
    return type("Declared", (Declared,), {"count": descriptor})(config)


@pytest.mark.parametrize("from_checkpoint", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_program_with_another_time_to_live_goes_on(
    jobs: Jobs, change: str, from_checkpoint: bool
) -> None:
    before, after, verdict, reason = CHANGES[change]
    feed(jobs, FIRST)
    path = save(jobs, build(jobs, Counts(before)))
    feed(jobs, SECOND)
    report = check(build(jobs, declared(after)).plan(), load_savepoint(str(path), {}))
    (row,) = (row for row in report.rows if row.state == "count")
    assert (row.verdict, row.blocking) == (verdict, False)
    assert row.reason.startswith(reason)
    how: dict[str, Any] = {} if from_checkpoint else {"start_from": path}
    build(jobs, Counts(after)).execute("job", bounded=True, **how)
    assert jobs.out("out") == counted(FIRST + SECOND)
    # And it can be saved again, with times or without.
    feed(jobs, "a")
    again = jobs.directory / "again"
    client = jobs.start(build(jobs, Counts(after)), "job")
    settled(jobs, FIRST + SECOND + "a")
    client.stop_with_savepoint(savepoint_directory=again).result(90)
    client.result(90)
    assert rows(again) == {k: (FIRST + SECOND + "a").count(k) for k in "abcd"}
    if after is not None:
        assert minutes_old(again) <= {0, 1}
    else:
        assert "updated_at" not in pq.read_table(again / "state" / "count" / "count").schema.names


@pytest.mark.parametrize("full", [False, True])
def test_a_savepoint_holds_what_has_expired_unless_told_otherwise(
    tmp_path: Path, full: bool
) -> None:
    job = Engine(tmp_path, Counts(ttl(Time.minutes(10), full=full)))
    job.at(0, "abc")
    job.at(9, "b")
    engine = job.engine
    assert engine.acks is not None
    manifest: Any = SimpleNamespace(
        state=engine.file_index.live(),
        max_parallelism=128,
        schemas=tuple(schema for ack in engine.acks.acks for schema in ack.schemas),
        created_ms=12 * MINUTE,
    )
    for task in export_tasks(manifest, engine.storage, StorageRef(str(tmp_path / "sp"))):
        task.run()
    saved = pq.read_table(tmp_path / "sp" / "state" / "count" / "count").to_pylist()
    times = {row["key"]: row["updated_at"].timestamp() / 60 for row in saved}
    assert times == ({"b": 9} if full else {"a": 0, "b": 9, "c": 0})


class Kinds(KeyedProcessFunction):
    """A value, a list and a map that expire after a day."""

    value = ValueStateDescriptor("value", int).enable_time_to_live(DAY)
    list = ListStateDescriptor("list", str).enable_time_to_live(DAY)
    map = MapStateDescriptor("map", str, Types.TUPLE([Types.LONG()])).enable_time_to_live(DAY)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n = (self.value.value() or 0) + 1
        self.value.update(n)
        self.list.add(f"e{n}")
        self.map[f"m{n % 2}"] = (n,)
        yield value.k, len(self.list.get()) * 100 + len(self.map.items())


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_every_kind_survives_a_rescale_with_its_times(jobs: Jobs, parallelism: int) -> None:
    feed(jobs, FIRST)
    path = save(jobs, build(jobs, Kinds(), parallelism=2))
    times = {}
    for name in ("value", "list", "map"):
        table = pq.read_table(path / "state" / "count" / name)
        times[name] = sorted(map(str, table["updated_at"].to_pylist()))
    env = build(jobs, Kinds(), "again", parallelism=parallelism)
    other = jobs.directory / "other"
    client = jobs.start(env, "other", start_from=path, fork=True)
    client.stop_with_savepoint(savepoint_directory=other).result(90)
    client.result(90)
    for name, before in times.items():
        table = pq.read_table(other / "state" / "count" / name)
        assert sorted(map(str, table["updated_at"].to_pylist())) == before
    feed(jobs, SECOND)
    build(jobs, Kinds(), "again", parallelism=parallelism).execute("other", bounded=True)
    expected = [(k, n * 100 + min(n, 2)) for k, n in counted(FIRST + SECOND)]
    for k, n in counted(FIRST):
        expected.remove((k, n * 100 + min(n, 2)))
    assert jobs.out("again") == sorted(expected, key=repr)


def test_times_are_shown_and_do_not_count_as_differences(jobs: Jobs) -> None:
    feed(jobs, FIRST)
    plain = load_savepoint(str(save(jobs, build(jobs, Counts(None)))), {})
    build(jobs, Counts(DAY)).execute("job", bounded=True)
    path = jobs.directory / "timed"
    client = jobs.start(build(jobs, Counts(DAY)), "job")
    client.stop_with_savepoint(savepoint_directory=path).result(90)
    client.result(90)
    timed = load_savepoint(str(path), {})
    shown = page(timed, "count", "count")
    assert shown.columns == ("key", "value", "updated_at")
    assert {row[0]: row[1] for row in shown.rows} == {k: FIRST.count(k) for k in "abcd"}
    assert all(row[2].startswith("20") for row in shown.rows)
    assert page(timed, "count", "count", key="a").rows[0][:2] == ("a", FIRST.count("a"))
    assert [row.ttl_ms for row in state_rows(timed)] == [86_400_000]
    assert [row.ttl_ms for row in state_rows(plain)] == [None]
    for before, after in [(plain, timed), (timed, plain), (timed, timed)]:
        found = differences(before, after, "count", "count")
        assert (found.added, found.removed, found.changed, found.same) == (0, 0, 0, 4)
    assert state_pair(plain, timed, "count", "count").note == (
        "values are kept for 1 d, previously for ever"
    )
    assert state_pair(timed, timed, "count", "count").note == ""
    (compared,) = states(plain, timed)
    assert compared.note == "values are kept for 1 d, previously for ever"
    assert [each.note for each in states(timed, timed)] == [None]


def test_the_harness_shows_values_without_their_times(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        stream = pushed(env, "s", "k string, n bigint").key_by("k")
        stream.process(Kinds(), COUNTED).uid("kinds").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("s", ("a", 1), ("a", 1), ("b", 1))
        assert job.state("kinds", "value") == {"a": 2, "b": 1}
        assert job.state("kinds", "list") == {"a": ["e1", "e2"], "b": ["e1"]}
        assert job.state("kinds", "map") == {"a": {"m0": (2,), "m1": (1,)}, "b": {"m1": (1,)}}


class Remembering(Counts, CheckpointedFunction):
    """Has operator state besides, so that its keyed state is known late."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.calls = store.get_list_state(ListStateDescriptor("calls", int))

    def snapshot_state(self, context: Any) -> None:
        self.calls.update([1])


def test_local_stores_lose_state_that_is_known_late(tmp_path: Path) -> None:
    job = Engine(tmp_path, Remembering(ttl(Time.minutes(10))), parallelism=1, backend="hashmap")
    for minute in range(40):
        job.at(minute, "".join(chr(256 + 20 * minute + number) for number in range(20)))
    job.at(39, "a")
    (store,) = (path for path in job.engine.local.rglob("data.mdb"))
    with closing(HashMapStore(store.parent)) as opened:
        entries = sum(1 for where, _ in opened.scan(state_prefix("count", "count")))
    assert 200 <= entries <= 300


def test_another_time_to_live_of_state_that_is_known_late_renews_the_stores(jobs: Jobs) -> None:
    feed(jobs, FIRST)
    build(jobs, Remembering(ttl(Time.days(1)))).execute("job", bounded=True)
    feed(jobs, SECOND)
    build(jobs, Remembering(ttl(Time.days(1)))).execute("job", bounded=True)
    assert [path.name for path in taken_in(jobs)] == []
    feed(jobs, "a")
    build(jobs, Remembering(ttl(Time.days(2)))).execute("job", bounded=True)
    assert taken_in(jobs)
    assert jobs.out("out") == counted(FIRST + SECOND + "a")


def taken_in(jobs: Jobs) -> list[Path]:
    return list((jobs.root / "job" / "state").rglob("taken-*"))
