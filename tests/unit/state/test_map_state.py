from __future__ import annotations

import math
from contextlib import closing
from decimal import Decimal
from random import Random

import pytest

from turnback.errors import ElementTypeError, NullKeyError, UnsupportedTypeError
from turnback.functions.descriptors import MapStateDescriptor
from turnback.timing.window_state import NAMED_IN_WINDOW, WindowedStateDescriptor
from turnback.values.typeinfo import Types

MAP = MapStateDescriptor("map", str, int)


def put(**entries):
    return lambda h: h["map"].put_all(entries)


def items(handles):
    return dict(handles["map"].items())


def test_entries_live_across_epochs(job):
    j = job(MAP)
    j.run([("a", put(x=1, y=2)), ("b", put(x=9))])
    assert j.run([("a", put(y=3, z=4)), ("a", items)])[1] == {"x": 1, "y": 3, "z": 4}
    assert j.run([("a", items), ("b", items), ("c", items)]) == [
        {"x": 1, "y": 3, "z": 4},
        {"x": 9},
        {},
    ]


def test_removed_entries_stay_removed(job):
    j = job(MAP)
    j.one("a", put(x=1, y=2))
    assert j.one("a", lambda h: (h["map"].remove("x"), h["map"].get("x"), items(h))[1:]) == (
        None,
        {"y": 2},
    )
    assert j.one("a", items) == {"y": 2}


def test_clear_then_put_keeps_only_the_put(job):
    j = job(MAP)
    j.one("a", put(x=1, y=2))
    seen = lambda h: (h["map"].get("x"), "w" in h["map"], items(h), h["map"].is_empty())  # noqa: E731
    step = lambda h: (put(w=0)(h), h["map"].clear(), seen(h), put(y=5)(h))[2]  # noqa: E731
    assert j.one("a", step) == (None, False, {}, True)
    assert j.one("a", items) == {"y": 5}


def test_it_is_a_mapping(job):
    j = job(MAP)
    j.one("a", put(x=1, y=2))

    def step(h):
        m = h["map"]
        m["z"] = 3
        del m["x"]
        with pytest.raises(KeyError):
            m["x"]
        with pytest.raises(KeyError):
            del m["x"]
        return m["y"], "x" in m, "z" in m, m.contains("y"), list(m), m.keys(), m.values()

    assert j.one("a", step) == (2, False, True, True, ["y", "z"], ["y", "z"], [2, 3])


def test_is_empty_sees_store_and_changes(job):
    j = job(MAP)
    empty = lambda h: h["map"].is_empty()  # noqa: E731
    assert j.one("a", empty) is True
    j.one("a", put(x=1))
    assert j.one("a", empty) is False
    assert j.one("a", lambda h: (h["map"].remove("x"), empty(h))[1]) is True
    assert j.one("a", empty) is True


def test_a_put_reads_nothing(job):
    j = job(MAP)
    j.one("a", put(x=1))
    backend, handles = j.backend()
    with closing(j.home(backend)) as home:
        backend.begin(home.store, 2)
        backend.scan = backend.get = lambda key: pytest.fail("read the store")
        backend.key = "a"
        put(y=1)(handles)
        handles["map"].remove("x")


def test_changing_the_map_while_iterating_is_safe(job):
    j = job(MAP)
    j.one("a", put(x=1, y=2))

    def step(h):
        for key, value in h["map"].items():
            h["map"].remove(key)
            h["map"].put(key * 2, value)

    j.one("a", step)
    assert j.one("a", items) == {"xx": 1, "yy": 2}


def test_a_none_value_is_an_entry(job):
    j = job(MAP)
    j.one("a", put(x=None))
    assert j.one("a", lambda h: ("x" in h["map"], h["map"].get("x"), items(h))) == (
        True,
        None,
        {"x": None},
    )


def test_equal_map_keys_are_one_entry_in_and_across_epochs(job):
    j = job(MapStateDescriptor("map", Types.BIG_DEC(10, 2), int))
    set_ = lambda text, n: lambda h: h["map"].put(Decimal(text), n)  # noqa: E731
    j.run([("a", set_("1.0", 1)), ("a", set_("1.00", 2))])
    j.run([("a", set_("1", 3))])
    assert j.one("a", items) == {Decimal("1.00"): 3}


def test_float_map_keys_are_told_apart_by_their_bits(job):
    j = job(MapStateDescriptor("map", float, int))
    j.one("a", lambda h: [h["map"].put(k, i) for i, k in enumerate([0.0, -0.0, math.nan])])
    read = lambda h: [h["map"].get(k) for k in (0.0, -0.0, math.nan)]  # noqa: E731
    assert j.one("a", read) == [0, 1, 2]


def test_odd_map_keys_are_refused(job):
    j = job(MAP)
    with pytest.raises(NullKeyError):
        j.one("a", lambda h: h["map"].put(None, 1))
    with pytest.raises(ElementTypeError):
        j.one("a", lambda h: h["map"].put(5, 1))
    with pytest.raises(UnsupportedTypeError, match="'map'"):
        MapStateDescriptor("map", list[int], int).check()


IN_WINDOWS = WindowedStateDescriptor("map", NAMED_IN_WINDOW, Types.LONG())


def of_window(*window):
    return lambda h: sorted(tuple(each) for each in h["map"].of_window(window))


def test_entries_of_a_window(job):
    j = job(IN_WINDOWS)
    j.one("a", lambda h: h["map"].put_all({(0, 10, "x"): 1, (0, 10, "y"): 2, (10, 20, "x"): 3}))

    def changed(h):
        seen = [of_window(0, 10)(h)]
        h["map"].remove((0, 10, "x"))
        h["map"].put((0, 10, "z"), 4)
        h["map"].put((30, 40, "w"), 5)
        return [*seen, of_window(0, 10)(h), of_window(30, 40)(h)]

    assert j.one("a", changed) == [
        [(0, 10, "x"), (0, 10, "y")],
        [(0, 10, "y"), (0, 10, "z")],
        [(30, 40, "w")],
    ]
    assert j.run([("a", of_window(0, 10)), ("b", of_window(0, 10))]) == [
        [(0, 10, "y"), (0, 10, "z")],
        [],
    ]


def test_entries_of_a_window_after_an_undo(job):
    j = job(IN_WINDOWS)
    j.one("a", lambda h: h["map"].put_all({(0, 10, "x"): 1, (0, 10, "y"): 2}))

    def undone(h):
        saved = h["map"].save()
        found = of_window(0, 10)(h)
        h["map"].remove((0, 10, "x"))
        h["map"].put((0, 10, "z"), 4)
        h["map"].restore(saved)
        return found == of_window(0, 10)(h)

    assert j.one("a", undone)


WINDOWS = WindowedStateDescriptor(
    "map", Types.ROW_NAMED(["start", "end"], [Types.LONG(), Types.LONG()]), Types.LONG()
)


def touching(h, window):
    """The windows that touch one, found by the state and by looking at all of them."""
    every = sorted((start, end) for start, end in h["map"])
    wanted = [each for each in every if each[0] <= window[1] and each[1] >= window[0]]
    return h["map"].touching(window), wanted


@pytest.mark.parametrize("seed", range(20))
def test_windows_that_touch_another_one(job, seed):
    j = job(WINDOWS)
    random = Random(seed)

    def window():
        start = random.randrange(-50, 200)
        return start, start + random.choice((1, 3, 10, 80 if seed % 4 == 0 else 10))

    def changed(h):
        for _ in range(40):
            found, wanted = touching(h, window())
            assert found == wanted
            if random.random() < 0.7:
                h["map"].put(window(), 1)
            elif wanted:
                h["map"].remove(random.choice(wanted))

    def undone(h):
        saved = h["map"].save()
        before = touching(h, (0, 100))[1]
        changed(h)
        h["map"].restore(saved)
        assert touching(h, (0, 100)) == (before, before)

    for _ in range(3):
        j.run([("a", changed), ("b", changed), ("a", undone), ("a", changed)])


@pytest.mark.parametrize("epochs", [["zbca", ""], ["zb", "ca"], ["z", "b", "c", "a"]])
def test_the_order_of_entries_does_not_depend_on_where_epochs_end(job, epochs):
    j = job(MAP)
    seen = []

    def step(key):
        return lambda h: (put(**{key: 1})(h), seen.append("".join(h["map"].keys())))

    for keys in epochs:
        j.run([("a", step(key)) for key in keys])
    assert seen == ["z", "bz", "bcz", "abcz"]


def test_undoing_changes_after_all_entries_were_seen(job):
    """What was removed before is known to be gone, whatever is read while it is undone."""
    j = job(MAP)
    j.one("a", put(x=1, y=2, z=3))

    def step(h):
        h["map"].remove("x")
        saved = h["map"].save()
        assert items(h) == {"y": 2, "z": 3}
        h["map"].remove("y")
        put(w=4, x=5)(h)
        h["map"].restore(saved)
        return "x" in h["map"], h["map"].get("y"), "w" in h["map"], h["map"].keys()

    assert j.one("a", step) == (False, 2, False, ["y", "z"])
    assert j.one("a", items) == {"y": 2, "z": 3}


def test_what_has_come_and_gone_is_not_passed_over_again(job):
    """Sessions do this for every element, and each leaves a window that is no more."""
    j = job(MAP)

    def step(h):
        m = h["map"]
        m.keys()
        for number in range(1000):
            m.put(f"{number}", number)
            m.remove(f"{number - 1}")
        return len(m._entries().known), m.keys()

    assert j.one("a", step) == (1, ["999"])
    assert j.one("a", items) == {"999": 999}
