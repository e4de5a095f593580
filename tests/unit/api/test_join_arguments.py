"""Wrong arguments to joins and rolling aggregates: refused at once, in words that help."""

from __future__ import annotations

import pytest

from local_engine import collected, environment, source
from turnback import OutputTag, Time, ValueStateDescriptor
from turnback.errors import PlanError
from turnback.functions import CoGroupFunction, JoinFunction, ProcessJoinFunction
from turnback.windows import TumblingEventTimeWindows

ONE, TWO = "a string, n bigint, words array<string>", "b string, m int"
TENS = TumblingEventTimeWindows.of(Time(10))


class Pairs(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield 1


class Counting(Pairs):
    count = ValueStateDescriptor("count", int)


class Join(JoinFunction):
    def join(self, first, second) -> int:
        return 1


class Groups(CoGroupFunction):
    def co_group(self, first, second):
        yield 1


def between(a, b, lower, upper):
    return a.key_by("a").interval_join(b.key_by("b")).between(lower, upper)


def windows(a, b):
    return a.join(b).where("a").equal_to("b").window(TENS)


WRONG = {
    "no stream": (lambda a, b: a.key_by("a").interval_join(1), "interval_join takes streams"),
    "no key": (
        lambda a, b: a.key_by("a").interval_join(b),
        r"interval_join takes a keyed stream; put key_by\(...\) on it",
    ),
    "bounds that are numbers": (
        lambda a, b: between(a, b, -1, 1),
        "the lower bound of an interval join must be a Duration, a Time",
    ),
    "bounds the wrong way round": (
        lambda a, b: between(a, b, Time(2), Time(1)),
        "the lower bound must not be above the upper bound, but the interval is 2 ms to 1 ms",
    ),
    "nothing between exclusive bounds": (
        lambda a, b: (
            between(a, b, Time(0), Time(1)).lower_bound_exclusive().upper_bound_exclusive()
        ),
        "the interval is 1 ms to 0 ms, both inclusive",
    ),
    "a plain function for pairs": (
        lambda a, b: between(a, b, Time(0), Time(1)).process(lambda left, right: 1, int),
        "process takes a ProcessJoinFunction, got function",
    ),
    "pairs without a type": (
        lambda a, b: between(a, b, Time(0), Time(1)).process(Pairs()),
        "process needs output_type",
    ),
    "pairs with state": (
        lambda a, b: between(a, b, Time(0), Time(1)).process(Counting(), int),
        "Counting declares the state 'count', but join functions have no state",
    ),
    "a name for a tag": (
        lambda a, b: between(a, b, Time(0), Time(1)).side_output_left_late_data("late"),
        "side_output_left_late_data takes an OutputTag, got str",
    ),
    "keys of two types": (
        lambda a, b: a.join(b).where("n").equal_to("m").window(TENS).apply(Join()),
        "must have the same type",
    ),
    "no windows": (
        lambda a, b: a.join(b).where("a").equal_to("b").window(Time(10)),
        "window takes a WindowAssigner, got Time",
    ),
    "a group for a join": (
        lambda a, b: windows(a, b).apply(Groups(), int),
        "apply takes a JoinFunction or a FlatJoinFunction, got Groups",
    ),
    "a class for a join": (lambda a, b: windows(a, b).apply(Join), r"write Join\(\)"),
    "a join without a type": (
        lambda a, b: windows(a, b).apply(lambda one, two: 1),
        "apply needs output_type",
    ),
    "a join for a group": (
        lambda a, b: a.co_group(b).where("a").equal_to("b").window(TENS).apply(Join(), int),
        "apply takes a CoGroupFunction, got Join",
    ),
    "an unknown key": (lambda a, b: a.join(b).where("b"), "no column 'b'"),
    "a sum of nothing": (
        lambda a, b: a.key_by("a").sum("m"),
        r"sum: there is no field 'm'; the fields are \['a', 'n', 'words'\]",
    ),
    "a sum of the fourth of three": (lambda a, b: a.key_by("a").sum(3), "there is no field 3"),
    "a sum of strings": (
        lambda a, b: a.key_by("a").sum("a"),
        "sum: values of .* cannot be added up; choose another field",
    ),
    "the least list": (
        lambda a, b: a.key_by("a").min("words"),
        "min: values of .* cannot be compared; choose another field",
    ),
    "a sum of something": (
        lambda a, b: a.key_by("a").sum(1.5),
        "sum takes the name or the number of a field, got 1.5",
    ),
    "a field of a number": (
        lambda a, b: a.map(lambda row: 1, int).key_by(lambda n: n, key_type=int).max_by("n"),
        "max_by: elements of .* have no fields; omit 'n'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    build, message = WRONG[case]
    env = environment()
    with pytest.raises(PlanError, match=message):
        build(source(env, "a", ONE), source(env, "b", TWO))


def test_late_elements_can_be_read():
    env = environment()
    tag = OutputTag("late", TWO)
    a, b = source(env, "a", ONE), source(env, "b", TWO)
    joined = between(a, b, Time(0), Time(1)).side_output_right_late_data(tag).process(Pairs(), int)
    collected(joined.uid("join").get_side_output(tag), "late")
    assert [op.uid for op in env.plan().operators() if op.side_outputs] == ["join"]


def test_a_plain_function_after_key_by_needs_no_uid():
    """It has no state that could be lost."""
    env = environment()
    keyed = source(env, "a", ONE).key_by("a")
    collected(keyed.map(lambda row: 1, int), "out")
    assert env.plan().warnings == ()
