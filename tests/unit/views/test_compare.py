"""What differs between two snapshots of any kind."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from fake_job import FakeJob, schema
from turnback.errors import (
    ConfigurationError,
    CorruptFileError,
    IncompatibleStateError,
    StateError,
)
from turnback.state.files import storage_of
from turnback.values.typeinfo import MapTypeInfo, Types
from turnback.views import compare
from turnback.views.compare import page, states

TOTAL = schema()
OLD = {f"user {i}": i for i in range(100)}
NEW = {f"user {i}": i if i % 10 else -i for i in range(3, 105)}


@pytest.fixture(params=["checkpoints", "savepoints", "a checkpoint and a savepoint"])
def take(request, tmp_path):
    """Takes two snapshots, given what the states hold in each."""

    def both(old, new, groups=16):
        taken = []
        for side, held in enumerate((old, new)):
            job = FakeJob(str(tmp_path / f"jobs-{side}"), groups=groups)
            job.attempt()
            if request.param == "checkpoints" or (side == 0 and "and" in request.param):
                taken.append(job.checkpoint(*held))
            else:
                taken.append(job.savepoint(str(tmp_path / f"sp-{side}"), *held, parts=3))
        return taken

    return both


def every_page(old, new, limit=1000, name="total"):
    pages, after = [], None
    while True:
        pages.append(page(old, new, "count", name, after_cursor=after, limit=limit))
        assert len(pages[-1].rows) <= limit
        after = pages[-1].next
        if after is None:
            return pages


def summed(pages):
    return {
        what: sum(getattr(p, what) for p in pages)
        for what in ("added", "removed", "changed", "same")
    }


@pytest.mark.parametrize("limit", [1000, 7, 1])
def test_every_difference_is_told_once(take, limit, monkeypatch):
    monkeypatch.setattr(compare, "SPAN_ROWS", 40)
    old, new = take([(TOTAL, OLD)], [(TOTAL, NEW)])
    pages = every_page(old, new, limit)
    rows = {row.key: (row.change, row.before, row.after) for p in pages for row in p.rows}
    assert sum(len(p.rows) for p in pages) == len(rows)
    expected = {}
    for key in OLD.keys() | NEW.keys():
        was, now = OLD.get(key), NEW.get(key)
        if was != now:
            kind = "added" if was is None else "removed" if now is None else "changed"
            expected[key] = (kind, was, now)
    assert rows == expected
    assert summed(pages) == {"added": 5, "removed": 3, "changed": 9, "same": 88}


def test_nothing_differs(take):
    old, new = take([(TOTAL, OLD)], [(TOTAL, OLD)])
    (only,) = every_page(old, new)
    assert (only.rows, only.same) == ((), 100)
    assert [(row.name, row.presence) for row in states(old, new)] == [("total", "both")]


def test_a_page_ends_when_its_time_is_over(take, monkeypatch):
    monkeypatch.setattr(compare, "SCAN_S", -1.0)
    monkeypatch.setattr(compare, "SPAN_ROWS", 10)
    old, new = take([(TOTAL, OLD)], [(TOTAL, NEW)])
    pages = every_page(old, new)
    assert len(pages) == 16
    assert summed(pages) == {"added": 5, "removed": 3, "changed": 9, "same": 88}


def test_equal_values_are_equal_however_they_are_stored(take):
    map_type = MapTypeInfo(Types.STRING(), Types.LONG())
    row = schema(value=Types.ROW_NAMED(["d", "m"], [Types.BIG_DEC(10, 3), map_type]))
    number = schema("number", value=Types.DOUBLE())
    old, new = take(
        [(row, {"a": (Decimal("1.5"), {"x": 1, "y": 2})}), (number, {"a": math.nan, "b": 0.0})],
        [(row, {"a": (Decimal("1.500"), {"y": 2, "x": 1})}), (number, {"a": math.nan, "b": -0.0})],
    )
    (only,) = every_page(old, new)
    assert (only.changed, only.same) == (0, 1)
    (only,) = every_page(old, new, name="number")
    assert [row.key for row in only.rows] == ["b"]


def test_lists_and_maps_differ_by_entry(take):
    seen = schema("seen", "list", Types.STRING())
    by_id = schema("by id", "map", Types.STRING(), sub=Types.LONG())
    old, new = take(
        [(seen, {"a": ["x", "y"]}), (by_id, {"a": {1: "one", 2: "two"}})],
        [(seen, {"a": ["x", "z", "w"]}), (by_id, {"a": {1: "one", 3: None}})],
    )
    (only,) = every_page(old, new, name="seen")
    found = [(row.change, row.key, row.before, row.after) for row in only.rows]
    assert found == [("changed", "a", "y", "z"), ("added", "a", None, "w")]
    assert all(isinstance(row.sub, int) for row in only.rows)
    (only,) = every_page(old, new, name="by id")
    assert {(row.change, row.sub, row.before, row.after) for row in only.rows} == {
        ("removed", 2, "two", None),
        ("added", 3, None, None),
    }


def test_a_state_in_one_snapshot_only(take):
    other = schema("other")
    old, new = take([(TOTAL, {"a": 1})], [(other, {"b": 2})])
    assert [(row.name, row.presence) for row in states(old, new)] == [
        ("other", "after"),
        ("total", "before"),
    ]
    (only,) = every_page(old, new)
    assert [(row.change, row.before) for row in only.rows] == [("removed", 1)]
    (only,) = every_page(old, new, name="other")
    assert [(row.change, row.after) for row in only.rows] == [("added", 2)]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (schema(value=Types.STRING()), "its value type was bigint and is now string"),
        (schema(keys=[Types.LONG()]), "its key type was string and is now bigint"),
        (schema(kind="list"), "its kind of state was value and is now list"),
        (schema(columns=False), "keyed by columns in one.*Use `turnback diff`"),
    ],
)
def test_what_cannot_be_compared(take, other, told):
    old, new = take([(TOTAL, {})], [(other, {})])
    with pytest.raises(IncompatibleStateError, match=f"state 'total' of operator 'count'.*{told}"):
        page(old, new, "count", "total")


def test_other_key_groups_are_left_to_spark(tmp_path):
    taken = []
    for groups in (16, 32):
        job = FakeJob(str(tmp_path / str(groups)), groups=groups)
        job.attempt()
        taken.append(job.checkpoint((TOTAL, OLD)))
    with pytest.raises(IncompatibleStateError, match=r"16 key groups, the other 32.*turnback diff"):
        page(*taken, "count", "total")


@pytest.mark.parametrize("after", ["x", "3.0", "16.0", 5])
def test_a_cursor_that_is_none_is_refused(take, after):
    old, new = take([(TOTAL, OLD)], [(TOTAL, NEW)])
    with pytest.raises(ConfigurationError, match="invalid cursor"):
        page(old, new, "count", "total", after_cursor=after)


def test_mistakes(take):
    old, new = take([(TOTAL, OLD)], [(TOTAL, NEW)])
    with pytest.raises(ConfigurationError, match="limit"):
        page(old, new, "count", "total", limit=0)
    with pytest.raises(StateError, match="did you mean 'total'"):
        page(old, new, "count", "totla")
    storage = storage_of(new.storage)
    for path in (new.manifest or new.metadata).files():
        storage.put(path, b"other bytes")
    with pytest.raises(CorruptFileError):
        page(old, new, "count", "total")
