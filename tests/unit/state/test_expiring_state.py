"""State with a time to live: what is seen of it, what is written, and what goes away by itself."""

from __future__ import annotations

from contextlib import closing

import pytest
from pyarrow import ipc

from turnback import StateTtlConfig, Time
from turnback.core.errors import IncompatibleStateError, StateError
from turnback.program.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from turnback.state.delta import open_delta
from turnback.state.expiry import TIME_BYTES, update_time
from turnback.types.typeinfo import Types

TTL = 10_000
LONG = "long key " * 40


def config(**how):
    builder = StateTtlConfig.new_builder(Time.seconds(10))
    if how.get("on_read"):
        builder = builder.update_ttl_on_read_and_write()
    if how.get("shows"):
        builder = builder.return_expired_if_not_cleaned_up()
    if how.get("quiet"):
        builder = builder.disable_cleanup_in_background()
    return builder.build()


def value(**how):
    return ValueStateDescriptor("v", Types.STRING()).enable_time_to_live(config(**how))


def listing(**how):
    return ListStateDescriptor("l", Types.STRING()).enable_time_to_live(config(**how))


def mapping(**how):
    return MapStateDescriptor("m", Types.STRING(), Types.LONG()).enable_time_to_live(config(**how))


class Sum:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator * 10


def elsewhere(j, place="elsewhere"):
    """Look at the state from another machine, whose local store is empty."""
    j.root = j.root.with_name(place)
    return j


def entries(j):
    """How many entries the local store has."""
    backend, _ = j.backend()
    with closing(j.home(backend)) as home:
        return sum(1 for where, _ in home.store.scan(b"") if len(where) > 8)


def rows(j, file):
    delta = open_delta(file, j.read)
    return [row for batch in delta.batches() for row in batch().to_pylist()]


def version(j):
    metadata = ipc.open_file(j.read(j.files[0])).schema.metadata
    return metadata[b"turnback.state.format"]


def at(j, now, key, step):
    j.now_ms = now
    return j.one(key, step)


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


# -- merging


@pytest.mark.parametrize("final", [False, True])
def test_a_merge_leaves_out_what_has_expired(job, final):
    j = job(value(), listing(), mapping(), ValueStateDescriptor("for ever", Types.STRING()))

    def write(h):
        h["v"].update("x")
        h["l"].add("x")
        h["m"].put("x", 1)
        h["for ever"].update("x")

    j.now_ms = 0
    j.run([("old", write), ("both", write)])
    j.now_ms = 8_000
    j.run([("new", write), ("both", write)])
    j.now_ms = 12_000
    merged = j.merge(j.files, final)
    alive = [row for row in rows(j, merged) if row["value"] is not None]
    # Of each state two keys, but of the list of "both" one element, and one that has expired.
    assert len(alive) == 3 * 2 + 3
    assert {update_time(r["value"]) for r in alive if len(r["value"]) > TIME_BYTES} == {8_000}
    dead = [row for row in rows(j, merged) if row["value"] is None]
    assert len(dead) == (0 if final else 4)
    elsewhere(j)
    assert at(j, 12_000, "old", lambda h: (h["v"].value(), h["for ever"].value())) == (None, "x")
    assert at(j, 12_000, "both", lambda h: h["l"].get()) == ["x"]


def test_an_older_file_does_not_bring_back_what_a_merge_has_dropped(job):
    j = job(value())
    at(j, 0, "k", lambda h: h["v"].update("older"))
    at(j, 1, "k", lambda h: h["v"].update("newer"))
    at(j, 1, "other", lambda h: h["v"].update("x"))
    j.now_ms = TTL + 1
    j.merge(j.files[1:], False)
    longer = StateTtlConfig.new_builder(Time.hours(1)).build()
    j.descriptors = [ValueStateDescriptor("v", Types.STRING()).enable_time_to_live(longer)]
    assert at(j, TTL + 2, "k", lambda h: h["v"].value()) is None


def test_nothing_is_dropped_where_the_background_is_off(job):
    j = job(value(quiet=True))
    at(j, 0, "k", lambda h: h["v"].update("a"))
    at(j, 0, "l", lambda h: h["v"].update("a"))
    j.now_ms = 50_000
    assert len(rows(j, j.merge(j.files, True))) == 2
    assert at(j, 50_000, "k", lambda h: h["v"].value()) is None


def test_every_merge_gives_what_the_single_files_give(job):
    j = job(value(), listing(), mapping())
    keys = [f"k{n}" for n in range(20)]

    def write(n):
        def step(h):
            h["v"].update(str(n))
            h["l"].add(str(n))
            h["m"].put(str(n), n)

        return step

    for n in range(8):
        j.now_ms = 2_500 * n
        j.run([(key, write(n)) for key in keys[n:]])

    def read(h):
        return h["v"].value(), h["l"].get(), h["m"].items()

    before = j.run([(key, read) for key in keys], confirm=False)
    files, found = j.files, []
    for part in (files[:4], files[4:]):
        j.merge(list(part), False)
    found.append(j.run([(key, read) for key in keys], confirm=False))
    elsewhere(j)
    found.append(j.run([(key, read) for key in keys], confirm=False))
    j.merge(j.files, True)
    elsewhere(j, "anywhere")
    found.append(j.run([(key, read) for key in keys], confirm=False))
    assert found == [before] * 3


# -- local stores


@pytest.mark.parametrize("key", ["k", LONG])
def test_a_local_store_loses_what_has_expired_although_nobody_reads_it(job, key):
    j = job(value(), mapping(), ValueStateDescriptor("for ever", Types.STRING()))

    def write(h):
        h["v"].update("x")
        h["m"].put(LONG, 1)
        h["for ever"].update("x")

    for n in range(40):
        j.now_ms = n * 1_000
        j.run([(f"{key}{n}-{i}", write) for i in range(5)])
    written = 40 * 5
    kept = entries(j)
    # For ever: all; with a time to live: those of ten seconds, and a few not yet looked at.
    assert written + 2 * 50 <= kept <= written + 2 * 75
    assert set(j.found[2:]) == {"caught-up"}
    alive = j.run([(f"{key}{n}-0", lambda h: h["v"].value()) for n in range(40)])
    assert alive == [None] * 30 + ["x"] * 10
    assert j.one(f"{key}0-0", lambda h: h["for ever"].value()) == "x"


def test_a_store_of_another_time_to_live_is_rebuilt(job):
    """It may have lost what is alive by now, or hold what the files have lost."""
    j = job(value())
    at(j, 0, "k", lambda h: h["v"].update("a"))
    at(j, 1, "l", lambda h: h["v"].update("a"))
    longer = StateTtlConfig.new_builder(Time.hours(1)).build()
    j.descriptors = [ValueStateDescriptor("v", Types.STRING()).enable_time_to_live(longer)]
    assert at(j, TTL * 2, "k", lambda h: h["v"].value()) == "a"
    assert j.found[-1] == "rebuilt"


# -- formats


def test_states_without_a_time_to_live_are_stored_as_ever(job):
    j = job(ValueStateDescriptor("v", Types.STRING()))
    at(j, 5, "k", lambda h: h["v"].update("a"))
    (row,) = rows(j, j.files[0])
    assert row["value"] == b"\xa1a"
    timed = elsewhere(job(value()))
    at(timed, 5, "k", lambda h: h["v"].update("a"))
    (row,) = rows(timed, timed.files[0])
    assert [version(each) for each in (j, timed)] == [b"1", b"2"]
    assert row["value"] == (5).to_bytes(8, "big") + b"\xa1a"


def test_files_with_times_are_not_taken_for_files_without(job):
    j = job(value())
    at(j, 5, "k", lambda h: h["v"].update("a"))
    j.descriptors = [ValueStateDescriptor("v", Types.STRING())]
    with pytest.raises(IncompatibleStateError, match="time of last update stored with, wanted"):
        at(j, 5, "k", lambda h: h["v"].value())


def test_two_times_to_live_for_one_state_are_refused(job):
    j = job(value(), value(on_read=True))
    with pytest.raises(StateError, match="two different states named 'v'"):
        j.backend()


def test_an_element_that_does_not_fit_is_named(job):
    j = job(value())
    with pytest.raises(StateError, match="state 'v' of operator 'op', key 'k': the value 5 does"):
        at(j, 0, "k", lambda h: h["v"].update(5))
