"""Joins against models that sort and loop: however epochs and tasks are cut, the same comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import collected
from tiers import examples
from turnback import CollectSink, DataStream, OutputTag, ProcessFunction, Time
from turnback.functions import CoGroupFunction, ProcessJoinFunction
from turnback.functions.event_time import MAX_TIME
from turnback.windows import EventTimeSessionWindows, TumblingEventTimeWindows
from two_streams import by_key, in_order, run_cut

LEFT = "k string, at bigint, n bigint"
RIGHT = "id string, at bigint, word string"
LATE_LEFT, LATE_RIGHT = OutputTag("late left", LEFT), OutputTag("late right", RIGHT)

keys = st.sampled_from(["a", "b"])
left_ = st.lists(st.tuples(keys, st.integers(0, 40), st.integers(0, 9)), max_size=20)
right_ = st.lists(st.tuples(keys, st.integers(0, 40), st.sampled_from("vwx")), max_size=20)
streams_ = st.tuples(left_, right_)
bounds_ = st.tuples(st.integers(0, 9), st.integers(0, 9))


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        assert (ctx.get_left_timestamp(), ctx.get_right_timestamp()) == (left.at, right.at)
        yield left.k, left.at, left.n, right.at, right.word, ctx.get_timestamp()


class Stamped(ProcessFunction):
    """Elements with their timestamps."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (*value, ctx.timestamp())


def expected_pairs(streams: Any, bounds: Any, lower: int, upper: int) -> list[Any]:
    """All pairs of elements that are not late, and the late ones of each stream."""
    pairs: list[Any] = []
    held: tuple[list[Any], list[Any]] = [], []
    late: tuple[list[Any], list[Any]] = [], []
    for mark, number, element in in_order(streams, bounds):
        if element[1] < mark:
            late[number].append(element)
            continue
        held[number].append(element)
        for other in sorted(held[1 - number], key=lambda each: each[1]):
            left, right = (element, other) if number == 0 else (other, element)
            if left[0] == right[0] and lower <= right[1] - left[1] <= upper:
                time = max(left[1], right[1])
                pairs.append((*left, *right[1:], time, time))
    return [pairs, *late]


@settings(max_examples=examples(30), deadline=None)
@given(
    streams=streams_,
    bounds=bounds_,
    interval=st.tuples(st.integers(-9, 9), st.integers(0, 9)),
    data=st.data(),
)
def test_an_interval_join_however_it_is_cut(
    streams: Any, bounds: Any, interval: Any, data: st.DataObject
) -> None:
    lower, upper = interval[0], interval[0] + interval[1]
    is_exclusive = upper - lower > 1 and data.draw(st.booleans())

    def build(one: DataStream, two: DataStream) -> list[CollectSink]:
        join = one.key_by("k").interval_join(two.key_by("id")).between(Time(lower), Time(upper))
        if is_exclusive:
            join = join.lower_bound_exclusive().upper_bound_exclusive()
        join = join.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)
        output = "k string, l bigint, n bigint, r bigint, word string, at bigint"
        joined = join.process(Pairs(), output).uid("join")
        stamped = joined.process(Stamped(), f"{output}, stamp bigint").uid("stamped")
        return [
            collected(stamped, "out"),
            collected(joined.get_side_output(LATE_LEFT), "left"),
            collected(joined.get_side_output(LATE_RIGHT), "right"),
        ]

    results = run_cut(data, build, (LEFT, RIGHT), streams, bounds)
    wanted = expected_pairs(streams, bounds, lower + is_exclusive, upper - is_exclusive)
    assert list(map(by_key, results)) == list(map(by_key, wanted))


class Groups(CoGroupFunction):
    """What is in a window of each stream; sorted, since sessions merge in an order of their own."""

    def co_group(self, first: list[Any], second: list[Any]) -> Iterator[Any]:
        key = first[0].k if first else second[0].id
        yield key, str(sorted(row.n for row in first)), str(sorted(row.word for row in second))


def expected_groups(streams: Any, bounds: Any, is_session: bool, lateness: int) -> list[Any]:
    fired: list[Any] = []
    windows: dict[str, dict[tuple[int, int], Any]] = {}

    def fire(key: str, held: Any) -> None:
        fired.append((key, *(str(sorted(each[2] for each in part)) for part in held)))

    def advance(mark: int) -> None:
        for key, own in windows.items():
            for window in sorted(own, key=lambda w: w[1]):
                held, is_new = own[window]
                if is_new and window[1] - 1 <= mark:
                    own[window][1] = False
                    fire(key, held)
                if window[1] - 1 + lateness <= mark:
                    del own[window]

    for mark, number, element in in_order(streams, bounds):
        advance(mark)
        key, at, _ = element
        own = windows.setdefault(key, {})
        window = (at, at + 5) if is_session else (at - at % 10, at - at % 10 + 10)
        held: tuple[list[Any], list[Any]] = [], []
        touching = [w for w in own if w[0] <= window[1] and w[1] >= window[0]]
        for other in touching if is_session else [window] if window in own else []:
            window = (min(window[0], other[0]), max(window[1], other[1]))
            for part, more in zip(held, own.pop(other)[0], strict=True):
                part += more
        if window[1] - 1 + lateness <= mark:
            continue
        held[number].append(element)
        is_new = window[1] - 1 > mark
        own[window] = [held, is_new]
        if not is_new:
            fire(key, held)
    advance(MAX_TIME)
    return fired


@settings(max_examples=examples(30), deadline=None)
@given(
    streams=streams_,
    bounds=bounds_,
    is_session=st.booleans(),
    lateness=st.sampled_from([0, 0, 3, 12]),
    data=st.data(),
)
def test_windows_of_two_streams_however_they_are_cut(
    streams: Any, bounds: Any, is_session: bool, lateness: int, data: st.DataObject
) -> None:
    assigner = (
        EventTimeSessionWindows.with_gap(Time(5))
        if is_session
        else TumblingEventTimeWindows.of(Time(10))
    )

    def build(one: DataStream, two: DataStream) -> list[CollectSink]:
        windows = one.co_group(two).where("k").equal_to("id").window(assigner)
        groups = windows.allowed_lateness(lateness).apply(
            Groups(), "k string, first string, second string"
        )
        return [collected(groups.uid("groups"), "out")]

    (results,) = run_cut(data, build, (LEFT, RIGHT), streams, bounds)
    wanted = expected_groups(streams, bounds, is_session, lateness)
    assert by_key(results) == by_key(wanted)
