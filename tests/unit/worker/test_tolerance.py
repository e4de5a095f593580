"""Elements at which a function fails: left out without a trace, or kept as dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine import LocalEngine, collected, environment, source
from turnback import (
    CollectSink,
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    Row,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.errors import PlanError, UserFunctionError
from turnback.functions import (
    CheckpointedFunction,
    KeyedBatchFunction,
    KeyedCoProcessFunction,
    ReducingStateDescriptor,
)
from turnback.plan.bad_records import Letter, decode_letter
from turnback.values.columns import Batch
from turnback.values.hints import as_type
from turnback.values.serializer import Serializer
from turnback.windows import TumblingEventTimeWindows
from turnback.worker.tolerance import surely_fits
from type_strategies import ELEMENTS

EVENT = "key string, n bigint"
TIMED = "key string, at bigint"
ASIDE = OutputTag("aside", Types.LONG())


def positive(row: Any) -> int:
    if row.n < 0:
        raise ValueError(f"{row.n} is negative")
    return int(row.n)


class Plain(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ASIDE, value.n
        yield 100
        yield positive(value)


class Keyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ASIDE, value.n
        yield 100
        yield positive(value)


class Both(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield 100
        yield positive(value)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield 100
        yield positive(value)


WAYS: dict[str, Callable[[DataStream], DataStream]] = {
    "map": lambda s: s.map(positive, int),
    "flat_map": lambda s: s.flat_map(lambda row: [100, positive(row)], int),
    "filter": lambda s: s.filter(lambda row: positive(row) > 0),
    "process": lambda s: s.process(Plain(), int),
    "keyed map": lambda s: s.key_by("key").map(positive, int),
    "keyed filter": lambda s: s.key_by("key").filter(lambda row: positive(row) > 0),
    "keyed process": lambda s: s.key_by("key").process(Keyed(), int),
    "co": lambda s: s.key_by("key").connect(s.key_by("key")).process(Both(), int),
}
EVENTS = [("a", 1), ("a", -2), ("b", 3), ("b", -4)]


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return environment(2)


def run(env: StreamExecutionEnvironment, directory: Path, *epochs: list[Any]) -> LocalEngine:
    engine = LocalEngine(env.plan(), directory)
    for epoch in epochs:
        engine.epoch({"s": epoch})
    return engine


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_it_goes_on_without_them(
    env: StreamExecutionEnvironment, tmp_path: Path, way: str, policy: str
) -> None:
    stream = WAYS[way](source(env, "s", EVENT)).uid("op").on_error(policy)
    out = collected(stream, "out")
    letters = collected(stream.dead_letters(), "letters") if policy == "dead_letter" else None
    run(env, tmp_path, EVENTS[:2], EVENTS[2:])
    times = 2 if way == "co" else 1
    found = [row.n if "filter" in way else row for row in out.results]
    assert sorted(n for n in found if n != 100) == sorted([1, 3] * times)
    assert found.count(100) == (found.count(1) + found.count(3) if 100 in found else 0)
    if letters is not None:
        told = sorted((row.element, row.error, row.epoch) for row in letters.results)
        assert told == times_sorted(times)
        assert {row.operator for row in letters.results} == {"op"}
        keyed = way.startswith(("keyed", "co"))
        assert {row.key for row in letters.results} == ({"'a'", "'b'"} if keyed else {None})
        decode = Serializer(as_type(EVENT)).decode
        whole = [decode_letter(row.data) for row in letters.results]
        assert sorted({decode(letter.element).n for letter in whole}) == [-4, -2]
        assert [each.position for each in whole] == [row.position for row in letters.results]
        assert len({letter.id for letter in whole}) == len(whole)


def times_sorted(times: int) -> list[tuple[str, str, int]]:
    one = ("Row(key='a', n=-2)", "ValueError: -2 is negative", 1)
    two = ("Row(key='b', n=-4)", "ValueError: -4 is negative", 2)
    return sorted([one, two] * times)


def test_without_a_policy_it_fails(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    collected(source(env, "s", EVENT).map(positive, int).on_error("fail"), "out")
    with pytest.raises(UserFunctionError, match="-2 is negative"):
        run(env, tmp_path, EVENTS)


def test_what_it_gave_aside_is_gone_as_well(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    stream = source(env, "s", EVENT).key_by("key").process(Keyed(), int).on_error("skip")
    collected(stream, "out")
    aside = collected(stream.get_side_output(ASIDE), "aside")
    run(env, tmp_path, EVENTS)
    assert sorted(aside.results) == [1, 3]


@pytest.mark.parametrize("keyed", [False, True])
def test_what_does_not_fit_the_output_type_is_a_failure_too(
    env: StreamExecutionEnvironment, tmp_path: Path, keyed: bool
) -> None:
    stream = source(env, "s", EVENT)
    read = stream.key_by("key") if keyed else stream
    wrong = read.map(lambda row: "text" if row.n < 0 else row.n, int).uid("op")
    out = collected(wrong.on_error("dead_letter"), "out")
    letters = collected(wrong.dead_letters(), "letters")
    run(env, tmp_path, EVENTS)
    assert sorted(out.results) == [1, 3]
    assert all("does not match its output type" in row.error for row in letters.results)
    assert len(letters.results) == 2


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(),
    st.text(st.characters(categories=["Cs"]), max_size=2),
    st.tuples(st.integers(), st.text()),
    st.lists(st.integers(), max_size=2),
)


@given(type=ELEMENTS.types(), value=ODD, data=st.data())
def test_what_a_quick_look_lets_pass_fits(type: Any, value: Any, data: st.DataObject) -> None:
    fits = surely_fits(type)
    if fits(value):
        assert len(Batch(type, [value]).arrow) == 1
    of_type = data.draw(ELEMENTS.values(type))
    if fits(of_type):
        assert len(Batch(type, [of_type]).arrow) == 1


@dataclass
class Point:
    x: int


def test_rows_of_a_class_that_is_no_tuple(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    points = source(env, "s", EVENT).map(lambda row: Point(positive(row)), Point)
    out = collected(points.on_error("skip"), "out")
    run(env, tmp_path, EVENTS)
    assert sorted(point.x for point in out.results) == [1, 3]


# -- state


class Everything(KeyedProcessFunction):
    """Changes all kinds of state, then fails at some elements."""

    value = ValueStateDescriptor("value", int)
    boxed = ValueStateDescriptor("boxed", Types.LIST(Types.LONG()))
    many = ListStateDescriptor("many", Types.LONG())
    named = MapStateDescriptor("named", Types.LONG(), Types.LONG())
    total = ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
    kept = ListStateDescriptor("kept", Types.LONG())
    kept.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n = abs(value.n)
        timers = ctx.timer_service()
        key = ctx.get_current_key()
        yield self.seen(key, n)
        self.value.update((self.value.value() or 0) + n)
        self.boxed.update([*(self.boxed.value() or ()), n])
        self.total.add(n)
        self.kept.add(n)
        match n % 5:
            case 0:
                self.many.clear()
                self.named.clear()
            case 1:
                self.many.update([n])
                self.named.put(n % 3, n)
            case 2:
                self.named.remove(n % 3)
                self.value.clear()
            case _:
                self.many.add(n)
                self.named.put(n % 3, n)
                assert list(self.named.items()) is not None  # reads them all
        self.many.add(-n)
        timers.register_event_time_timer(n)
        timers.delete_event_time_timer(n // 2)
        yield self.seen(key, n)
        positive(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self.seen(ctx.get_current_key(), timestamp)

    def seen(self, key: str, n: int) -> str:
        named = sorted(self.named.items())
        states = self.value.value(), self.boxed.value(), [*self.many], named, self.total.get()
        return f"{key} {n}: {states} {[*self.kept]}"


def everything(env: StreamExecutionEnvironment, policy: str) -> CollectSink:
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    events = source(env, "s", "key string, n bigint, at bigint")
    timed = events.assign_timestamps_and_watermarks(by_time).uid("time")
    stream = timed.key_by("key").process(Everything(), str).uid("op").on_error(policy)
    return collected(stream, "out")


@pytest.mark.slow
@given(
    events=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-9, 9)), max_size=12),
    cut=st.integers(0, 12),
)
def test_nothing_of_them_stays_in_state_or_timers(
    events: list[tuple[str, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    all_of_them = [(key, n, at) for at, (key, n) in enumerate(events)]
    # Of another key, so that time goes on alike.
    good = [each if each[1] >= 0 else ("z", 1, each[2]) for each in all_of_them]
    results = []
    for policy, some in (("skip", all_of_them), ("fail", good)):
        env = environment(1)
        sink = everything(env, policy)
        engine = LocalEngine(env.plan(), tmp_path_factory.mktemp("state"))
        before = [event for event in some if event[2] < cut]
        engine.epoch({"s": before})
        engine.epoch({"s": some[len(before) :]})
        engine.epoch({}, ended=True)
        results.append([text for text in sink.results if not text.startswith("z")])
    assert results[0] == results[1]


# -- what is refused


class OfBatches(KeyedBatchFunction):
    def process_batch(self, batch: Any, state: Any) -> Any:
        return batch


class Buffers(ProcessFunction, CheckpointedFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        pass


REFUSED: dict[str, tuple[Callable[[DataStream], Any], str]] = {
    "unknown": (lambda s: s.map(positive, int).on_error("ignore"), "one of 'fail', 'skip', 'dead"),
    "none": (lambda s: s.map(positive, int).on_error(None), "on_error takes one of"),
    "source": (lambda s: s.on_error("skip"), "source 's' cannot skip an element"),
    "batches": (
        lambda s: s.map_batches(lambda batch: batch).on_error("skip"),
        "map_batches .* cannot skip",
    ),
    "keyed batches": (
        lambda s: s.key_by("key").process(OfBatches(), EVENT).on_error("skip"),
        "cannot skip an element: only functions of map",
    ),
    "window": (
        lambda s: (
            s.key_by("key")
            .window(TumblingEventTimeWindows.of(Time.seconds(1)))
            .reduce(lambda a, b: a)
            .on_error("skip")
        ),
        "check elements in one of these before it",
    ),
    "operator state": (
        lambda s: s.process(Buffers(), EVENT).on_error("skip"),
        "keeps operator state in its own attributes, .* check elements in a map before it",
    ),
    "union": (lambda s: s.union(s).on_error("skip"), "cannot skip an element"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(env: StreamExecutionEnvironment, case: str) -> None:
    build, message = REFUSED[case]
    with pytest.raises(PlanError, match=message):
        build(source(env, "s", EVENT))


def test_dead_letters_have_to_be_read(env: StreamExecutionEnvironment) -> None:
    stream = source(env, "s", EVENT).map(positive, int).uid("op").on_error("dead_letter")
    collected(stream, "out")
    with pytest.raises(
        PlanError, match=r"'op' .*nothing reads its dead letters; write them .*sink"
    ):
        env.plan()


def test_dead_letters_of_an_operator_that_has_none(env: StreamExecutionEnvironment) -> None:
    stream = source(env, "s", EVENT).map(positive, int).uid("op").on_error("skip")
    collected(stream.dead_letters(), "out")
    with pytest.raises(
        PlanError, match=r"dead letters of operator 'op' .* are read, but it produces"
    ):
        env.plan()


def test_a_wrong_program_is_not_an_element_to_leave_out(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    class SetsTimer(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)

    collected(
        source(env, "s", EVENT).key_by("key").process(SetsTimer(), EVENT).on_error("skip"), "out"
    )
    with pytest.raises(UserFunctionError, match=r"PlanError: .* SetsTimer has no on_timer"):
        run(env, tmp_path, [Row("a", 1)])


def letter_of(uid: str, at: int) -> bytes:
    """A dead letter of an element before it has a timestamp."""
    element = Serializer(as_type(TIMED)).encode(("a", at))
    return Letter(
        job_id="id", operator=uid, attempt=1, epoch=1, task=0, position=0, input=0, time=None,
        type=as_type(TIMED).describe(), element=element,
    ).encode()  # fmt: skip


@pytest.mark.parametrize("behind", [False, True], ids=["read", "behind-a-shuffle"])
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("at", [5, 500], ids=["earlier", "later"])
def test_a_letter_that_is_fed_back_neither_moves_event_time_nor_holds_it(
    tmp_path: Path, at: int, partitions: int, behind: bool
) -> None:
    env = environment(2)
    checked = source(env, "s", TIMED, partitions).map(lambda row: row, TIMED).uid("checked")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    spread = checked.on_error("skip").rebalance() if behind else checked.on_error("skip")
    out = collected(spread.assign_timestamps_and_watermarks(strategy).uid("time"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 100)], "s-0": [("a", 150)], "s-1": [("a", 100)]})
    assert engine.time.watermarks()["time"] == 99
    engine.epoch({}, letters=[letter_of("checked", at)])
    assert ("a", at) in out.results
    assert engine.time.watermarks()["time"] == 99
    engine.epoch({"s": [("a", 200)], "s-0": [("a", 210)], "s-1": [("a", 200)]})
    assert engine.time.watermarks()["time"] == 199


MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


class Passing(KeyedProcessFunction):
    """Gives what it gets, and has timers, so that it is told how far event time has come."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return ()


class PassingBoth(KeyedCoProcessFunction):
    """The same for two inputs."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return ()


@pytest.mark.parametrize("keyed", [False, True], ids=["rebalanced", "keyed"])
def test_a_letter_that_is_fed_back_does_not_move_a_second_strategy_behind_a_shuffle(
    tmp_path: Path, keyed: bool
) -> None:
    env = environment(2)
    timed = source(env, "s", TIMED).assign_timestamps_and_watermarks(MONOTONOUS).uid("first")
    checked = timed.map(lambda row: row, TIMED).uid("checked").on_error("skip")
    behind = checked.key_by("key").process(Passing(), TIMED) if keyed else checked.rebalance()
    out = collected(behind.assign_timestamps_and_watermarks(MONOTONOUS).uid("time"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 100)]})
    engine.epoch({"s": [("a", 150)]}, letters=[letter_of("checked", 500)])
    assert ("a", 500) in out.results
    assert engine.time.watermarks()["time"] == 149


def test_a_letter_that_is_fed_back_and_has_to_wait_does_not_move_event_time_later(
    tmp_path: Path,
) -> None:
    env = environment(2)
    a, b = (
        source(env, uid, TIMED).assign_timestamps_and_watermarks(MONOTONOUS).uid(f"time-{uid}")
        for uid in "ab"
    )
    checked = b.map(lambda row: row, TIMED).uid("checked").on_error("skip")
    both = a.connect(checked).key_by("key", "key").process(PassingBoth(), TIMED)
    out = collected(both.assign_timestamps_and_watermarks(MONOTONOUS).uid("time"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"a": [("a", 100)], "b": [("a", 100)]})
    engine.epoch({}, letters=[letter_of("checked", 500)])
    assert ("a", 500) not in out.results
    engine.epoch({"a": [("a", 200)], "b": [("a", 200)]})
    engine.epoch({"a": [("a", 300)], "b": [("a", 300)]})
    assert ("a", 500) in out.results
    assert engine.time.watermarks()["time"] == 299
