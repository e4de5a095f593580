from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from turnback.errors import CorruptFileError, FormatVersionError
from turnback.state import delta as module
from turnback.state.delta import DeltaBuilder, read_delta
from turnback.state.schema import KeySchema, StateSchema

KEY = KeySchema((), True)
VALUE = StateSchema(uid="b", name="v", kind="value", key=KEY, value="long")
MAP = StateSchema(uid="a", name="m", kind="map", key=KEY, value="long", sub="string")


def rows(data):
    return [tuple(r.values()) for b in read_delta(data).batches() for r in b().to_pylist()]


def test_nothing_dirty_makes_no_file():
    builder = DeltaBuilder()
    builder.add(VALUE, [], [], None, [])
    assert builder.build() is None


def test_rows_are_sorted_by_group_and_otherwise_in_order():
    builder = DeltaBuilder()
    builder.add(VALUE, [7, 2, 7], [b"k1", b"k2", b"k3"], None, [b"1", None, b"3"])
    builder.add(MAP, [2, 2], [b"k", b"k"], [None, b"s"], [None, b"x"])
    built = builder.build()
    assert built.rows == 5
    assert (built.first_group, built.last_group, built.operators) == (2, 7, ("a", "b"))
    assert rows(built.data) == [
        (0, 2, b"k2", None, None),
        (1, 2, b"k", None, None),
        (1, 2, b"k", b"s", b"x"),
        (0, 7, b"k1", None, b"1"),
        (0, 7, b"k3", None, b"3"),
    ]
    assert read_delta(built.data).schemas == [VALUE, MAP]


def test_the_file_says_what_it_is():
    builder = DeltaBuilder()
    builder.add(VALUE, [7], [b"k"], None, [b"1"])
    built = builder.build()
    file = built.file("p", 3, "2-n", inline=True)
    assert (file.length, file.rows, file.first_epoch, file.last_epoch) == (len(built.data), 1, 3, 3)
    assert (file.lineage, file.inline, file.complete) == ((("2-n", 3),), built.data, False)
    assert built.file("p", 3).inline is None


def test_a_file_of_format_1_is_read_for_ever():
    """Written by the first release; never to be written anew."""
    data = (Path(__file__).parent / "golden" / "state-1.arrow").read_bytes()
    seventh = bytes.fromhex("0000000000000007")
    assert rows(data) == [
        (0, 76, b"\xa1a", None, b"\x01"),
        (1, 76, b"\xa1a", None, None),
        (1, 76, b"\xa1a", seventh + b"\0\0\0\0", b"\xa1x"),
        (1, 76, b"\xa1a", seventh + b"\0\0\0\1", b"\xa1y"),
        (2, 76, b"\xa1a", b"\xa1k", b"\x02"),
        (2, 76, b"\xa1a", b"\xa4gone", None),
        (0, 83, b"\xa1b", None, None),
        (2, 83, b"\xa1b", None, None),
    ]
    schemas = read_delta(data).schemas
    assert [(s.uid, s.name, s.kind, s.sub, s.value) for s in schemas] == [
        ("op", "value", "value", None, "long"),
        ("op", "list", "list", None, "string"),
        ("op", "map", "map", "string", "long"),
    ]
    assert schemas[0].key == KeySchema(("string",), True)


def test_batches_are_bounded_in_rows_and_bytes(monkeypatch):
    monkeypatch.setattr(module, "BATCH_ROWS", 10)
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    builder = DeltaBuilder()
    sizes = [1] * 25 + [400] * 5 + [5000, 1]
    builder.add(VALUE, [0] * 32, [b"k%d" % i for i in range(32)], None, [b"v" * n for n in sizes])
    data = builder.build().data
    lengths = [read().num_rows for read in read_delta(data).batches()]
    assert lengths == [10, 10, 7, 2, 1, 1, 1]
    assert [len(r[4]) for r in rows(data)] == sizes


@pytest.mark.parametrize("first", range(-1, 12))
@pytest.mark.parametrize("width", [0, 1, 3, 20])
def test_only_the_batches_of_some_key_groups_are_read(monkeypatch, first, width):
    monkeypatch.setattr(module, "BATCH_ROWS", 3)
    groups = [1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 5, 5, 5, 8, 8, 9, 10]
    builder = DeltaBuilder()
    keys = [b"k%d" % i for i in range(len(groups))]
    builder.add(VALUE, groups, keys, None, keys)
    batches = [b() for b in read_delta(builder.build().data).batches(first, first + width)]
    found = [row["group"] for batch in batches for row in batch.to_pylist()]
    wanted = [g for g in groups if first <= g <= first + width]
    assert [g for g in found if first <= g <= first + width] == wanted
    for batch in batches:
        assert any(first <= row["group"] <= first + width for row in batch.to_pylist()) or (
            batch["group"][0].as_py() < first and first + width < batch["group"][-1].as_py()
        )


def test_a_newer_format_is_refused_naming_both():
    table = pa.table({"x": [1]}).replace_schema_metadata({"turnback.state.format": "7"})
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(FormatVersionError, match=r"file f has format 7.* up to 2"):
        read_delta(out.getvalue().to_pybytes(), "f")


@pytest.mark.parametrize("data", [b"", b"rubbish" * 50])
def test_what_is_no_state_file_is_refused(data):
    with pytest.raises(CorruptFileError, match="the-file"):
        read_delta(data, "the-file")


def test_a_file_without_our_metadata_is_refused():
    table = pa.table({"x": [1]})
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CorruptFileError, match="not a state file"):
        read_delta(out.getvalue().to_pybytes())
