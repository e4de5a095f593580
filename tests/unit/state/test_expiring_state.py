"""State with a time to live: what is seen of it, and what renews it."""

from __future__ import annotations

import pytest
from ttl_support import LONG, TTL, at, config, elsewhere, listing, mapping, rows, value

from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from turnback.values.typeinfo import Types


class Sum:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator * 10


def test_a_value_expires_after_its_last_write(job):
    j = job(value())
    at(j, 1_000, "k", lambda h: h["v"].update("a"))
    assert at(j, 1_000 + TTL - 1, "k", lambda h: h["v"].value()) == "a"
    at(j, 5_000, "k", lambda h: h["v"].update("b"))
    assert at(j, 5_000 + TTL - 1, "k", lambda h: h["v"].value()) == "b"
    assert at(j, 5_000 + TTL, "k", lambda h: h["v"].value()) is None


def test_a_read_removes_what_has_expired_from_the_files(job):
    j = job(value())
    at(j, 0, "k", lambda h: h["v"].update("a"))
    before = len(j.files)
    at(j, TTL, "k", lambda h: h["v"].value())
    (row,) = rows(j, j.files[before])
    assert row["value"] is None
    at(j, 0, "k", lambda h: None)  # even if the clock went back
    assert at(j, 0, "k", lambda h: h["v"].value()) is None


def test_a_read_is_an_update_if_that_was_chosen(job):
    j = job(value(on_read=True))
    at(j, 0, "k", lambda h: h["v"].update("a"))
    assert at(j, 9_000, "k", lambda h: h["v"].value()) == "a"
    assert at(j, 18_000, "k", lambda h: h["v"].value()) == "a"
    assert at(j, 28_000, "k", lambda h: h["v"].value()) is None
    plain = elsewhere(job(value()))
    at(plain, 0, "k", lambda h: h["v"].update("a"))
    files = len(plain.files)
    at(plain, 9_000, "k", lambda h: h["v"].value())
    assert len(plain.files) == files


def test_what_has_expired_is_shown_once_if_that_was_chosen(job):
    j = job(value(shows=True), listing(shows=True), mapping(shows=True))

    def write(h):
        h["v"].update("a")
        h["l"].add("x")
        h["m"].put("e", 1)

    def read(h):
        return h["v"].value(), h["l"].get(), h["m"].items(), h["m"].is_empty()

    at(j, 0, "k", write)
    j.now_ms = TTL
    first, second = j.run([("k", lambda h: h["m"].is_empty() or read(h)), ("k", read)])
    assert first == ("a", ["x"], [("e", 1)], True)  # the read of items has removed the entry
    assert second == (None, [], [], True)


@pytest.mark.parametrize("key", ["k", LONG])
def test_elements_of_a_list_expire_one_by_one(job, key):
    j = job(listing())
    at(j, 0, key, lambda h: h["l"].add_all(["a", "b"]))
    at(j, 6_000, key, lambda h: h["l"].add("c"))
    assert at(j, 9_000, key, lambda h: h["l"].get()) == ["a", "b", "c"]
    j.now_ms = 12_000
    # What is added while others expire comes last, and is there with them.
    assert j.run([(key, lambda h: h["l"].add("d")), (key, lambda h: list(h["l"]))])[1] == ["c", "d"]
    assert at(j, 17_000, key, lambda h: h["l"].get()) == ["d"]
    at(j, 17_000, key, lambda h: h["l"].update(["e"]))
    assert at(j, 20_000, key, lambda h: h["l"].get()) == ["e"]
    j.now_ms = 26_999
    assert j.run([(key, lambda h: h["l"].get()), (key, lambda h: h["l"].clear())])[0] == ["e"]
    assert at(j, 26_999, key, lambda h: h["l"].get()) == []


def test_reading_a_list_renews_its_elements_in_their_order(job):
    j = job(listing(on_read=True))
    at(j, 0, "k", lambda h: h["l"].add("a"))
    at(j, 5_000, "k", lambda h: h["l"].add("b"))
    assert at(j, 9_000, "k", lambda h: h["l"].get()) == ["a", "b"]
    at(j, 9_000, "k", lambda h: h["l"].add("c"))
    assert at(j, 18_000, "k", lambda h: h["l"].get()) == ["a", "b", "c"]
    j.now_ms = 19_000
    read_and_cleared = [("k", lambda h: h["l"].get()), ("k", lambda h: h["l"].clear())]
    assert j.run(read_and_cleared)[0] == ["a", "b", "c"]
    assert at(j, 19_000, "k", lambda h: h["l"].get()) == []


@pytest.mark.parametrize("sub", ["e", LONG])
def test_entries_of_a_map_expire_one_by_one(job, sub):
    j = job(mapping())

    def ask(h):
        m = h["m"]
        return m.get(sub), m.contains(sub), sorted(m.items()), m.is_empty()

    at(j, 0, "k", lambda h: h["m"].put(sub, 1))
    at(j, 5_000, "k", lambda h: h["m"].put("f", 2))
    assert at(j, 9_999, "k", ask) == (1, True, sorted([(sub, 1), ("f", 2)]), False)
    assert at(j, 10_000, "k", ask) == (None, False, [("f", 2)], False)
    assert at(j, 14_999, "k", lambda h: h["m"].is_empty()) is False
    assert at(j, 15_000, "k", lambda h: h["m"].is_empty()) is True
    assert at(j, 15_000, "k", lambda h: (h["m"].keys(), h["m"].values(), h["m"].is_empty())) == (
        [],
        [],
        True,
    )
    with pytest.raises(KeyError):
        at(j, 15_000, "k", lambda h: h["m"]["f"])


def test_reading_a_map_renews_what_is_read(job):
    j = job(mapping(on_read=True))
    at(j, 0, "k", lambda h: h["m"].put_all({"a": 1, "b": 2}))
    assert at(j, 6_000, "k", lambda h: h["m"].get("a")) == 1
    assert at(j, 12_000, "k", lambda h: h["m"].items()) == [("a", 1)]
    assert at(j, 21_000, "k", lambda h: h["m"].items()) == [("a", 1)]
    # Known and new entries stand in the order of an ordinary map.
    at(j, 21_000, "k", lambda h: h["m"].put("0", 0))
    j.now_ms = 22_000
    (found,) = j.run([("k", lambda h: (h["m"].put("n", 9), h["m"].get("a"), h["m"].keys())[2])])
    assert found == ["0", "a", "n"]


def test_reducing_and_aggregating_state_begin_anew(job):
    ttl = config()
    j = job(
        ReducingStateDescriptor("r", max, Types.LONG()).enable_time_to_live(ttl),
        AggregatingStateDescriptor("a", Sum(), Types.LONG()).enable_time_to_live(ttl),
    )

    def add(n):
        def step(h):
            h["r"].add(n)
            h["a"].add(n)
            return h["r"].get(), h["a"].get()

        return step

    assert at(j, 0, "k", add(5)) == (5, 50)
    assert at(j, 9_999, "k", add(3)) == (5, 80)
    assert at(j, 19_998, "k", add(1)) == (5, 90)
    assert at(j, 30_000, "k", add(2)) == (2, 20)


def test_many_keys_are_read_and_written_at_once(job):
    j = job(value())
    at(j, 0, "a", lambda h: h["v"].update("old"))
    at(j, 5_000, LONG, lambda h: h["v"].update("new"))
    j.now_ms = 10_000

    def step(h):
        first = h["v"].read_many(["a", LONG, "none"])
        h["v"].write_many(["none"], ["made"])
        return first, h["v"].read_many(["none", "a"])

    assert j.one("a", step) == ([None, "new", None], ["made", None])
    assert at(j, 19_999, "a", lambda h: h["v"].read_many(["none", "a", LONG])) == [
        "made",
        None,
        None,
    ]
    showing = elsewhere(job(value(shows=True)))
    at(showing, 0, "a", lambda h: h["v"].update("old"))
    showing.now_ms = TTL
    twice = showing.run([("a", lambda h: h["v"].read_many(["a"]))] * 2)
    assert twice == [["old"], [None]]


def test_values_that_can_be_changed_in_place_expire_too(job):
    descriptor = ValueStateDescriptor("v", Types.LIST(Types.LONG())).enable_time_to_live(config())
    j = job(descriptor)
    at(j, 0, "k", lambda h: h["v"].update([1]))
    assert at(j, 9_999, "k", lambda h: (h["v"].value().append(2), h["v"].value())[1]) == [1]
    assert at(j, 10_000, "k", lambda h: h["v"].value()) is None
