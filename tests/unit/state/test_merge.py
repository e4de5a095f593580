from __future__ import annotations

import msgspec
import pytest

from state_support import clip, opener
from turnback.errors import CorruptFileError, IncompatibleStateError
from turnback.state import delta, merging
from turnback.state.delta import DeltaBuilder, read_delta
from turnback.state.merging import live_rows, merge
from turnback.state.schema import KeySchema, StateSchema

KEY = KeySchema((), True)
VALUE = StateSchema(uid="b", name="v", kind="value", key=KEY, value="long")
MAP = StateSchema(uid="a", name="m", kind="map", key=KEY, value="long", sub="string")
LIST = StateSchema(uid="a", name="l", kind="list", key=KEY, value="long")


class Files:
    def __init__(self):
        self.blobs, self.files = {}, []

    def add(self, *changes):
        """One file of (schema, group, key, sub, value)."""
        epoch = len(self.files) + 1
        builder = DeltaBuilder()
        for schema, group, key, sub, value in changes:
            builder.add(schema, [group], [key], [sub], [value])
        built = builder.build()
        self.blobs[f"f{epoch}"] = built.data
        self.files.append(built.file(f"f{epoch}", epoch, "1-n"))

    def merge(self, final, files=None):
        built = merge(files or self.files, lambda f: self.blobs[f.path], final=final)
        found = read_delta(built.data)
        rows = [tuple(r.values()) for b in found.batches() for r in b().to_pylist()]
        return built, [(found.schemas[r[0]].name, *r[1:]) for r in rows]


@pytest.fixture
def files():
    return Files()


def test_the_last_write_wins(files):
    files.add((VALUE, 1, b"x", None, b"1"), (VALUE, 1, b"y", None, b"1"))
    files.add((VALUE, 1, b"x", None, b"2"), (VALUE, 0, b"z", None, b"2"))
    built, rows = files.merge(final=False)
    assert rows == [
        ("v", 0, b"z", None, b"2"),
        ("v", 1, b"y", None, b"1"),
        ("v", 1, b"x", None, b"2"),
    ]
    assert built[1:] == (3, 0, 1, ("b",))


def test_tombstones_are_kept_unless_nothing_older_is_left(files):
    files.add((VALUE, 1, b"x", None, b"1"), (MAP, 1, b"x", b"s", b"1"), (MAP, 1, b"x", b"t", b"1"))
    files.add((VALUE, 1, b"x", None, None), (MAP, 1, b"x", b"s", None))
    assert sorted(files.merge(final=False)[1], key=str) == [
        ("m", 1, b"x", b"s", None),
        ("m", 1, b"x", b"t", b"1"),
        ("v", 1, b"x", None, None),
    ]
    built, rows = files.merge(final=True)
    assert rows == [("m", 1, b"x", b"t", b"1")]
    assert built.operators == ("a",)


def test_a_clear_removes_what_is_older_and_only_of_its_key_and_state(files):
    files.add(
        (MAP, 1, b"x", b"s", b"1"),
        (MAP, 1, b"y", b"s", b"1"),
        (LIST, 1, b"x", b"s", b"1"),
        (VALUE, 1, b"x", None, b"1"),
    )
    files.add((MAP, 1, b"x", None, None), (MAP, 1, b"x", b"t", b"2"))
    files.add((MAP, 1, b"x", b"u", b"3"))
    rest = [("l", 1, b"x", b"s", b"1"), ("m", 1, b"y", b"s", b"1"), ("v", 1, b"x", None, b"1")]
    new = [("m", 1, b"x", b"t", b"2"), ("m", 1, b"x", b"u", b"3")]
    _, rows = files.merge(final=False)
    assert rows[0] == ("m", 1, b"x", None, None)
    assert sorted(rows[1:], key=str) == sorted(rest + new, key=str)
    assert sorted(files.merge(final=True)[1], key=str) == sorted(rest + new, key=str)


def test_of_two_clears_the_later_counts(files):
    files.add((LIST, 1, b"x", None, None), (LIST, 1, b"x", b"a", b"1"))
    files.add((LIST, 1, b"x", None, None), (LIST, 1, b"x", b"b", b"2"))
    assert files.merge(final=False)[1] == [
        ("l", 1, b"x", None, None),
        ("l", 1, b"x", b"b", b"2"),
    ]


def test_keys_and_subs_that_only_look_alike_when_joined_stay_apart(files):
    files.add((MAP, 1, b"a", b"bc", b"1"), (MAP, 1, b"ab", b"c", b"2"))
    files.add((MAP, 1, b"abc", b"", b"3"), (MAP, 1, b"", b"abc", b"4"))
    assert len(files.merge(final=True)[1]) == 4


def test_files_may_number_their_states_differently(files):
    files.add((VALUE, 1, b"x", None, b"1"), (MAP, 1, b"x", b"s", b"1"))
    files.add((MAP, 1, b"x", b"s", b"2"), (VALUE, 1, b"x", None, b"2"))
    assert {(r[0], r[4]) for r in files.merge(final=True)[1]} == {("v", b"2"), ("m", b"2")}


def test_only_the_groups_that_count_are_taken(files):
    files.add(*[(VALUE, g, b"x", None, b"1") for g in range(8)])
    clipped = [clip(files.files[0], 2, 4)]
    built, rows = files.merge(True, clipped)
    assert [r[1] for r in rows] == [2, 3, 4]
    assert (built.first_group, built.last_group) == (2, 4)


def test_only_the_operators_that_count_are_taken(files):
    files.add((VALUE, 1, b"x", None, b"1"), (MAP, 1, b"x", b"s", b"1"))
    narrowed = [msgspec.structs.replace(files.files[0], operators=("a",))]
    built, rows = files.merge(True, narrowed)
    assert rows == [("m", 1, b"x", b"s", b"1")]
    assert built.operators == ("a",)


def test_when_nothing_is_left_the_file_is_empty_but_valid(files):
    files.add((VALUE, 3, b"x", None, b"1"))
    files.add((VALUE, 5, b"x", None, None), (VALUE, 3, b"x", None, None))
    built, rows = files.merge(final=True)
    assert rows == []
    assert built[1:] == (0, 3, 5, ())


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_slicing_changes_nothing(files, monkeypatch, batch):
    def changes(epoch):
        return [
            (MAP, g, b"k%d" % (n % 3), b"s%d" % n, b"%d-%d" % (epoch, n))
            for g in range(4)
            for n in range(epoch, 9, 2)
        ] + [(MAP, epoch, b"k1", None, None)]

    for epoch in range(4):
        files.add(*changes(epoch)[::-1])
    whole = files.merge(final=False)[1]
    monkeypatch.setattr(delta, "BATCH_ROWS", batch)
    sliced = Files()
    for epoch in range(4):
        sliced.add(*changes(epoch)[::-1])
    assert sliced.merge(final=False)[1] == whole
    assert [r[1] for r in whole] == sorted(r[1] for r in whole)


def test_damage_and_foreign_types_are_refused(files):
    files.add((VALUE, 1, b"x", None, b"1"))
    files.add(
        (
            StateSchema(uid="b", name="v", kind="value", key=KEY, value="string"),
            1,
            b"x",
            None,
            b"1",
        )
    )
    with pytest.raises(IncompatibleStateError):
        files.merge(final=True)
    files.blobs["f2"] = files.blobs["f1"]
    with pytest.raises(CorruptFileError, match="f2"):
        files.merge(final=True)


def test_live_rows_are_what_a_final_merge_keeps(files):
    files.add((VALUE, 1, b"x", None, b"1"), (MAP, 0, b"x", b"s", b"1"), (MAP, 1, b"x", b"t", b"1"))
    files.add(
        (VALUE, 1, b"x", None, None), (MAP, 1, b"x", b"t", b"2"), (VALUE, 3, b"y", None, b"3")
    )
    files.add((MAP, 0, b"x", None, None), (LIST, 2, b"k", b"0", b"1"))
    found = [
        (schema.name, *row.values())
        for schema, table in live_rows(files.files, opener(lambda f: files.blobs[f.path]))
        for row in table.to_pylist()
    ]
    assert sorted(found) == sorted(files.merge(final=True)[1])
    assert sorted(found) == [
        ("l", 2, b"k", b"0", b"1"),
        ("m", 1, b"x", b"t", b"2"),
        ("v", 3, b"y", None, b"3"),
    ]


def test_live_rows_of_a_state_come_in_bounded_tables_in_the_order_of_groups(files, monkeypatch):
    monkeypatch.setattr(merging, "BATCH_ROWS", 3)
    for value in (b"1", b"2"):
        files.add(*((VALUE, g, b"%d" % k, None, value) for g in (5, 2, 9) for k in range(4)))
    tables = [t for _, t in live_rows(files.files, opener(lambda f: files.blobs[f.path]))]
    assert max(map(len, tables)) <= 3
    groups = [g for t in tables for g in t["group"].to_pylist()]
    assert groups == [2] * 4 + [5] * 4 + [9] * 4
    assert {v for t in tables for v in t["value"].to_pylist()} == {b"2"}
