"""State of subtasks: split, in union, broadcast and raw; rescaled, killed, saved and changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from job_support import Jobs
from local_engine import LocalEngine, collected, environment
from local_engine import source as frame
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    Savepoint,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.config import SavepointFormat
from turnback.functions import CheckpointedFunction, FlatMapFunction
from turnback.sinks import DiscardSink
from turnback.snapshot.find import load_snapshot
from turnback.testing import DriverCrash, JobHarness, source
from turnback.views import compare
from turnback.views.browse import page

PARALLELISMS = (1, 2, 3, 8)


class Everything(MapFunction, CheckpointedFunction):
    """Keeps each element in a list of every kind; all subtasks make one and the same entry."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.states = [
            store.get_list_state(ListStateDescriptor("split", int)),
            store.get_union_list_state(ListStateDescriptor("union", int)),
            store.get_list_state(ListStateDescriptor("raw", bytes)),
        ]
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", str, int))
        self.split, self.union, self.raw = ([*state.get()] for state in self.states)

    def map(self, value: int) -> int:
        self.split.append(value)
        self.union.append(value)
        self.raw.append(b"\xff%d" % value)
        return value

    def snapshot_state(self, context: Any) -> None:
        for state, values in zip(self.states, (self.split, self.union, self.raw), strict=True):
            state.update(values)
        if "made" not in self.shared:
            self.shared.put("made", 7)


def everything(env: StreamExecutionEnvironment) -> None:
    numbers = source(env, "s", Types.LONG())
    numbers.map(Everything(), Types.LONG()).uid("all").sink_to(DiscardSink()).uid("out")


def lists(job: JobHarness, name: str, parallelism: int) -> list[list[Any]]:
    """The list of every subtask."""
    stored = job.state("all", name)
    assert stored.keys() <= set(range(parallelism))
    return [stored.get(subtask, []) for subtask in range(parallelism)]


def split(elements: list[Any], parallelism: int) -> list[list[Any]]:
    """As many neighbours for each as for the others, or one more for the first ones."""
    share, left = divmod(len(elements), parallelism)
    sizes = [share + (subtask < left) for subtask in range(parallelism)]
    rest = iter(elements)
    return [[next(rest) for _ in range(size)] for size in sizes]


def joined(parts: list[list[Any]]) -> list[Any]:
    return [element for part in parts for element in part]


@pytest.mark.parametrize("before", PARALLELISMS)
@pytest.mark.parametrize("now", PARALLELISMS)
def test_the_rescale_matrix(tmp_path: Path, before: int, now: int) -> None:
    with JobHarness(everything, tmp_path, parallelism=before) as job:
        job.push("s", *range(11))
        job.push("s", *range(11, 13))
        had = {name: lists(job, name, before) for name in ("split", "union", "raw")}
        assert sorted(joined(had["split"])) == list(range(13))
        job.restart(parallelism=now)
        job.checkpoint()
        for name in ("split", "raw"):
            expected = had[name] if now == before else split(joined(had[name]), now)
            assert lists(job, name, now) == expected
        assert lists(job, "union", now) == [joined(had["union"])] * now
        assert job.state("all", "shared") == {0: {"made": 7}}
        job.push("s", *range(13, 40))
        assert sorted(joined(lists(job, "split", now))) == list(range(40))
        assert sorted(joined(lists(job, "raw", now))) == sorted(b"\xff%d" % n for n in range(40))
        counts = [joined(lists(job, "union", now)).count(n) for n in range(40)]
        assert counts == [now] * 13 + [1] * 27


@pytest.mark.parametrize("format_type", SavepointFormat)
@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 1), (2, 2)])
def test_a_savepoint_into_another_parallelism_and_backend(
    tmp_path: Path, format_type: SavepointFormat, before: int, now: int
) -> None:
    with JobHarness(everything, tmp_path, parallelism=before) as job:
        job.push("s", *range(9))
        had = {name: lists(job, name, before) for name in ("split", "union", "raw")}
        saved = job.savepoint(format_type=format_type)
        job.push("s", 100, 200)
        job.stop()
        job.start(start_from=saved, parallelism=now, state_backend="rocksdb")
        job.checkpoint()
        for name in ("split", "raw"):
            expected = had[name] if now == before else split(joined(had[name]), now)
            assert lists(job, name, now) == expected
        assert lists(job, "union", now) == [joined(had["union"])] * now
        job.push("s", 9)
        assert sorted(joined(lists(job, "split", now))) == [*range(10), 100, 200]


def test_a_savepoint_is_a_table_of_subtasks(tmp_path: Path) -> None:
    with JobHarness(everything, tmp_path, parallelism=3) as job:
        job.push("s", *range(5))
        had = job.state("all", "split")
        saved = job.savepoint()
    table = pq.read_table(saved / "state" / "all" / "split").sort_by(
        [("key", "ascending"), ("position", "ascending")]
    )
    assert table.schema.names == ["key_group", "key", "position", "added", "value"]
    found: dict[int, list[int]] = {}
    for row in table.to_pylist():
        assert row["position"] == len(found.setdefault(row["key"], []))
        found[row["key"]].append(row["value"])
    assert found == had
    (entry,) = pq.read_table(saved / "state" / "all" / "shared").to_pylist()
    assert (entry["key"], entry["map_key"], entry["value"]) == (0, "made", 7)
    states = {state.name: state for state in Savepoint.load(saved).states()}
    kinds = {name: (state.kind, state.rows) for name, state in states.items()}
    assert kinds == {
        "split": ("operator list", 5),
        "union": ("union list", 5),
        "raw": ("operator list", 5),
        "shared": ("broadcast", 1),
    }
    snapshot = load_snapshot(str(saved), {})
    rows = page(snapshot, "all", "split", key="2").rows
    assert [(row[0], row[-1]) for row in rows] == [(2, value) for value in had[2]]


def test_what_differs_does_not_depend_on_where_a_subtask_has_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "SPAN_ROWS", 1)
    with JobHarness(everything, tmp_path, parallelism=2) as job:
        job.push("s", 1)
        before = load_snapshot(str(job.savepoint()), {})
        job.restart(parallelism=3)
        after = load_snapshot(str(job.savepoint()), {})
    assert compare.page(before, after, "all", "shared").rows == ()
    (moved, new) = compare.page(before, after, "all", "split").rows
    assert {moved.change, new.change} == {"removed", "added"}, "in another epoch, so elsewhere"


class Pairs(FlatMapFunction, CheckpointedFunction):
    """Gives elements two by two; the one without a partner waits."""

    def __init__(self) -> None:
        self.waiting: list[int] = []

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.saved = store.get_list_state(ListStateDescriptor("waiting", Types.LONG()))
        if context.is_restored():
            self.waiting.extend(self.saved.get())

    def flat_map(self, value: int) -> Iterator[int]:
        self.waiting.append(value)
        while len(self.waiting) > 1:
            yield self.waiting.pop(0) * 1000 + self.waiting.pop(0)

    def snapshot_state(self, context: Any) -> None:
        self.saved.update(self.waiting)


def pairs(env: StreamExecutionEnvironment) -> None:
    numbers = source(env, "s", Types.LONG())
    numbers.flat_map(Pairs(), Types.LONG()).uid("pairs").sink_to(DiscardSink()).uid("out")


@pytest.mark.parametrize("point", ["before-state-file", "before-manifest", "after-manifest"])
def test_a_killed_driver_loses_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    with JobHarness(pairs, tmp_path, parallelism=1) as job:
        job.push("s", 1, 2, 3)
        job.crash_at(point)
        with pytest.raises(DriverCrash):
            job.push("s", 4, 5)
        job.start()
        job.push("s", 6, 7)
        job.crash()
        job.start()
        job.push("s", 8)
        assert job.output("out") == [1002, 3004, 5006, 7008]


@pytest.mark.parametrize("point", ["after-fence", "before-first-epoch", "before-manifest"])
def test_a_driver_killed_while_it_rescales(tmp_path: Path, point: str) -> None:
    """The next one begins from the same checkpoint, or from what was redistributed, as a whole."""
    with JobHarness(everything, tmp_path, parallelism=2) as job:
        job.push("s", *range(7))
        had = {name: lists(job, name, 2) for name in ("split", "union")}
        job.stop()
        job.crash_at(point)
        with pytest.raises(DriverCrash):
            job.start(parallelism=3)
            job.push("s", 7)
        job.start(parallelism=4)
        job.push("s", 8)
        assert sorted(joined(lists(job, "split", 4)))[:7] == list(range(7))
        counts = [joined(lists(job, "union", 4)).count(n) for n in range(7)]
        assert counts == [4] * 7, "that of the killed driver was not counted in"
        assert sorted(joined(had["union"])) == list(range(7))


def test_an_epoch_that_fails_after_the_function_has_seen_it(tmp_path: Path) -> None:
    with JobHarness(pairs, tmp_path, parallelism=1) as job:
        job.push("s", 1)
        job.fail_task("pairs")
        job.push("s", 2, 3)
        job.push("s", 4)
        assert job.output("out") == [1002, 3004]


def test_an_epoch_that_does_not_count_leaves_nothing_in_a_function(tmp_path: Path) -> None:
    """The worker that has run it may run the epoch again, and others after it."""
    env = environment(1)
    numbers = frame(env, "s", Types.LONG())
    sink = collected(numbers.flat_map(Pairs(), Types.LONG()).uid("pairs"), "out")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=1)
    engine.epoch({"s": [1]})
    for elements in ([7], [8, 9], [2]):
        engine.run_in_vain({"s": elements})
    engine.epoch({"s": [2, 3]})
    engine.run_in_vain({"s": [5]})
    engine.epoch({"s": [4]})
    assert sink.results == [1002, 3004]


def test_what_does_not_change_is_not_written(tmp_path: Path) -> None:
    env = environment(2)
    numbers = frame(env, "s", Types.LONG())
    collected(numbers.map(Everything(), Types.LONG()).uid("all"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [1, 2, 3]})
    engine.epoch({})
    assert engine.acks is not None
    assert [ack.state for ack in engine.acks.acks] == [None] * len(engine.acks.acks)
    engine.epoch({"s": [4]})
    files = [ack.state for ack in engine.acks.acks if ack.state is not None]
    assert [file.rows for file in files] == [3], "only what was added, in each of the lists"


class Sum(KeyedProcessFunction, CheckpointedFunction):
    """State per key, declared and asked for, beside that of the subtask."""

    total = ValueStateDescriptor("total", int)

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen", str))
        keyed = context.get_keyed_state_store()
        self.count = keyed.get_state(ValueStateDescriptor("count", int))
        self.restored = context.get_restored_checkpoint_id()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        self.count.update((self.count.value() or 0) + 1)
        if value.k not in self.seen.get():
            self.seen.add(value.k)
        yield value.k, self.total.value(), self.count.value()

    def snapshot_state(self, context: Any) -> None:
        assert context.get_checkpoint_id() > (self.restored or 0)
        assert context.get_checkpoint_timestamp() > 0


def summed(env: StreamExecutionEnvironment) -> None:
    numbers = source(env, "s", "k string, n bigint")
    sums = numbers.key_by("k").process(Sum(), "k string, total bigint, n bigint").uid("sum")
    sums.sink_to(DiscardSink()).uid("out")


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_keyed_function_has_both_kinds_of_state(tmp_path: Path, backend: str) -> None:
    with JobHarness(summed, tmp_path, parallelism=2, state_backend=backend) as job:
        job.push("s", ("a", 1), ("b", 2), ("c", 3))
        job.push("s", ("a", 10))
        job.restart(parallelism=3)
        job.push("s", ("a", 100), ("b", 20))
        job.crash()
        job.start()
        job.push("s", ("a", 1000))
        assert sorted(map(tuple, job.output("out")))[3] == ("a", 1111, 4)
        assert job.state("sum", "total") == {"a": 1111, "b": 22, "c": 3}
        # In a subtask that has not seen a key before it is in the list once more.
        assert {key for keys in job.state("sum", "seen").values() for key in keys} == set("abc")


def test_a_list_is_read_by_its_new_type(tmp_path: Path) -> None:
    class Narrow(Pairs):
        def initialize_state(self, context: Any) -> None:
            store = context.get_operator_state_store()
            self.saved = store.get_list_state(ListStateDescriptor("waiting", Types.INT()))

    def narrow(env: StreamExecutionEnvironment) -> None:
        numbers = source(env, "s", Types.LONG())
        numbers.flat_map(Narrow(), Types.LONG()).uid("pairs").sink_to(DiscardSink()).uid("out")

    with JobHarness(narrow, tmp_path, parallelism=2) as job:
        job.push("s", 1, 2, 3)
        job.restart(pairs, parallelism=1)
        job.push("s", 4)
        assert job.output("out") == [1003, 2004]


def test_buffered_elements_survive_a_rescale(jobs: Jobs) -> None:
    for parallelism in (2, 3, 1):
        jobs.feed("events", *({"n": n} for n in range(parallelism * 10, parallelism * 10 + 5)))
        env = jobs.env(parallelism=parallelism)
        numbers = jobs.files(env, "events", "n bigint").map(lambda row: row.n, Types.LONG())
        paired = numbers.flat_map(Pairs(), Types.LONG()).uid("pairs")
        paired.map(lambda n: n, Types.LONG()).sink_to(jobs.sink()).uid("out")
        env.execute("job", bounded=True)
    found = [n for pair in jobs.out() for n in divmod(pair, 1000)]
    assert len(found) == len(set(found)) == 14
    assert set(found) < {*range(20, 25), *range(30, 35), *range(10, 15)}


def test_many_epochs_are_merged_and_redistributed(tmp_path: Path) -> None:
    with JobHarness(everything, tmp_path, parallelism=2) as job:
        for n in range(40):
            job.push("s", n, checkpoint=n % 10 == 9)
        for parallelism in (3, 1, 2):
            job.restart(parallelism=parallelism)
            job.push("s", *range(100, 100 + parallelism))
        split_now = joined(lists(job, "split", 2))
        assert sorted(split_now) == sorted([*range(40), 100, 101, 102, 100, 100, 101])
        assert job.state("all", "shared") == {0: {"made": 7}}
