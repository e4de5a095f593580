"""Functions of two inputs with timers against a model that sorts and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import collected
from tiers import examples
from turnback import CollectSink, DataStream, KeyedProcessFunction, OutputTag, ValueStateDescriptor
from turnback.functions import KeyedCoProcessFunction
from turnback.functions.event_time import MAX_TIME
from two_streams import by_key, in_order, run_cut

FIRST = "k string, at bigint, delay bigint"
SECOND = "id string, at bigint"
OUTPUT = "k string, what string, seen string, at bigint, mark bigint"
LATE = OutputTag("late", "k string, at bigint")


class Alarms(KeyedCoProcessFunction):
    """Notes which elements came; the first stream sets alarms, the second takes the next back."""

    seen = ValueStateDescriptor("seen", str)
    alarm = ValueStateDescriptor("alarm", int)

    def _note(self, what: str) -> str:
        seen = (self.seen.value() or "") + what
        self.seen.update(seen)
        return seen

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value.at + value.delay)
        self.alarm.update(value.at + value.delay)
        yield value.k, "1", self._note("1"), ctx.timestamp(), timers.current_watermark()

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        if value.at <= timers.current_watermark():
            yield LATE, (value.id, value.at)
        if self.alarm.value() is not None:
            timers.delete_event_time_timer(self.alarm.value())
        yield value.id, "2", self._note("2"), ctx.timestamp(), timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key, timers = ctx.get_current_key(), ctx.timer_service()
        yield key, "t", self._note("t"), timestamp, ctx.timestamp()
        if timestamp % 3 == 0:
            timers.register_event_time_timer(timestamp + 1)


class Model:
    """Notes what each key has seen, and fires timers in a plain loop."""

    def __init__(self, repeats: Callable[[int], bool] = lambda at: False) -> None:
        self.results: list[Any] = []
        self.timers: set[tuple[int, str]] = set()
        self._seen: dict[str, str] = {}
        self._repeats = repeats

    def note(self, key: str, what: str, at: int, mark: int) -> None:
        self._seen[key] = self._seen.get(key, "") + what
        self.results.append((key, what, self._seen[key], at, mark))

    def fire(self, upto: int) -> None:
        while self.timers and min(self.timers)[0] <= upto:
            at, key = min(self.timers)
            self.timers.remove((at, key))
            self.note(key, "t", at, at)
            if self._repeats(at):
                self.timers.add((at + 1, key))


def expected(elements: list[tuple[int, int, Any]]) -> tuple[list[Any], list[Any]]:
    model, late = Model(repeats=lambda at: at % 3 == 0), list[Any]()
    alarms: dict[str, int] = {}
    for mark, number, (key, at, *delay) in elements:
        model.fire(mark)
        if number == 0:
            alarms[key] = at + delay[0]
            model.timers.add((alarms[key], key))
        else:
            if at <= mark:
                late.append((key, at))
            model.timers.discard((alarms.get(key, -1), key))
        model.note(key, str(number + 1), at, mark)
    model.fire(MAX_TIME)
    return model.results, late


keys = st.sampled_from(["a", "b"])
first_ = st.lists(st.tuples(keys, st.integers(0, 40), st.integers(0, 12)), max_size=20)
second_ = st.lists(st.tuples(keys, st.integers(0, 40)), max_size=20)
bounds_ = st.tuples(st.integers(0, 9), st.integers(0, 9))


def build(one: DataStream, two: DataStream) -> list[CollectSink]:
    joined = one.connect(two).key_by("k", "id").process(Alarms(), OUTPUT).uid("op")
    return [collected(joined, "out"), collected(joined.get_side_output(LATE), "late")]


@settings(max_examples=examples(30), deadline=None)
@given(streams=st.tuples(first_, second_), bounds=bounds_, data=st.data())
def test_however_two_streams_are_cut(streams: Any, bounds: Any, data: st.DataObject) -> None:
    results, late = run_cut(data, build, (FIRST, SECOND), streams, bounds)
    wanted, wanted_late = expected(in_order(streams, bounds))
    assert by_key(results) == by_key(wanted)
    assert by_key(late) == by_key(wanted_late)


def of_one(one: DataStream, two: DataStream) -> list[CollectSink]:
    """Both inputs come from one stream, and so go by one watermark strategy."""
    odd = one.filter(lambda row: row.delay % 2 == 1)
    even = one.filter(lambda row: row.delay % 2 == 0).map(lambda row: (row.k, row.at), SECOND)
    return build(odd, even)


@settings(max_examples=examples(20), deadline=None)
@given(stream=first_, bound=st.integers(0, 9), data=st.data())
def test_however_one_stream_is_cut_that_both_inputs_come_from(
    stream: Any, bound: int, data: st.DataObject
) -> None:
    results, _ = run_cut(data, of_one, (FIRST, SECOND), (stream, []), (bound, 0))
    elements = [
        (mark, 0 if delay % 2 else 1, (key, at, delay) if delay % 2 else (key, at))
        for mark, _, (key, at, delay) in in_order((stream,), (bound,))
    ]
    wanted, _ = expected(sorted(elements, key=lambda element: element[:2]))
    assert by_key(results) == by_key(wanted)


class Seen(KeyedProcessFunction):
    """Notes which elements came, of a stream that two were united in; each sets an alarm."""

    seen = ValueStateDescriptor("seen", str)

    def _note(self, what: str) -> str:
        seen = (self.seen.value() or "") + what
        self.seen.update(seen)
        return seen

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value.at + 5)
        note = self._note(value.of)
        yield value.k, value.of, note, ctx.timestamp(), timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), "t", self._note("t"), timestamp, ctx.timestamp()


def united(one: DataStream, two: DataStream) -> list[CollectSink]:
    both = one.union(two).key_by("k").process(Seen(), OUTPUT).uid("op")
    return [collected(both, "out")]


def expected_united(elements: list[tuple[int, int, Any]]) -> list[Any]:
    model = Model()
    for mark, _, (key, at, of) in elements:
        model.fire(mark)
        model.timers.add((at + 5, key))
        model.note(key, of, at, mark)
    model.fire(MAX_TIME)
    return model.results


@settings(max_examples=examples(30), deadline=None)
@given(streams=st.tuples(second_, second_), bounds=bounds_, data=st.data())
def test_however_streams_are_cut_that_are_united(
    streams: Any, bounds: Any, data: st.DataObject
) -> None:
    """Also elements with one key and one watermark come in an order of their own."""
    named = tuple(
        [(*element, of) for element in stream] for stream, of in zip(streams, "xy", strict=True)
    )
    schema = f"{SECOND}, of string".replace("id", "k")
    (results,) = run_cut(data, united, (schema, schema), named, bounds)  # type: ignore[arg-type]
    assert by_key(results) == by_key(expected_united(in_order(named, bounds)))
