"""Side outputs: what a process function sends past its main output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnback import (
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.errors import JobFailedError, PlanError
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source

SCHEMA = "k string, n bigint"
ODD = OutputTag("odd", Types.LONG())
LISTS = OutputTag("lists", Types.BASIC_ARRAY(Types.LONG()))
UNREAD = OutputTag("unread", Types.STRING())


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n % 2:
            yield ODD, value.n
        else:
            yield value.k, value.n
        yield UNREAD, "nobody"


class Seen(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        numbers = [n, value.n]
        yield LISTS, numbers
        numbers.append(-1)  # what was sent does not change any more
        yield value.k, n


def test_elements_go_where_they_are_sent(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        split = source(env, "s", SCHEMA).process(Split(), SCHEMA).uid("split")
        split.sink_to(DiscardSink()).uid("even")
        odd = split.get_side_output(ODD)
        odd.sink_to(DiscardSink()).uid("odd")
        odd.map(lambda n: n * 10, Types.LONG()).uid("times").sink_to(DiscardSink()).uid("tens")
        keyed = split.key_by("k").process(Seen(), SCHEMA).uid("seen")
        keyed.sink_to(DiscardSink()).uid("seen-out")
        lists = keyed.get_side_output(LISTS)
        lists.sink_to(DiscardSink()).uid("lists")
        by_length = lists.key_by(len, key_type=int).process(Length(), "n bigint, total bigint")
        by_length.uid("lengths").sink_to(DiscardSink()).uid("lengths-out")

    with JobHarness(program, tmp_path) as job:
        job.push("s", ("a", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 6))
        assert job.output("even") == [("a", 2), ("b", 4), ("a", 6)]
        assert job.output("odd") == [1, 3]
        assert job.output("tens") == [10, 30]
        assert sorted(job.output("seen-out")) == [("a", 1), ("a", 2), ("b", 1)]
        assert sorted(job.output("lists")) == [[1, 2], [1, 4], [2, 6]]
        assert sorted(job.output("lengths-out")) == [(2, 1), (2, 2), (2, 3)]


class Length(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + 1)
        yield ctx.get_current_key(), self.total.value()


class SendsToNobody(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield UNREAD, "nobody"
        yield value


def test_what_nobody_reads_is_dropped(tmp_path: Path) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        kept = source(env, "s", SCHEMA).process(SendsToNobody(), SCHEMA).uid("op")
        kept.map(lambda row: row, SCHEMA).uid("map").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path) as job:
        job.push("s", ("a", 1), ("b", 2))
        assert job.output("out") == [("a", 1), ("b", 2)]


def test_timestamps_and_timers_have_them_too(tmp_path: Path) -> None:
    late = OutputTag("late", SCHEMA)
    alarms = OutputTag("alarms", "k string, at bigint")

    class Watch(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            if ctx.timestamp() <= ctx.timer_service().current_watermark():
                yield late, value
            else:
                ctx.timer_service().register_event_time_timer(ctx.timestamp())
                yield value

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield alarms, (ctx.get_current_key(), timestamp)

    class When(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value[0], ctx.timestamp()

    def program(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
        stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(strategy).uid("time")
        watch = stamped.key_by("k").process(Watch(), SCHEMA).uid("watch")
        watch.sink_to(DiscardSink()).uid("out")
        for name, tag in (("late", late), ("alarms", alarms)):
            when = watch.get_side_output(tag).process(When(), "k string, at bigint")
            when.uid(f"when-{name}").sink_to(DiscardSink()).uid(name)

    with JobHarness(program, tmp_path) as job:
        job.push("s", ("a", 5), ("b", 9), ("a", 4), ("a", 20))
        assert sorted(job.output("out")) == [("a", 5), ("a", 20), ("b", 9)]
        assert job.output("late") == [("a", 4)]
        assert sorted(job.output("alarms")) == [("a", 5), ("b", 9)]


def test_what_cannot_be_read_or_sent(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="non-empty string"):
        OutputTag("")

    def of_a_map(env: StreamExecutionEnvironment) -> None:
        source(env, "s", SCHEMA).map(lambda r: r, SCHEMA).get_side_output(ODD).print()

    with pytest.raises(PlanError, match="only process"), JobHarness(of_a_map, tmp_path):
        pass

    def by_name(env: StreamExecutionEnvironment) -> None:
        source(env, "s", SCHEMA).process(Split(), SCHEMA).get_side_output("odd").print()  # type: ignore[arg-type]

    with pytest.raises(PlanError, match="takes an OutputTag"), JobHarness(by_name, tmp_path):
        pass

    class Wrong(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield ODD, "text"

    def wrong(env: StreamExecutionEnvironment) -> None:
        split = source(env, "s", SCHEMA).process(Wrong(), SCHEMA).uid("wrong")
        split.get_side_output(ODD).sink_to(DiscardSink()).uid("odd")

    with JobHarness(wrong, tmp_path) as job, pytest.raises(JobFailedError) as failed:
        job.push("s", ("a", 1))
    assert "side output 'odd'" in str(failed.value.__cause__ or failed.value)


class Tags:
    unread = UNREAD


TAGS = {"unread": UNREAD}


class ByMethod(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self._told(value)

    def _told(self, value: Any) -> Iterator[Any]:
        yield UNREAD, "nobody"
        yield value.k, value.n


class ByName(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield Tags.unread, "nobody"
        yield value.k, value.n


class ByContainer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield TAGS["unread"], "nobody"
        yield value.k, value.n


def told(value: Any) -> Iterator[Any]:
    yield UNREAD, "nobody"
    yield value.k, value.n


class ByFunction(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return told(value)


class InAttribute(KeyedProcessFunction):
    def __init__(self) -> None:
        self.tags = [UNREAD]

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield self.tags[0], "nobody"
        yield value.k, value.n


@pytest.mark.parametrize("made", [ByMethod, ByName, ByContainer, ByFunction, InAttribute])
def test_what_nobody_reads_is_left_out_wherever_its_tag_is(tmp_path: Path, made: Any) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        keyed = source(env, "s", SCHEMA).key_by("k")
        keyed.process(made(), SCHEMA).uid("p").sink_to(DiscardSink()).uid("out")

    with JobHarness(program, tmp_path, configuration={"restart-strategy.type": "none"}) as job:
        job.push("s", ("a", 1))
        assert job.output("out") == [("a", 1)]
