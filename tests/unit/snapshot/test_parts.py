from __future__ import annotations

import io
import re
from io import BytesIO
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from savepoint_support import rows_table, state_schema

from turnback.errors import CorruptFileError, NotFoundError
from turnback.snapshot import parts as module
from turnback.snapshot.parts import PartsWriter, read_parts, state_directory, write_parts
from turnback.snapshot.table import StateTable
from turnback.storage.local import LocalStorage
from turnback.storage.open import MemoryStorage
from turnback.values.typeinfo import Types

SCHEMA = state_schema()
TABLE = StateTable(SCHEMA)


@pytest.fixture
def storage(request):
    return MemoryStorage(request.node.name)


def typed(groups, values=None):
    return pa.table(
        [
            pa.array(groups, pa.int32()),
            pa.array([f"k{i}" for i in range(len(groups))]),
            pa.array(list(range(len(groups))) if values is None else values, pa.int64()),
        ],
        schema=TABLE.arrow_schema,
    )


def written(storage, tables, schema=SCHEMA, **options):
    writer = PartsWriter(storage, schema, **options)
    for table in tables:
        writer.add(table)
    return writer.finish()


def read(storage, parts, first=0, last=1 << 15):
    return [row for table in read_parts(storage, parts, first, last) for row in table.to_pylist()]


def test_a_part_is_below_the_state_and_says_what_it_is(storage):
    schema = state_schema(uid="a/../b", name="x y")
    (part,) = written(storage, [typed([2, 2, 5])], schema)
    assert re.fullmatch(r"state/a%2F\.\.%2Fb/x%20y/[0-9a-f]{32}\.parquet", part.path)
    assert state_directory(schema) == "state/a%2F..%2Fb/x%20y"
    assert storage.list() == [part.path]
    assert (part.rows, part.first_group, part.last_group) == (3, 2, 5)
    assert part.length == len(storage.get(part.path))
    assert read(storage, [part]) == typed([2, 2, 5]).to_pylist()


def test_names_are_never_used_twice(storage):
    first = write_parts(storage, SCHEMA, [typed([1])])
    second = write_parts(storage, SCHEMA, [typed([1])])
    assert first[0].path != second[0].path
    assert re.fullmatch(r"state/op/state/[0-9a-f]{32}\.parquet", first[0].path)


@pytest.mark.parametrize("tables", [[], [typed([])], [typed([]), typed([])]])
def test_a_state_without_rows_has_no_files(storage, tables):
    assert write_parts(storage, SCHEMA, tables) == ()
    assert storage.list() == []
    assert read(storage, ()) == []


def test_small_tables_are_joined_and_large_ones_cut(storage, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 8)
    tables = [typed([1]), typed([]), typed([1, 1]), typed([2] * 21), typed([3])]
    (part,) = write_parts(storage, SCHEMA, tables)
    file = pq.ParquetFile(io.BytesIO(storage.get(part.path)))
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sum(sizes) == 25 == part.rows
    assert max(sizes) <= 8
    assert len(sizes) <= 6
    assert read(storage, [part]) == [row for table in tables for row in table.to_pylist()]


def test_row_groups_are_bounded_in_bytes_too(storage, monkeypatch):
    monkeypatch.setattr(module, "GROUP_BYTES", 1000)
    schema = state_schema(value=Types.BYTES())
    n = 6
    rows = rows_table([0] * n, [b"\xa1k"] * n, [None] * n, [b"\xc5\x02\x58" + b"x" * 600] * n)
    (part,) = write_parts(storage, schema, [StateTable(schema).to_typed(rows)])
    assert pq.ParquetFile(io.BytesIO(storage.get(part.path))).num_row_groups == n


def test_parts_are_bounded_and_written_before_the_rest_is_asked_for(storage, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 10)
    there = []

    def tables():
        for group in range(5):
            there.append(len(storage.list()))
            yield typed([group] * 10)

    parts = written(storage, tables(), part_bytes=1)
    assert [(p.first_group, p.last_group, p.rows) for p in parts] == [(g, g, 10) for g in range(5)]
    assert there == [0, 0, 1, 2, 3]
    assert len(read(storage, parts)) == 50


def test_only_what_overlaps_is_read(storage, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 4)
    parts = written(storage, [typed([g] * 4) for g in range(6)], part_bytes=1)
    storage.delete(parts[0].path)
    storage.put(parts[5].path, b"rubbish")
    assert [row["key_group"] for row in read(storage, parts, 1, 4)] == [1] * 4 + [2] * 4 + [
        3
    ] * 4 + [4] * 4
    assert read(storage, parts, 6, 9) == []


def test_row_groups_that_do_not_overlap_are_not_opened(storage, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 4)
    (part,) = write_parts(storage, SCHEMA, [typed([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 5, 5])])
    opened = []
    inner = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda f, i: opened.append(i) or inner(f, i)
    )
    groups = [row["key_group"] for row in read(storage, [part], 1, 1)]
    total = len(pq.ParquetFile(io.BytesIO(storage.get(part.path))).metadata.to_dict()["row_groups"])
    assert groups == [1, 1]
    assert 1 <= len(opened) < total


@pytest.mark.parametrize("known", [True, False])
def test_unsorted_tables_lose_nothing(storage, monkeypatch, known):
    if not known:
        writer = pq.ParquetWriter
        monkeypatch.setattr(
            pq,
            "ParquetWriter",
            lambda *args, **kw: writer(*args, **(kw | {"write_statistics": False})),
        )
    groups = [9, 1, 5, 1, 9, 3]
    (part,) = write_parts(storage, SCHEMA, [typed(groups)])
    assert (part.first_group, part.last_group) == (1, 9)
    assert [row["key_group"] for row in read(storage, [part], 1, 3)] == [1, 1, 3]


def test_damage_is_found_before_anything_is_given_out(storage):
    (part,) = write_parts(storage, SCHEMA, [typed([1, 2])])
    data = storage.get(part.path)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for broken in (data[:-1], data + b"\0", b"", bytes(flipped)):
        storage.put(part.path, broken)
        with pytest.raises(CorruptFileError, match=re.escape(part.path)):
            next(read_parts(storage, [part], 0, 9))
    storage.delete(part.path)
    with pytest.raises(NotFoundError, match=re.escape(part.path)):
        next(read_parts(storage, [part], 0, 9))


def test_a_file_that_is_no_state_is_refused_whatever_its_digest(storage):
    (good,) = write_parts(storage, SCHEMA, [typed([1, 2])])
    other = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2]}), other)
    for data, rows in ((b"PAR1 rubbish PAR1", 2), (other.getvalue(), 2)):
        storage.put(good.path, data)
        part = msgspec.structs.replace(
            good, length=len(data), digest=module.digest(data), rows=rows
        )
        with pytest.raises(CorruptFileError, match=re.escape(part.path)):
            list(read_parts(storage, [part], 0, 9))
    (good,) = write_parts(storage, SCHEMA, [typed([1, 2])])
    with pytest.raises(CorruptFileError, match="3 rows"):
        list(read_parts(storage, [msgspec.structs.replace(good, rows=3)], 0, 9))


def test_the_directory_of_a_state_is_a_dataset(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 2)
    storage = LocalStorage(tmp_path)
    written(storage, [typed([1, 1]), typed([2, 2])], part_bytes=1)
    frame = pd.read_parquet(tmp_path / state_directory(SCHEMA))
    assert sorted(frame["key_group"]) == [1, 1, 2, 2]
    assert frame.columns.tolist() == ["key_group", "key", "value"]


# -- lists


LIST = state_schema("list")


def elements(rows, schema=LIST):
    """Typed rows of elements: key group, key, when it was added, value."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return pa.table(columns, schema=StateTable(schema).arrow_schema)


def file_rows(storage, parts):
    """What others see who read the files."""
    return [
        row for part in parts for row in pq.read_table(BytesIO(storage.get(part.path))).to_pylist()
    ]


LATER = 1 << 32
ELEMENTS = [
    (1, "b", 7 * LATER, 30), (1, "a", 5 * LATER + 1, 11), (1, "b", 2 * LATER, 20),
    (1, "a", 5 * LATER, 10), (2, "c", 0, 40), (4, "d", 9 * LATER, 51), (4, "d", LATER, 50),
]  # fmt: skip


@pytest.mark.parametrize("sizes", [[7], [1] * 7, [2, 3, 2], [4, 0, 3], [5, 1, 1]])
def test_files_number_the_elements_of_lists_from_0(storage, sizes):
    rest = list(ELEMENTS)
    tables = [elements([rest.pop(0) for _ in range(size)]) for size in sizes]
    parts = written(storage, tables, LIST)
    found = file_rows(storage, parts)
    assert list(found[0]) == ["key_group", "key", "position", "added", "value"]
    assert {(row["key"], row["position"], row["value"]) for row in found} == {
        ("a", 0, 10), ("a", 1, 11), ("b", 0, 20), ("b", 1, 30), ("c", 0, 40),
        ("d", 0, 50), ("d", 1, 51),
    }  # fmt: skip
    # and Turnback reads what the list sorts by
    assert sorted(map(tuple, (row.values() for row in read(storage, parts)))) == sorted(ELEMENTS)
    assert list(read(storage, parts)[0]) == ["key_group", "key", "position", "value"]


def test_a_file_of_an_older_version_has_only_what_a_list_sorts_by(storage):
    table = elements(ELEMENTS)
    part = module._Part("state/old.parquet", table.schema)
    part.add(table)
    parts = [part.store(storage)]
    assert sorted(map(tuple, (row.values() for row in read(storage, parts)))) == sorted(ELEMENTS)


def test_elements_of_keys_of_several_columns_are_numbered(storage):
    schema = state_schema("list", keys=(Types.STRING(), Types.LONG()))
    rows = [(0, {"f0": "a", "f1": n % 2}, n * LATER, n) for n in (5, 4, 3, 2, 1)]
    parts = written(storage, [elements(rows, schema)], schema)
    found = {(row["key"]["f1"], row["position"]): row["value"] for row in file_rows(storage, parts)}
    assert found == {(1, 0): 1, (1, 1): 3, (1, 2): 5, (0, 0): 2, (0, 1): 4}
