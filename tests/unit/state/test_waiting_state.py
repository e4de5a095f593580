"""State in the order of time, read and written for many keys at once."""

from __future__ import annotations

import pytest

from turnback.errors import StateError
from turnback.functions.descriptors import TimeOrderedStateDescriptor
from turnback.values.typeinfo import Types

WAITING = TimeOrderedStateDescriptor("waiting", int)
LONG_KEY = "k" * 300


def write(*entries):
    """A step that sets entries of key, time and value."""
    places = [(key, time) for key, time, _ in entries]
    return lambda h: h["waiting"].write_many(places, [value for *_, value in entries])


def test_what_is_stored_up_to_a_time_comes_in_its_order(job):
    j = job(WAITING)
    j.one("a", write(("b", 30, 3), ("a", 10, 1), (LONG_KEY, -5, 2), ("a", 40, 4)))
    read = lambda h: h["waiting"].stored_until(30)  # noqa: E731
    assert j.one("a", read) == [(-5, LONG_KEY, 2), (10, "a", 1), (30, "b", 3)]
    assert j.one("a", lambda h: h["waiting"].stored_until(-6)) == []


def test_many_are_read_with_the_changes_of_the_epoch(job):
    j = job(WAITING)
    j.one("a", write(("a", 1, 10), ("b", 1, 20), (LONG_KEY, 2, 30)))

    def step(handles):
        write(("b", 1, None), ("c", 7, 40))(handles)
        places = [("a", 1), ("b", 1), (LONG_KEY, 2), ("c", 7), ("a", 2)]
        return handles["waiting"].read_many(places)

    assert j.one("a", step) == [10, None, 30, 40, None]
    assert j.one("a", lambda h: h["waiting"].stored_until(100)) == [
        (1, "a", 10),
        (2, LONG_KEY, 30),
        (7, "c", 40),
    ]


def test_whether_anything_is_stored_at_a_time(job):
    j = job(WAITING)
    j.one("a", write(("a", 1, 10), ("b", 3, 20)))
    seen = lambda h: [h["waiting"].has_any(time) for time in (0, 1, 2, 3)]  # noqa: E731
    assert j.one("a", seen) == [False, True, False, True]


def test_a_value_that_does_not_fit_is_named_with_its_key(job):
    with pytest.raises(StateError, match=r"state 'waiting'.*key 'b'.*'text'"):
        job(WAITING).one("a", write(("a", 1, 10), ("b", 1, "text")))


LISTS = TimeOrderedStateDescriptor("waiting", Types.LIST(Types.LONG()))


def test_elements_are_added_to_lists_once(job):
    j = job(LISTS)

    def add(*elements):
        return lambda h: [h["waiting"].add(5, each) for each in elements]

    j.run([("a", add(1, 2, 1)), ("b", add(7))])
    j.run([("a", add(2, 3)), ("b", lambda h: h["waiting"].remove(5)), ("b", add(8))])
    assert j.run([("a", lambda h: h["waiting"].get(5)), ("b", lambda h: h["waiting"].get(5))]) == [
        [1, 2, 3],
        [8],
    ]


def test_what_is_added_can_be_taken_and_added_again(job):
    j = job(LISTS)
    j.one("a", lambda h: h["waiting"].add(5, 1))

    def taken(h):
        waiting = h["waiting"]
        waiting.open(10)
        first = waiting.take(10)
        waiting.add(5, 1)
        waiting.add(7, 2)
        return [first, waiting.take(10), waiting.take(10), waiting.take(10)]

    assert j.one("a", taken) == [(5, "a", [1]), (5, "a", [1]), (7, "a", [2]), None]
    assert j.one("a", lambda h: h["waiting"].stored_until(10)) == []
