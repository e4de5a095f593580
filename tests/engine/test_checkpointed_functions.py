"""Functions with state of their subtask: which there are, how they change, and misuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.test_operator_state import Everything, Pairs, Sum, joined, pairs
from local_engine import LocalEngine, collected, environment
from local_engine import source as frame
from turnback import (
    AsyncDataStream,
    Duration,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    Savepoint,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
)
from turnback.errors import IncompatibleStateError, PlanError, StateError, UserFunctionError
from turnback.functions import (
    AsyncFunction,
    CheckpointedFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
)
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source


def changed(function: Any) -> Any:
    def program(env: StreamExecutionEnvironment) -> None:
        numbers = source(env, "s", Types.LONG())
        numbers.flat_map(function, Types.LONG()).uid("pairs").sink_to(DiscardSink()).uid("out")

    return program


class Asking(FlatMapFunction, CheckpointedFunction):
    """Asks for what it is told to."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask

    def initialize_state(self, context: Any) -> None:
        self.ask(context.get_operator_state_store())

    def flat_map(self, value: int) -> Iterator[int]:
        yield value

    def snapshot_state(self, context: Any) -> None:
        pass


WAITING = ListStateDescriptor("waiting", Types.LONG())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda store: None, "state 'waiting' of operator 'pairs'"),
        (
            lambda store: store.get_union_list_state(WAITING),
            "operator list state cannot become union list state",
        ),
        (
            lambda store: store.get_list_state(ListStateDescriptor("waiting", str)),
            "state 'waiting' of operator 'pairs' does not match the program",
        ),
    ],
)
def test_changes_that_would_lose_state_are_refused(tmp_path: Path, ask: Any, message: str) -> None:
    with JobHarness(pairs, tmp_path, parallelism=2) as job:
        job.push("s", 1, 2, 3)
        job.stop()
        with pytest.raises(IncompatibleStateError, match=message):
            job.start(changed(Asking(ask)))
        job.start(pairs)
        job.push("s", 4)


def test_a_state_is_renamed_and_one_is_dropped(tmp_path: Path) -> None:
    def other(store: Any) -> None:
        store.get_list_state(ListStateDescriptor("left", Types.LONG()))

    with JobHarness(pairs, tmp_path, parallelism=2) as job:
        job.push("s", 1, 2, 3)
        had = job.state("pairs", "waiting")
        job.restart(changed(Asking(other)), renames={"pairs/waiting": "pairs/left"})
        job.checkpoint()
        assert job.state("pairs", "left") == had
        job.restart(pairs, allow_non_restored_state=["pairs/left"])
        job.push("s", 5)
        assert 3 not in joined(list(job.state("pairs", "waiting").values()))


def test_preflight_says_what_is_known_only_when_it_runs(tmp_path: Path) -> None:
    with JobHarness(pairs, tmp_path, parallelism=2) as job:
        job.push("s", 1, 2, 3)
        saved = job.savepoint()
    env = environment(3)
    numbers = frame(env, "s", Types.LONG())
    collected(numbers.flat_map(Pairs(), Types.LONG()).uid("pairs"), "out")
    rows = {(row.uid, row.state): row for row in Savepoint.load(saved).check(env).rows}
    assert "Pairs may request it in initialize_state()" in rows["pairs", "waiting"].reason
    assert rows["pairs", ""].reason == "parallelism changes from 2 to 3"
    env = environment(3)
    numbers = frame(env, "s", Types.LONG())
    collected(numbers.flat_map(lambda n: [n], Types.LONG()).uid("pairs"), "out")
    rows = {(row.uid, row.state): row for row in Savepoint.load(saved).check(env).rows}
    assert rows["pairs", "waiting"].blocking
    assert "has neither a key nor operator state" in rows["pairs", "waiting"].reason


def twice(store: Any) -> None:
    store.get_list_state(WAITING)
    store.get_union_list_state(WAITING)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (
            lambda store: store.get_list_state(MapStateDescriptor("m", str, int)),
            StateError,
            "operator 'pairs': get_list_state takes a ListStateDescriptor, got MapStateDescriptor",
        ),
        (
            lambda store: store.get_broadcast_state(WAITING),
            StateError,
            "operator 'pairs': get_broadcast_state takes a MapStateDescriptor, got ListState",
        ),
        (
            lambda store: store.get_union_list_state("waiting"),
            StateError,
            "get_union_list_state takes a ListStateDescriptor, got str",
        ),
        (
            lambda store: store.get_list_state(
                ListStateDescriptor("l", int).enable_time_to_live(
                    StateTtlConfig.new_builder(Time.hours(1)).build()
                )
            ),
            StateError,
            "operator 'pairs': the state 'l' has a time to live, which operator state does not",
        ),
        (twice, StateError, "operator 'pairs' has two different states named 'waiting'"),
        (lambda store: 1 / 0, UserFunctionError, r"initialize_state\(\)"),
    ],
)
def test_misuse_is_refused_by_name(tmp_path: Path, ask: Any, error: Any, message: str) -> None:
    env = environment(1)
    numbers = frame(env, "s", Types.LONG())
    collected(numbers.flat_map(Asking(ask), Types.LONG()).uid("pairs"), "out")
    with pytest.raises(error, match=message):
        LocalEngine(env.plan(), tmp_path).epoch({"s": [1]})


class AskingLate(Asking):
    def initialize_state(self, context: Any) -> None:
        self.store = context.get_operator_state_store()

    def flat_map(self, value: int) -> Iterator[int]:
        self.ask(self.store)
        yield value


class NoList(Asking):
    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(WAITING)

    def snapshot_state(self, context: Any) -> None:
        self.ask(self.state)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (
            AskingLate(lambda store: store.get_list_state(WAITING)),
            UserFunctionError,
            r"requests the state 'waiting' after initialize_state\(\)",
        ),
        (NoList(lambda state: state.update([None])), StateError, "cannot hold None"),
        (NoList(lambda state: state.add("x")), StateError, "'x' does not match the declared type"),
        (NoList(lambda state: 1 / 0), UserFunctionError, r"snapshot_state\(\)"),
    ],
)
def test_misuse_later_is_refused_too(
    tmp_path: Path, function: Any, error: Any, message: str
) -> None:
    env = environment(1)
    numbers = frame(env, "s", Types.LONG())
    collected(numbers.flat_map(function, Types.LONG()).uid("pairs"), "out")
    with pytest.raises(error, match=message):
        LocalEngine(env.plan(), tmp_path).epoch({"s": [1]})


def test_one_name_for_two_kinds_of_state_is_refused(tmp_path: Path) -> None:
    class Both(Sum):
        def initialize_state(self, context: Any) -> None:
            store = context.get_operator_state_store()
            store.get_list_state(ListStateDescriptor("total", int))

    env = environment(1)
    numbers = frame(env, "s", "k string, n bigint")
    sums = numbers.key_by("k").process(Both(), "k string, total bigint, n bigint").uid("sum")
    collected(sums, "out")
    with pytest.raises(StateError, match="both named 'total'; rename one of them"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": [("a", 1)]})


def test_operator_state_gives_an_operator_a_fixed_number_of_subtasks() -> None:
    env = environment(3)
    numbers = frame(env, "s", Types.LONG()).map(lambda n: n, Types.LONG()).uid("before")
    collected(numbers.map(Everything(), Types.LONG()), "out")
    plan = env.plan()
    assert [[op.name for op in level.operators][-1] for level in plan.levels] == [
        "function",
        "CollectSink",
    ]
    assert plan.levels[1].parallelism == 3
    assert any("map 'Everything' has no uid" in warning for warning in plan.warnings)


def test_windows_have_no_operator_state() -> None:
    class Windowed(ProcessWindowFunction, CheckpointedFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            yield from elements

        def initialize_state(self, context: Any) -> None:
            pass

        def snapshot_state(self, context: Any) -> None:
            pass

    keyed = frame(environment(1), "s", "k string, n bigint").key_by("k")
    with pytest.raises(PlanError, match="Windowed is a CheckpointedFunction, but window functions"):
        keyed.count_window(2).process(Windowed(), "k string, n bigint")


class Remember(CheckpointedFunction):
    """What each of the functions below keeps."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def snapshot_state(self, context: Any) -> None:
        pass

    def remember(self, value: int) -> int:
        self.seen.add(value)
        return value


class InFilter(FilterFunction, Remember):
    def filter(self, value: int) -> bool:
        return self.remember(value) >= 0


class InProcess(ProcessFunction, Remember):
    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        yield self.remember(value)


class InReduce(ReduceFunction, Remember):
    def reduce(self, value1: int, value2: int) -> int:
        return self.remember(value2)


class InBatches(Remember):
    def __call__(self, batch: Any) -> Any:
        for value in batch.column(0).to_pylist():
            self.remember(value)
        return batch


class InCoMap(CoMapFunction, Remember):
    def map1(self, value: int) -> int:
        return self.remember(value)

    def map2(self, value: int) -> int:
        return self.remember(value)


class InKeyedCoProcess(KeyedCoProcessFunction, Remember):
    def process_element1(self, value: int, ctx: Any) -> Iterator[int]:
        yield self.remember(value)

    def process_element2(self, value: int, ctx: Any) -> Iterator[int]:
        yield self.remember(value)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        pass


class InAsync(AsyncFunction, Remember):
    async def async_invoke(self, value: int) -> list[int]:
        return [self.remember(value)]


LONG = Types.LONG()
KEY = {"key_type": LONG}
READERS: dict[str, Any] = {
    "filter": lambda s: s.filter(InFilter()),
    "process": lambda s: s.process(InProcess(), LONG),
    "reduce": lambda s: s.key_by(lambda n: 0, **KEY).reduce(InReduce()),
    "map_batches": lambda s: s.map_batches(InBatches(), LONG),
    "connect": lambda s: s.connect(s).map(InCoMap(), LONG),
    "keyed connect": lambda s: (
        s.connect(s).key_by(lambda n: n, lambda n: n, LONG).process(InKeyedCoProcess(), LONG)
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_any_function_may_have_it(tmp_path: Path, kind: str) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        read = READERS[kind](source(env, "s", LONG)).uid("all")
        read.sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path, parallelism=2) as job:
        job.push("s", 1, 2, 3)
        job.restart(parallelism=3)
        job.push("s", 4)
        seen = sorted(value for values in job.state("all", "seen").values() for value in values)
    times = 2 if "connect" in kind else 1
    first = [1] if kind == "reduce" else []  # nothing to reduce it with
    assert seen == [n for n in (1, 2, 3, 4) for _ in range(times) if n not in first]


class InCall(Remember):
    def __call__(self, value: int) -> int:
        return self.remember(value)


@pytest.mark.parametrize(
    "read",
    [
        lambda s: AsyncDataStream.ordered_wait(s, InAsync(), Duration.of_seconds(30), 10, LONG),
        lambda s: s.map(InCall(), LONG),
    ],
)
def test_it_is_refused_where_nobody_would_ask_for_it(read: Any) -> None:
    env = environment(1)
    collected(read(frame(env, "s", LONG)).uid("all"), "out")
    with pytest.raises(PlanError, match=r"operator 'all' .* is a CheckpointedFunction, but has no"):
        env.plan()


class Together(MapFunction, Remember):
    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_union_list_state(ListStateDescriptor("seen", LONG))

    def map(self, value: int) -> int:
        self.remember(value)
        return len(self.seen.get())


def test_a_restart_from_a_checkpoint_in_the_memory_of_the_driver(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        counts = source(env, "s", LONG).map(Together(), LONG).uid("all")
        counts.sink_to(DiscardSink()).uid("out")

    settings = {"execution.checkpointing.storage": "jobmanager"}
    with JobHarness(program, tmp_path, parallelism=2, configuration=settings) as job:
        job.push("s", 1, 2, 3, 4)
        job.fail_task("all")
        job.push("s", 5, 6)
        assert sorted(job.output("out")) == [1, 1, 2, 2, 5, 5]
