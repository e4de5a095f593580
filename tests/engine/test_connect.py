"""Two streams, read by one function that has the same state for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from job_support import Jobs
from turnback import (
    CollectSink,
    DataStream,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.errors import JobFailedError
from turnback.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source

ORDERS = "user string, amount bigint"
NAMES = "id string, name string, at bigint"
OUTPUT = "what string, user string, value string"
UNKNOWN = OutputTag("unknown", Types.STRING())


class Named(KeyedCoProcessFunction):
    """Orders with the name of their user; orders of users who have none go aside."""

    name = ValueStateDescriptor("name", str)
    count = ValueStateDescriptor("count", int)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + value.amount)
        if self.name.value() is None:
            yield UNKNOWN, value.user
        else:
            yield "order", self.name.value(), str(self.count.value())

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.name.update(value.name)
        yield "name", ctx.get_current_key(), str(self.count.value())


def named(env: StreamExecutionEnvironment, *keys: Any, key_type: Any = None) -> DataStream:
    orders, names = source(env, "orders", ORDERS), source(env, "names", NAMES)
    joined = orders.connect(names).key_by(*keys, key_type=key_type).process(Named(), OUTPUT)
    joined.uid("named").sink_to(DiscardSink()).uid("out")
    joined.get_side_output(UNKNOWN).sink_to(DiscardSink()).uid("unknown")
    return joined


def push_names(job: JobHarness) -> None:
    job.push("orders", ("u1", 5), ("u2", 7))
    job.push("names", ("u1", "Ann", 0), ("u3", "Cy", 0))
    job.push("orders", ("u1", 1), ("u2", 2), ("u3", 3))


def user_of(value: Any) -> str:
    return str(value.user)


def id_of(value: Any) -> str:
    return str(value.id)


@pytest.mark.parametrize(
    "keys", [("user", "id"), (user_of, id_of), ("user", id_of), (user_of, ["id"])]
)
@pytest.mark.parametrize("parallelism", [1, 8])
def test_both_streams_share_the_state_of_a_key(
    tmp_path: Path, keys: tuple[Any, Any], parallelism: int
) -> None:
    """Whether columns or functions give the keys, of either stream."""
    with JobHarness(lambda env: named(env, *keys), tmp_path, parallelism=parallelism) as job:
        push_names(job)
        assert sorted(job.output("out")) == [
            ("name", "u1", "5"),
            ("name", "u3", "None"),
            ("order", "Ann", "6"),
            ("order", "Cy", "3"),
        ]
        assert sorted(job.output("unknown")) == ["u1", "u2", "u2"]


def test_streams_that_are_keyed_already(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        orders = source(env, "orders", ORDERS).key_by("user")
        names = source(env, "names", NAMES).key_by("id")
        joined = orders.connect(names).process(Named(), OUTPUT).uid("named")
        joined.sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        push_names(job)
        assert len(job.output("out")) == 4


class Lengths(CoMapFunction):
    longest = ValueStateDescriptor("longest", int)

    def _longest(self, length: int) -> int | None:
        if length <= (self.longest.value() or 0):
            return None
        self.longest.update(length)
        return length

    def map1(self, value: Any) -> int | None:
        return self._longest(value.amount)

    def map2(self, value: Any) -> int | None:
        return self._longest(len(value.name))


class Letters(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Any:
        return list(value.user)

    def flat_map2(self, value: Any) -> Any:
        return value.name.split() or None


class Times(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.timer_service().current_processing_time() > 0
        yield f"{value.user} {ctx.timestamp()}"

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield UNKNOWN, f"{value.id} {ctx.timestamp()}"


def test_maps_flat_maps_and_functions_without_a_key(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        orders, names = source(env, "orders", ORDERS), source(env, "names", NAMES)
        both = orders.connect(names)
        keyed = both.key_by("user", "id").map(Lengths(), Types.LONG()).uid("lengths")
        keyed.sink_to(DiscardSink()).uid("lengths-out")
        letters = both.flat_map(Letters(), Types.STRING()).uid("letters")
        letters.sink_to(DiscardSink()).uid("letters-out")
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        stamped = names.assign_timestamps_and_watermarks(strategy).uid("time")
        times = orders.connect(stamped).process(Times(), Types.STRING()).uid("times")
        times.sink_to(DiscardSink()).uid("times-out")
        times.get_side_output(UNKNOWN).sink_to(DiscardSink()).uid("aside")

    with JobHarness(program, tmp_path) as job:
        job.push("orders", ("ab", 2), ("ab", 1))
        job.push("names", ("ab", "x y z", 9), ("c", "", 10))
        job.push("orders", ("ab", 5), ("ab", 6))
        assert job.output("lengths-out") == [2, 5, 6]
        assert job.output("letters-out") == [*"abab", *"xyz", *"abab"]
        assert job.output("times-out") == ["ab None"] * 4
        assert job.output("aside") == ["ab 9", "c 10"]


@pytest.mark.parametrize("keys", [(), ("user", "id")])
def test_what_nobody_reads_of_the_second_stream_is_dropped(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        both = source(env, "orders", ORDERS).connect(source(env, "names", NAMES))
        both = both.key_by(*keys) if keys else both
        told = both.process(Aside(), Types.STRING()).uid("told")
        told.sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("orders", ("a", 1))
        job.push("names", ("a", "Ann", 0))
        assert job.output("out") == ["a"]


class Aside(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.user

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield UNKNOWN, value.id


def test_a_stream_connected_with_itself_and_with_a_union(tmp_path: Path) -> None:
    class Which(KeyedCoProcessFunction):
        seen = ValueStateDescriptor("seen", str)

        def _add(self, what: str) -> Iterator[Any]:
            self.seen.update((self.seen.value() or "") + what)
            yield self.seen.value()

        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            return self._add("1")

        def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
            return self._add("2")

    def program(env: StreamExecutionEnvironment) -> None:
        orders, more = source(env, "orders", ORDERS), source(env, "more", ORDERS)
        twice = orders.connect(orders).key_by("user", "user").process(Which(), Types.STRING())
        twice.uid("twice").sink_to(DiscardSink()).uid("twice-out")
        both = orders.connect(more.union(orders)).key_by("user", "user")
        both.process(Which(), Types.STRING()).uid("both").sink_to(DiscardSink()).uid("both-out")

    with JobHarness(program, tmp_path) as job:
        job.push("orders", ("a", 1))
        assert job.output("twice-out") == ["1", "12"]
        job.push("more", ("a", 1))
        assert sorted(job.output("both-out")) == ["1", "12", "122"]


class Waiting(KeyedCoProcessFunction):
    """Tells orders, and names ten milliseconds later, with the state both have left."""

    seen = ValueStateDescriptor("seen", str)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update((self.seen.value() or "") + f" {value.amount}")
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield "order", value.user, self.seen.value()

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update((self.seen.value() or "") + f" {value.name}")
        yield "name", ctx.get_current_key(), self.seen.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "timer", ctx.get_current_key(), f"{timestamp}{self.seen.value()}"


def waiting(env: StreamExecutionEnvironment) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    orders, names = (
        source(env, uid, schema)
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(column))
        .uid(f"time-{uid}")
        for uid, schema, column in (("orders", ORDERS, "amount"), ("names", NAMES, "at"))
    )
    joined = orders.connect(names).key_by("user", "id").process(Waiting(), OUTPUT).uid("joined")
    joined.sink_to(DiscardSink()).uid("out")


@pytest.mark.parametrize("before", [1, 2, 3, 8])
@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_a_rescale_while_elements_wait(tmp_path: Path, before: int, after: int) -> None:
    users = [f"u{i}" for i in range(20)]
    with JobHarness(waiting, tmp_path, parallelism=before) as job:
        job.push("orders", *((user, 1) for user in users))
        assert len(job.state("joined", "ahead.input1")) == 19, "nothing is known of names"
        job.push("names", *((user, f"of {user}", 3) for user in users))
        assert len(job.state("joined", "ahead.input1")) == 0
        assert len(job.state("joined", "ahead.input2")) == 19, "they are ahead of the orders"
        savepoint = job.savepoint()
        job.close()
        job.start(parallelism=after, start_from=savepoint)
        job.push("names", ("y", "late", 40))
        job.push("orders", *((user, 20) for user in users), ("x", 50))
        job.checkpoint()
        lines = sorted(line for line in map(tuple, job.output("out")) if line[1] == "u7")
        assert lines == [
            ("name", "u7", " 1 of u7"),
            ("order", "u7", " 1"),
            ("order", "u7", " 1 of u7 20"),
            ("timer", "u7", "11 1 of u7"),
            ("timer", "u7", "30 1 of u7 20"),
        ]


def failing(program: Callable[[StreamExecutionEnvironment], Any], tmp_path: Path) -> str:
    with JobHarness(program, tmp_path) as job, pytest.raises(JobFailedError) as failed:
        job.push("names", ("u", None, 0))
        job.push("orders", (None, 1))
    return str(failed.value.__cause__ or failed.value)


def test_errors_name_the_operator_and_the_element(tmp_path: Path) -> None:
    assert "operator 'named': the key (user) is null for an element" in failing(
        lambda env: named(env, "user", "id"), tmp_path / "one"
    )

    class Fails(Named):
        def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
            raise ValueError("no names today")

    def program(env: StreamExecutionEnvironment) -> None:
        orders, names = source(env, "orders", ORDERS), source(env, "names", NAMES)
        joined = orders.connect(names).key_by("user", "id").process(Fails(), OUTPUT)
        joined.uid("fails").sink_to(DiscardSink()).uid("out")

    text = failing(program, tmp_path / "two")
    assert "no names today" in text
    assert "'fails'" in text
    assert "key: 'u'" in text


class Clock(ProcessFunction):
    """Tells what time it is, without a key."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        service = ctx.timer_service()
        assert service.current_processing_time() > 0
        yield value.id, str(service.current_watermark()), value.at


class Alarm(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(1)


def test_what_time_it_is_without_a_key(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment, function: Any = None) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        stamped = source(env, "names", NAMES).assign_timestamps_and_watermarks(strategy).uid("time")
        told = stamped.process(function or Clock(), NAMES).uid("clock")
        told.sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path / "one") as job:
        job.push("names", ("a", "", 10))
        job.push("names", ("b", "", 20))
        assert [row[1] for row in job.output("out")] == [str(-(2**63)), "9"]
    with (
        JobHarness(lambda env: program(env, Alarm()), tmp_path / "two") as job,
        pytest.raises(JobFailedError) as failed,
    ):
        job.push("names", ("a", "", 10))
    text = str(failed.value.__cause__ or failed.value)
    assert "registers a timer, but its stream has no key; call key_by" in text


def test_two_kinds_of_files_are_connected(jobs: Jobs) -> None:
    """Spark feeds both inputs by itself: no Python runs before the shuffle."""
    jobs.feed("orders", {"user": "u1", "amount": 5}, {"user": "u2", "amount": 7})
    env, sink = jobs.env(), CollectSink()
    orders, names = jobs.files(env, "orders", ORDERS), jobs.files(env, "names", NAMES)
    joined = orders.connect(names).key_by("user", "id").process(Named(), OUTPUT)
    joined.uid("named").sink_to(sink).uid("out")
    assert env.plan().native
    jobs.feed("names", {"id": "u1", "name": "Ann", "at": 1}, {"id": "u3", "name": "Cy", "at": 1})
    env.execute("job", bounded=True)
    assert sorted(row[:2] for row in sink.results if row[0] == "name") == [
        ("name", "u1"), ("name", "u3"),
    ]  # fmt: skip
