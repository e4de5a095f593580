"""State that has expired: merged away, lost by local stores, and told apart in files."""

from __future__ import annotations

import pytest
from ttl_support import LONG, TTL, at, elsewhere, entries, listing, mapping, rows, value, version

from turnback import StateTtlConfig, Time
from turnback.errors import IncompatibleStateError, StateError
from turnback.functions.descriptors import ValueStateDescriptor
from turnback.state.expiry import TIME_BYTES, update_time
from turnback.values.typeinfo import Types

pytestmark = pytest.mark.slow

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
