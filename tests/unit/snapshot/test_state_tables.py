"""What tasks do to read, write and compare state as tables; Spark only brings them batches."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from fake_job import schema
from turnback.errors import CorruptFileError, StateError
from turnback.snapshot.diff import ChangeDecoder, EntryReader, incomparable
from turnback.snapshot.metadata import StatePart
from turnback.snapshot.snapshot import StateReader, StoredRows, reading_spans
from turnback.snapshot.table import StateTable
from turnback.snapshot.writer import PartCopier, RowEncoder, SpanCopier, StateWriter
from turnback.state.files import StorageRef, storage_of
from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import MapTypeInfo, Types

GROUPS = 128
LIST = schema(kind="list")


def typed(state, **columns):
    fields = StateTable(state).arrow_schema
    size = len(columns["key"])
    columns = {"key_group": [0] * size} | columns
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in fields], names=fields.names)


def encode(state, batch, last_epoch=0, grouped=False):
    batches = list(RowEncoder(state, GROUPS, grouped, last_epoch)(iter([batch])))
    return pa.Table.from_batches(batches)


def write(state, target, *batches, chunk=2):
    """Encode, sort as Spark would, and write."""
    tables = [encode(state, batch) for batch in batches]
    rows = pa.concat_tables(tables).sort_by([(c, "ascending") for c in ("group", "key", "sub")])
    records = StateWriter(state, target)(iter(rows.to_batches(max_chunksize=chunk)))
    return tuple(
        msgspec.json.decode(record, type=StatePart)
        for batch in records
        for record in batch["part"].to_pylist()
    )


def read(reader, *numbers):
    batch = pa.record_batch([pa.array(numbers, pa.int32())], names=["number"])
    return pa.Table.from_batches(list(reader(iter([batch]))), schema=reader.schema)


@pytest.fixture
def target(tmp_path):
    return StorageRef(str(tmp_path / "sp"))


def by_key(table, column="value"):
    return dict(zip(table["key"].to_pylist(), table[column].to_pylist(), strict=True))


@pytest.mark.parametrize("columns", [True, False])
def test_rows_are_written_with_the_key_group_the_engine_looks_in(target, columns):
    state = schema(columns=columns)
    keys = [f"user {i}" for i in range(50)]
    parts = write(state, target, typed(state, key=keys, value=range(50)))
    found = read(StateReader(StoredRows(state, target, parts), ((0, 63), (64, 127))), 0, 1)
    codec = KeyCodec((Types.STRING(),), by_columns=columns)
    assert by_key(found) == {k: i for i, k in enumerate(keys)}
    assert by_key(found, "key_group") == {k: codec.group(k, GROUPS) for k in keys}
    assert sum(part.rows for part in parts) == 50
    groups = found["key_group"].to_numpy()
    assert (np.diff(groups) >= 0).all()


def test_a_task_reads_its_share_only(target):
    state = schema()
    parts = write(state, target, typed(state, key=list("abcdefgh"), value=range(8)))
    reader = StateReader(StoredRows(state, target, parts), ((0, 63), (64, 127)))
    low, high = read(reader, 0), read(reader, 1)
    assert low.num_rows + high.num_rows == 8
    assert max(low["key_group"].to_pylist()) < 64 <= min(high["key_group"].to_pylist())


def test_a_group_that_spark_has_computed_is_kept():
    state = schema()
    rows = encode(state, typed(state, key=["a"], value=[1], key_group=[77]), grouped=True)
    assert rows["group"].to_pylist() == [77]


def test_keys_of_several_columns(target):
    state = schema(keys=[Types.STRING(), Types.LONG()])
    keys = [{"f0": "de", "f1": 1}, {"f0": "de", "f1": 2}]
    parts = write(state, target, typed(state, key=keys, value=[1, 2]))
    found = read(StateReader(StoredRows(state, target, parts), ((0, 127),)), 0)
    codec = KeyCodec((Types.STRING(), Types.LONG()), by_columns=True)
    wanted = [codec.group(tuple(k.values()), GROUPS) for k in keys]
    assert sorted(found["key_group"].to_pylist()) == sorted(wanted)


@pytest.mark.parametrize(
    ("state", "columns", "told"),
    [
        (schema(), {"value": [1, 2]}, "two rows for the key 'a'"),
        (schema(kind="map", sub=Types.LONG()), {"map_key": [7, 7], "value": [1, 2]},
         "two rows for the map key 7 of the key 'a'"),
        (schema(kind="list"), {"position": [3, 3], "value": [1, 2]},
         "two rows for the position 3 of the key 'a'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk", [100, 1])  # equal rows in one batch, and in two
def test_two_rows_for_one_key_are_refused(target, state, columns, told, chunk):
    others = ["b", "c", "d"]
    more = {name: [9, *values[:1], 8] for name, values in columns.items()}
    same = typed(state, key=["a", "a"], **columns)
    rest = typed(state, key=others, **more)
    with pytest.raises(StateError, match=f"state 'total' of operator 'count': there are {told}"):
        write(state, target, same, rest, chunk=chunk)


def test_equal_map_keys_of_different_keys_are_fine(target):
    state = schema(kind="map", sub=Types.LONG())
    batch = typed(state, key=["a", "a", "b"], map_key=[1, 2, 1], value=[1, None, 3])
    parts = write(state, target, batch)
    assert sum(part.rows for part in parts) == 3


@pytest.mark.parametrize(
    ("state", "columns", "told"),
    [
        (schema(), {"key": [None], "value": [1]}, "column key: null cannot be a key"),
        (schema(keys=[Types.STRING(), Types.LONG()]),
         {"key": [{"f0": "a", "f1": None}], "value": [1]}, "null cannot be a key or part"),
        (schema(), {"key": ["a"], "value": [None]}, "a value is null; to leave a key"),
        (schema(kind="map", sub=Types.STRING()), {"key": ["a"], "map_key": [None], "value": [1]},
         "column map_key: null"),
        (LIST, {"key": ["a"], "position": [None], "value": [1]}, "needs a position"),
        (LIST, {"key": ["a"], "position": [-1], "value": [1]}, "-1 is negative"),
        (LIST, {"key": ["a"], "position": [6 << 32], "value": [1]}, "epoch 6, which is after"),
        (schema(value=Types.BIG_INT()), {"key": ["a"], "value": ["12x"]}, "an integer"),
        (schema(value=Types.SQL_TIME()), {"key": ["a"], "value": ["25:00"]}, "expected HH:MM:SS"),
    ],
)  # fmt: skip
def test_what_cannot_be_state_is_refused(state, columns, told):
    with pytest.raises(StateError, match=f"state 'total' of operator 'count'.*{told}"):
        encode(state, typed(state, **columns), last_epoch=5)


def test_state_that_is_only_rewritten_is_not_judged_again():
    state = schema(kind="list")
    batch = typed(state, key=["a"], position=[6 << 32], value=[1])
    assert encode(state, batch, last_epoch=None).num_rows == 1


def test_columns_as_spark_gives_them():
    """Zones, large offsets and nested fields without nulls differ from what is stored."""
    types = [Types.INSTANT(), Types.LIST(Types.STRING())]
    state = schema(value=Types.ROW_NAMED(["at", "tags"], types))
    tags = pa.list_(pa.field("element", pa.string(), nullable=False))
    at = pa.timestamp("us", tz="Europe/Berlin")
    value = pa.struct([pa.field("at", at, nullable=False), pa.field("tags", tags)])
    batch = pa.record_batch(
        [
            pa.array([0], pa.int32()),
            pa.array(["a"], pa.large_string()),
            pa.array([{"at": 5, "tags": ["x"]}], value),
        ],
        names=["key_group", "key", "value"],
    )
    rows = encode(state, batch)
    (row,) = StateTable(state).to_typed(rows).to_pylist()
    assert (row["value"]["at"].microsecond, row["value"]["tags"]) == (5, ["x"])


def test_a_state_is_copied_under_another_name(target, tmp_path):
    state, renamed = schema(), schema(name="sum")
    parts = write(state, target, typed(state, key=list("abc"), value=range(3)))
    other = StorageRef(str(tmp_path / "other"))
    stored = StoredRows(state, target, parts)
    copies = [p for part in parts for p in PartCopier(renamed, part, target, other).run()]
    folds = SpanCopier(renamed, stored, (0, 127), other).run()
    for made in (tuple(copies), folds):
        assert all(part.path.startswith("state/count/sum/") for part in made)
        again = read(StateReader(StoredRows(renamed, other, made), ((0, 127),)), 0)
        assert by_key(again) == {"a": 0, "b": 1, "c": 2}


def test_a_damaged_file_is_not_copied(target, tmp_path):
    state = schema()
    (part,) = write(state, target, typed(state, key=["a"], value=[1]))
    data = storage_of(target).get(part.path)
    storage_of(target).put(part.path, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptFileError, match=part.path):
        PartCopier(state, part, target, StorageRef(str(tmp_path / "other"))).run()


def test_shares_follow_the_number_of_rows(target):
    part = StatePart("state/x", 1, "", 1_200_000, 0, 127)
    assert reading_spans(StoredRows(schema(), target), GROUPS) == [(0, 127)]
    assert reading_spans(StoredRows(schema(), target, (part,)), GROUPS) == [
        (0, 41),
        (42, 84),
        (85, 127),
    ]
    few = StatePart("state/x", 1, "", 1_200_000, 0, 1)
    assert reading_spans(StoredRows(schema(), target, (few,)), 2) == [(0, 0), (1, 1)]


def test_equal_rows_have_equal_bytes(target):
    types = [Types.BIG_DEC(10, 3), MapTypeInfo(Types.STRING(), Types.LONG())]
    state = schema(value=Types.ROW_NAMED(["d", "m"], types))
    a = typed(state, key=["a"], value=[{"d": Decimal("1.5"), "m": [("x", 1), ("y", 2)]}])
    b = typed(state, key=["a"], value=[{"d": Decimal("1.5"), "m": [("y", 2), ("x", 1)]}])
    c = typed(state, key=["a"], value=[{"d": Decimal("1.5"), "m": [("y", 1), ("x", 2)]}])
    found = []
    for batch in (a, b, c):
        parts = write(state, target, batch)
        found.append(read(EntryReader(StoredRows(state, target, parts), ((0, 127),)), 0))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_changes_get_their_types(target):
    state = schema(kind="map", value=Types.BIG_DEC(6, 2), sub=Types.LONG())
    batch = typed(state, key=["a"] * 2, map_key=[1, 2], value=[Decimal("1.50"), Decimal("2.50")])
    rows = encode(state, batch)
    (one, two) = rows["value"].to_pylist()
    changes = pa.record_batch(
        [
            rows["key"].combine_chunks(),
            rows["sub"].combine_chunks(),
            pa.array(["added", "changed"]),
            pa.array([None, one], pa.binary()),
            pa.array([one, two], pa.binary()),
        ],
        names=["key", "sub", "change", "old", "new"],
    )
    decoder = ChangeDecoder(state)
    found = pa.Table.from_batches(list(decoder(iter([changes]))), schema=decoder.schema)
    assert found.to_pylist() == [
        {"key": "a", "map_key": 1, "change": "added", "old": None, "new": Decimal("1.50")},
        {"key": "a", "map_key": 2, "change": "changed", "old": Decimal("1.50"),
         "new": Decimal("2.50")},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (schema(), None),
        (schema(columns=False), None),
        (schema(kind="reducing"), None),
        (schema(kind="list"), "its kind of state was value and is now list"),
        (schema(value=Types.STRING()), "its value type was bigint and is now string"),
        (schema(keys=[Types.LONG(), Types.STRING()]),
         "its key type was string and is now bigint, string"),
    ],
)  # fmt: skip
def test_what_can_be_compared(other, told):
    assert incomparable(schema(), other) == told


def test_maps_with_other_keys_cannot_be_compared():
    maps = schema(kind="map", sub=Types.LONG()), schema(kind="map", sub=Types.STRING())
    assert incomparable(*maps) == "its map key type was bigint and is now string"
