"""Rows of a state, page by page."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from fake_job import FakeJob, memory_root, schema
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    NotFoundError,
    StateError,
)
from turnback.snapshot.find import load_savepoint
from turnback.snapshot.snapshot import Snapshot
from turnback.state import delta
from turnback.state.files import storage_of
from turnback.values.typeinfo import Types
from turnback.views import browse, compare
from turnback.views.browse import page

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[2] / "integration/golden/savepoint-1"
TOTAL = schema()
SEEN = schema("seen", "list", Types.STRING())
BY_DAY = schema("by day", "map", Types.LONG(), sub=Types.SQL_DATE())
HELD = {f"user {i}": i for i in range(100)}


@pytest.fixture(
    params=["checkpoint", "inline", "savepoint", "savepoint of many files", "native savepoint"]
)
def snapshot_of(request, tmp_path):
    """Makes a snapshot of the given states, of every kind there is."""

    def make(*states, groups=16):
        if request.param == "inline":
            job = FakeJob(memory_root(), groups=groups)
            job.attempt()
            return job.checkpoint(*states, inline=True)
        job = FakeJob(str(tmp_path / "jobs"), groups=groups)
        job.attempt()
        if request.param == "checkpoint":
            return job.checkpoint(*states)
        if request.param == "native savepoint":
            return job.native(str(tmp_path / "sp"), *states)
        parts = 1 if request.param == "savepoint" else 7
        return job.savepoint(str(tmp_path / "sp"), *states, parts=parts)

    return make


def every_row(snapshot, name, limit=7, **more):
    rows, pages, after = [], 0, None
    while True:
        found = page(snapshot, "count", name, after=after, limit=limit, **more)
        assert len(found.rows) <= limit
        rows += found.rows
        pages += 1
        if found.next is None:
            return rows, pages
        assert found.next != after
        after = found.next


def test_pages_hold_every_row_once(snapshot_of):
    snapshot = snapshot_of((TOTAL, HELD))
    rows, pages = every_row(snapshot, "total")
    assert dict(rows) == HELD
    assert len(rows) == 100
    assert pages >= 15
    found = page(snapshot, "count", "total", limit=1000)
    assert found.columns == ("key", "value")
    assert (found.rows, found.next, found.scanned) == (tuple(rows), None, 100)


def test_a_small_scan_limit_gives_short_pages_and_loses_nothing(snapshot_of, monkeypatch):
    snapshot = snapshot_of((TOTAL, HELD))
    monkeypatch.setattr(browse, "SCAN_S", -1.0)
    monkeypatch.setattr(browse, "SPAN_ROWS", 10)
    rows, _ = every_row(snapshot, "total", limit=1000)
    assert dict(rows) == HELD
    assert len(rows) == 100
    ones, _ = every_row(snapshot, "total", limit=1000, key="user 9*")
    assert {key for key, _ in ones} == {"user 9"} | {f"user 9{i}" for i in range(10)}


def test_files_that_open_slowly_do_not_cut_a_page_short(snapshot_of, monkeypatch):
    now, tables = [0.0], browse.StateRows.tables

    def slow_tables(rows, start):
        now[0] += 60
        yield from tables(rows, start)

    monkeypatch.setattr(browse, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(browse.StateRows, "tables", slow_tables)
    monkeypatch.setattr(browse, "SPAN_ROWS", 10)
    whole = page(snapshot_of((TOTAL, HELD)), "count", "total", limit=1000)
    assert (len(whole.rows), whole.next) == (100, None)


def test_a_key_group_larger_than_a_table(snapshot_of, monkeypatch):
    """Tables end in the middle of key groups, and pages in the middle of tables."""
    monkeypatch.setattr(delta, "BATCH_ROWS", 11)
    snapshot = snapshot_of((TOTAL, HELD), groups=2)
    for limit in (1, 7, 11, 60):
        rows, _ = every_row(snapshot, "total", limit=limit)
        assert dict(rows) == HELD
        assert len(rows) == 100


def test_a_key_is_found_and_no_other_is_read(snapshot_of):
    snapshot = snapshot_of((TOTAL, HELD))
    found = page(snapshot, "count", "total", key="user 42")
    assert (found.rows, found.scanned) == ((("user 42", 42),), 1)
    assert page(snapshot, "count", "total", key='"user 42"').rows == (("user 42", 42),)
    missing = page(snapshot, "count", "total", key="nobody")
    assert (missing.rows, missing.next) == ((), None)


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_positions_in_lists_count_from_0(tmp_path, limit):
    """On every page, also in the middle of a list, and whatever epoch an element is of."""
    job = FakeJob(str(tmp_path / "jobs"), groups=2)
    job.attempt()
    job.checkpoint((SEEN, {"a": ["x", "y"], "b": ["u"], "c": []}))
    taken = job.checkpoint((SEEN, {"a": ["z"], "b": ["v", "w"]}))
    held = {"a": ["x", "y", "z"], "b": ["u", "v", "w"]}
    saved = job.savepoint(str(tmp_path / "sp"), (SEEN, held))
    wanted = {(key, i, value) for key, values in held.items() for i, value in enumerate(values)}
    for snapshot in (taken, saved):
        rows, _ = every_row(snapshot, "seen", limit=limit)
        assert len(rows) == 6
        assert set(rows) == wanted
        rows, _ = every_row(snapshot, "seen", limit=limit, key="b")
        assert rows == [("b", 0, "u"), ("b", 1, "v"), ("b", 2, "w")]


def test_keys_by_a_function_are_in_other_key_groups(snapshot_of):
    state = schema(columns=False)
    found = page(snapshot_of((state, HELD)), "count", "total", key="user 7")
    assert found.rows == (("user 7", 7),)


def test_a_prefix(snapshot_of):
    snapshot = snapshot_of((TOTAL, {**HELD, "user 1*": -1}))
    rows, pages = every_row(snapshot, "total", limit=3, key="user 1*")
    assert {key for key, _ in rows} == {"user 1", "user 1*"} | {f"user 1{i}" for i in range(10)}
    assert len(rows) == 12
    assert pages >= 4
    assert page(snapshot, "count", "total", key='"user 1*"').rows == (("user 1*", -1),)


def test_lists_and_maps_of_a_key(snapshot_of):
    words = [f"w{i}" for i in range(30)]
    days = {date(2026, 1, day): day for day in range(1, 11)}
    snapshot = snapshot_of(
        (SEEN, {"a": words, "b": ["x"], "c": []}), (BY_DAY, {"a": days, "b": {date.min: 0}})
    )
    first = page(snapshot, "count", "seen", key="a", limit=20)
    assert first.columns == ("key", "position", "value")
    second = page(snapshot, "count", "seen", key="a", limit=20, after=first.next)
    assert [row[2] for row in first.rows + second.rows] == words
    assert second.next is None
    found = page(snapshot, "count", "by day", key="a")
    assert found.columns == ("key", "map_key", "value")
    assert {row[1]: row[2] for row in found.rows} == {d.isoformat(): n for d, n in days.items()}
    assert len(every_row(snapshot, "seen")[0]) == 31


def test_the_entries_of_a_key_are_in_order(snapshot_of):
    counts = schema("counts", "map", sub=Types.LONG())
    snapshot = snapshot_of((counts, {"a": {3: 0, 1: 0, 2: 0}}))
    assert [row[1] for row in page(snapshot, "count", "counts", key="a").rows] == [1, 2, 3]


KEYS = [
    ([Types.LONG()], 5, "5"),
    ([Types.LONG()], -(2**60), str(-(2**60))),
    ([Types.BIG_INT()], 10**40, str(10**40)),
    ([Types.BOOLEAN()], True, "true"),
    ([Types.BYTES()], b"\x00\xff", "0x00ff"),
    ([Types.SQL_DATE()], date(2026, 1, 31), "2026-01-31"),
    ([Types.SQL_TIMESTAMP()], datetime(2026, 1, 31, 12), "2026-01-31T12:00:00"),
    ([Types.INSTANT()], datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T13:00:00+01:00"),
    ([Types.BIG_DEC(10, 2)], Decimal("1.50"), "1.5"),
    ([Types.STRING()], "", ""),
    ([Types.STRING()], 'say "hi"', 'say "hi"'),
    ([Types.STRING()], '"', '"\\""'),
    ([Types.STRING(), Types.LONG()], ("de", 7), "de, 7"),
    ([Types.STRING(), Types.LONG()], ("a,b", 7), '["a,b", 7]'),
    ([Types.STRING(), Types.BOOLEAN()], ("x", False), '["x", false]'),
    ([Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()])], ("x", 1), '{"b":1,"a":"x"}'),
    ([Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()])], ("x", 1), '["x", 1]'),
]


@pytest.mark.parametrize(("types", "key", "text"), KEYS)
def test_keys_of_all_types_are_found_by_their_text(snapshot_of, types, key, text):
    snapshot = snapshot_of((schema(keys=types), {key: 1}))
    found = page(snapshot, "count", "total", key=text)
    assert len(found.rows) == 1
    shown = found.rows[0][0]
    again = shown if isinstance(shown, str) else json.dumps(shown)
    if text:  # and by what was shown
        quoted = again.startswith('"')
        again = json.dumps(shown) if quoted else again
        assert page(snapshot, "count", "total", key=again).rows == found.rows


@pytest.mark.parametrize(
    ("types", "text", "told"),
    [
        ([Types.LONG()], "five", "'five' is not a key of type bigint: write a number"),
        ([Types.LONG()], "1.5", "not a key of type bigint"),
        ([Types.BYTE()], "1000", "not a key of type tinyint"),
        ([Types.LONG()], "5*", "not a key of type bigint"),
        ([Types.BOOLEAN()], "yes", "true or false"),
        ([Types.BYTES()], "00", "write 0x00ff"),
        ([Types.BYTES()], "0xzz", "write 0x00ff"),
        ([Types.SQL_DATE()], "31.1.2026", "2026-01-31"),
        ([Types.INSTANT()], "2026-01-31T12:00:00", "write 2026.*Z, with a zone"),
        ([Types.SQL_TIMESTAMP()], "2026-01-31T12:00:00Z", "write 2026.*, without a zone"),
        ([Types.BIG_DEC(4, 2)], "1.234", r"not a key of type decimal\(4,2\)"),
        ([Types.BIG_DEC(4, 2)], "NaN", r"not a key of type decimal\(4,2\)"),
        ([Types.STRING(), Types.LONG()], "de", "not a key of 2 columns"),
        ([Types.STRING(), Types.LONG()], '["de"', "not valid JSON"),
        ([Types.STRING(), Types.LONG()], "[" * 100_000, "not valid JSON"),
        ([Types.STRING(), Types.LONG()], '["de", null]', "None is not a key of type bigint"),
        ([Types.ROW_NAMED(["a"], [Types.LONG()])], "[1, 2]", "not a row of a"),
        ([Types.STRING()], '"\\x"', "not valid JSON"),
        ([Types.STRING()], 5, "by its text, not by 5"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_one_is_refused(tmp_path, types, text, told):
    job = FakeJob(str(tmp_path))
    job.attempt()
    snapshot = job.checkpoint((schema(keys=types), {}))
    with pytest.raises(ConfigurationError, match=told):
        page(snapshot, "count", "total", key=text)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def saying(snapshot, states):
    """The same savepoint, whose metadata says that its states are others."""
    return Snapshot(replace(snapshot.document, states=tuple(states)), snapshot.storage)


def test_pickles_are_never_opened(tmp_path):
    """The bytes of a bomb, read as the pickles that a stranger's savepoint says they are."""
    data = pickle.dumps(Bomb())
    plain = schema("plain", value=Types.BYTES())
    row = schema("row", value=Types.ROW_NAMED(["n", "it"], [Types.LONG(), Types.BYTES()]))
    job = FakeJob(str(tmp_path / "jobs"))
    snapshot = job.savepoint(str(tmp_path / "sp"), (plain, {"a": data}), (row, {"a": (1, data)}))
    pickled = Types.PICKLED_BYTE_ARRAY()
    said = {
        "plain": schema("plain", value=pickled),
        "row": schema("row", value=Types.ROW_NAMED(["n", "it"], [Types.LONG(), pickled])),
    }
    snapshot = saying(snapshot, [replace(s, schema=said[s.schema.name]) for s in snapshot.states])
    told = f"<pickle, {len(data):,} bytes>"
    assert page(snapshot, "count", "plain").rows == (("a", told),)
    assert page(snapshot, "count", "row", key="a").rows == (("a", {"n": 1, "it": told}),)


def test_pickled_values(snapshot_of):
    snapshot = snapshot_of((schema(value=Types.PICKLED_BYTE_ARRAY()), {"a": {"x": 1}}))
    ((key, value),) = page(snapshot, "count", "total", key="a").rows
    assert (key, value[:8]) == ("a", "<pickle,")


def test_an_empty_state(snapshot_of):
    found = page(snapshot_of((TOTAL, {}), (SEEN, {"a": ["x"]})), "count", "total")
    assert (found.rows, found.next, found.scanned) == ((), None, 0)


def test_only_what_is_left_after_all_epochs_is_shown(tmp_path):
    job = FakeJob(str(tmp_path))
    job.attempt()
    job.checkpoint((TOTAL, {"a": 1, "b": 2}))
    snapshot = job.checkpoint((TOTAL, {"a": 10}))
    assert dict(page(snapshot, "count", "total").rows) == {"a": 10, "b": 2}


def test_long_values_are_cut_unless_all_is_asked_for(snapshot_of):
    snapshot = snapshot_of((schema(value=Types.STRING()), {"a": "x" * 5000}))
    ((_, cut),) = page(snapshot, "count", "total").rows
    assert cut == "x" * 2000 + "… (5,000 characters)"
    assert page(snapshot, "count", "total", full=True).rows == (("a", "x" * 5000),)


@pytest.mark.parametrize("limit", [0, -1, 1001, True, "5", None, 2.0])
def test_a_limit_that_cannot_be_one(tmp_path, limit):
    job = FakeJob(str(tmp_path))
    job.attempt()
    with pytest.raises(ConfigurationError, match="limit must be between 1 and 1000, not"):
        page(job.checkpoint((TOTAL, HELD)), "count", "total", limit=limit)


@pytest.mark.parametrize("after", ["", "x", "1", "1.", "-1.0", "1.0 ", "1.1.1", 5, "9" * 30 + ".1"])
def test_a_cursor_that_is_none_is_refused(tmp_path, after):
    job = FakeJob(str(tmp_path))
    job.attempt()
    with pytest.raises(ConfigurationError, match="invalid cursor"):
        page(job.checkpoint((TOTAL, HELD)), "count", "total", after=after)


@pytest.mark.parametrize("after", ["99.0", "0.999999", "15.999999"])
def test_a_cursor_past_the_end_gives_no_wrong_rows(snapshot_of, after):
    found = page(snapshot_of((TOTAL, HELD)), "count", "total", after=after, limit=1000)
    assert set(found.rows) <= set(HELD.items())


def test_names_that_are_not_there(snapshot_of):
    snapshot = snapshot_of((TOTAL, HELD))
    with pytest.raises(StateError, match="did you mean 'total'"):
        page(snapshot, "count", "totel")
    with pytest.raises(StateError, match="did you mean 'count'"):
        page(snapshot, "conut", "total")
    with pytest.raises(StateError):
        page(snapshot, None, 5)


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_damaged_and_missing_files(tmp_path, kind):
    job = FakeJob(str(tmp_path / "jobs"))
    job.attempt()
    state = (TOTAL, HELD)
    is_saved = kind == "savepoint"
    snapshot = job.savepoint(str(tmp_path / "sp"), state) if is_saved else job.checkpoint(state)
    storage = storage_of(snapshot.storage)
    paths = list((snapshot.manifest or snapshot.metadata).files())
    data = storage.get(paths[0])
    storage.put(paths[0], data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptFileError, match=paths[0]):
        page(snapshot, "count", "total", limit=1000)
    storage.delete(paths[0])
    with pytest.raises(NotFoundError, match=paths[0]):
        page(snapshot, "count", "total", limit=1000)


def test_files_with_other_columns_are_refused(tmp_path):
    """A savepoint from a stranger may say one thing and hold another."""
    job = FakeJob(str(tmp_path / "jobs"))
    snapshot = job.savepoint(str(tmp_path / "sp"), (schema(value=Types.STRING()), {"a": "x"}))
    snapshot = saying(snapshot, [replace(snapshot.states[0], schema=schema("total", "list"))])
    with pytest.raises(StateError, match=r"state 'total' of operator 'count' .* cannot be read"):
        page(snapshot, "count", "total")


def test_a_savepoint_of_an_earlier_release():
    snapshot = load_savepoint(str(GOLDEN), {})
    found = page(snapshot, "every/thing", "stats", limit=1000)
    assert len(found.rows) == 10
    json.dumps(found.rows, allow_nan=False)
    for key, value in found.rows:
        (one,) = page(snapshot, "every/thing", "stats", key=json.dumps(key)).rows
        assert one == (key, value)


def test_one_that_was_dropped_is_told_from_one_that_is_damaged(tmp_path: Path) -> None:
    job = FakeJob(str(tmp_path))
    job.attempt()
    first = job.checkpoint((TOTAL, {"ann": 1}))
    second = job.checkpoint((TOTAL, {"ann": 2}))
    assert first.manifest is not None
    for file in {f.path for f in (*first.manifest.state, *second.manifest.state)}:
        storage_of(first.storage).delete(file)
    with pytest.raises(NotFoundError):
        page(first, TOTAL.uid, TOTAL.name)
    job.log.remove(first.manifest.number)
    with pytest.raises(
        CheckpointNotFoundError, match=r"chk-\d+ of job 'likes' is no longer retained"
    ):
        page(first, TOTAL.uid, TOTAL.name)
    with pytest.raises(CheckpointNotFoundError, match="num-retained"):
        compare.page(first, second, TOTAL.uid, TOTAL.name)
    with pytest.raises(NotFoundError):
        page(second, TOTAL.uid, TOTAL.name)
