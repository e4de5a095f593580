from __future__ import annotations

import math
import pickle
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from savepoint_support import (
    encoded_subs,
    key_types,
    rows_table,
    state_schema,
    stored,
    types,
    values,
)

from turnback.errors import IncompatibleStateError, StateError
from turnback.snapshot import table as module
from turnback.snapshot.parts import read_parts, write_parts
from turnback.snapshot.table import ROWS, ColumnCodec, StateTable
from turnback.state.schema import KeySchema, StateSchema
from turnback.storage.open import MemoryStorage
from turnback.values.keys import KeyCodec
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import ListTypeInfo, MapTypeInfo, Types

NUMBERS = count()
PICKLED = Types.PICKLED_BYTE_ARRAY()


def through_parquet(schema, typed):
    storage = MemoryStorage(f"table-{next(NUMBERS)}")
    parts = write_parts(storage, schema, [typed])
    tables = list(read_parts(storage, parts, 0, 1 << 15))
    return pa.concat_tables(tables) if tables else typed.schema.empty_table()


def round_trip(schema, rows):
    table = StateTable(schema)
    typed = table.to_typed(rows)
    assert typed.schema.equals(table.arrow_schema)
    typed.validate(full=True)
    assert table.to_rows(typed).equals(rows)
    assert table.to_rows(through_parquet(schema, typed)).equals(rows)
    return typed


# -- every type, exactly


@given(types().flatmap(lambda t: st.tuples(st.just(t), st.lists(values(t), max_size=6))))
def test_values_of_every_type_come_back_to_the_byte(case):
    type_, held = case
    round_trip(state_schema(value=type_), stored(type_, held))


@given(
    st.lists(key_types(), min_size=1, max_size=3).flatmap(
        lambda ts: st.tuples(
            st.just(tuple(ts)), st.lists(st.tuples(*[values(t, False) for t in ts]), max_size=5)
        )
    )
)
def test_keys_come_back_to_the_byte(case):
    key_parts, held = case
    encode = KeyCodec(key_parts, by_columns=True).encode
    keys = [encode(key if len(key_parts) > 1 else key[0]) for key in held]
    n = len(keys)
    round_trip(state_schema(keys=key_parts), rows_table([0] * n, keys, [None] * n, [b"\x01"] * n))


@given(types().flatmap(lambda t: st.tuples(st.just(t), st.lists(values(t, False), max_size=5))))
def test_map_keys_come_back_to_the_byte(case):
    type_, held = case
    subs = encoded_subs(type_, held)
    n = len(subs)
    round_trip(
        state_schema("map", sub=type_), rows_table([0] * n, [b"\xa1k"] * n, subs, [b"\1"] * n)
    )


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1)), max_size=8))
def test_list_positions_come_back_and_sort_as_the_list_does(held):
    subs = sorted(struct.pack(">QI", epoch, index) for epoch, index in held)
    n = len(subs)
    rows = rows_table([3] * n, [b"\xa1k"] * n, subs, [b"\x01"] * n)
    positions = round_trip(state_schema("list"), rows)["position"].to_pylist()
    assert positions == sorted(positions)


def test_the_columns_are_typed():
    key = (Types.STRING(), Types.INSTANT())
    typed = StateTable(state_schema("map", Types.DOUBLE(), key, Types.BIG_INT())).arrow_schema
    assert typed == pa.schema(
        [
            pa.field("key_group", pa.int32(), nullable=False),
            pa.field(
                "key",
                pa.struct([("f0", pa.string()), ("f1", pa.timestamp("us", "UTC"))]),
                nullable=False,
            ),
            pa.field("map_key", pa.string(), nullable=False),
            pa.field("value", pa.float64()),
        ]
    )
    listed = StateTable(state_schema("list", Types.SQL_TIME())).arrow_schema
    assert listed.field("position").type == pa.int64()
    assert listed.field("value").type == pa.string()
    assert StateTable(state_schema("reducing")).arrow_schema.names == ["key_group", "key", "value"]


@pytest.mark.parametrize(
    ("type_", "held"),
    [
        (Types.SQL_DATE(), [date.min, date.max]),
        (Types.SQL_TIME(), [time.min, time.max, time(1, 2, 3, 4)]),
        (Types.SQL_TIMESTAMP(), [datetime.min, datetime.max]),
        (
            Types.INSTANT(),
            [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
        ),
        (Types.BIG_INT(), [0, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**38]),
        (Types.BIG_INT(), [3**40_000, -(7**30_000), 10**4299, -(10**4300)]),
        (Types.DOUBLE(), [math.nan, -math.nan, -0.0, 0.0, math.inf, -math.inf, 5e-324]),
        (Types.FLOAT(), [math.nan, -0.0, math.inf, 3.4028234663852886e38]),
        (Types.STRING(), ["", "\0", "é", "e\u0301", "x" * 100_000]),
        (Types.BIG_DEC(38, 38), [Decimal("-0." + "9" * 38), Decimal("0E-38")]),
        (MapTypeInfo(Types.DOUBLE(), Types.LONG()), [{math.nan: 1, float("nan"): 2, -0.0: 3}]),
        (ListTypeInfo(Types.TUPLE([Types.LONG()])), [[None, (None,), (1,)], [], None]),
    ],
)
def test_extremes(type_, held):
    typed = round_trip(state_schema(value=type_), stored(type_, [*held, None]))
    assert typed["value"].null_count == 1 + held.count(None)


def test_a_time_is_text_because_spark_reads_no_other():
    held = [time(1, 2, 3), time(1, 2, 3, 40)]
    typed = StateTable(state_schema(value=Types.SQL_TIME())).to_typed(
        stored(Types.SQL_TIME(), held)
    )
    assert typed["value"].to_pylist() == ["01:02:03", "01:02:03.000040"]


def test_an_integer_is_text_a_person_can_read():
    typed = StateTable(state_schema(value=Types.BIG_INT())).to_typed(
        stored(Types.BIG_INT(), [10**50, -5])
    )
    assert typed["value"].to_pylist() == ["1" + "0" * 50, "-5"]


@pytest.mark.parametrize("text", ["1.5", "1500E-3", "1.5" + "0" * 60])
def test_a_decimal_comes_back_with_the_places_of_its_type(text):
    type_ = Types.BIG_DEC(10, 3)
    table = StateTable(state_schema(value=type_))
    back = table.to_rows(table.to_typed(stored(type_, [Decimal(text)])))
    assert str(Serializer(type_).decode(back["value"][0].as_py())) == "1.500"


# -- pickles


class Bomb:
    exploded = False

    def __reduce__(self):
        return setattr, (Bomb, "exploded", True)


@pytest.mark.parametrize(
    ("type_", "held"),
    [
        (PICKLED, Bomb()),
        (ListTypeInfo(PICKLED), [Bomb(), None]),
        (Types.TUPLE([Types.LONG(), PICKLED]), (1, Bomb())),
        (MapTypeInfo(Types.STRING(), PICKLED), {"a": Bomb()}),
        (MapTypeInfo(PICKLED, Types.LONG()), {Bomb(): 1}),
        (MapTypeInfo(Types.TUPLE([PICKLED]), Types.LONG()), {(Bomb(),): 1}),
    ],
)
def test_pickles_are_never_opened(type_, held):
    Bomb.exploded = False
    rows = stored(type_, [held])
    round_trip(state_schema(value=type_), rows)
    assert not Bomb.exploded
    Serializer(type_).decode(rows["value"][0].as_py())
    assert Bomb.exploded, "the pickle was harmless, and the test shows nothing"


def test_a_pickled_map_key_is_its_pickle():
    Bomb.exploded = False
    subs = encoded_subs(PICKLED, [Bomb(), None])
    rows = rows_table([0, 0], [b"\xa1k"] * 2, subs, [b"\1", b"\2"])
    typed = round_trip(state_schema("map", sub=PICKLED), rows)
    assert typed["map_key"].to_pylist() == [pickle.dumps(Bomb(), protocol=5), None]
    assert not Bomb.exploded


def test_a_pickle_is_its_own_bytes_in_the_column():
    type_ = Types.TUPLE([Types.LONG(), PICKLED])
    typed = StateTable(state_schema(value=type_)).to_typed(stored(type_, [(1, {"x"})]))
    assert typed["value"][0].as_py() == {"f0": 1, "f1": pickle.dumps({"x"}, protocol=5)}


# -- shapes


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_empty_tables(kind):
    sub = Types.STRING() if kind == "map" else None
    typed = round_trip(state_schema(kind, sub=sub), ROWS.empty_table())
    assert typed.num_rows == 0


def test_slices_chunks_and_wide_columns_are_read(monkeypatch):
    monkeypatch.setattr(module, "BATCH_ROWS", 3)
    type_ = Types.STRING()
    rows = stored(type_, [f"v{i}" for i in range(20)])
    chunked = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 4), rows.slice(11)])
    wide = pa.schema([("group", pa.int32()), *((n, pa.large_binary()) for n in ROWS.names[1:])])
    table = StateTable(state_schema(value=type_))
    for form in (rows, chunked, chunked.cast(wide)):
        typed = table.to_typed(form.slice(5))
        assert typed["value"].to_pylist() == [f"v{i}" for i in range(5, 20)]
        assert table.to_rows(typed.slice(2, 9)).equals(rows.slice(7, 9))


@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary()])
@given(
    types().flatmap(lambda t: st.tuples(st.just(t), st.lists(values(t), min_size=4, max_size=6)))
)
def test_a_slice_of_a_column_is_read_as_such(binary, case):
    type_, held = case
    codec = ColumnCodec(type_)
    data = stored(type_, held)["value"].combine_chunks().cast(binary)
    part = codec.decode(data.slice(1, 2))
    assert codec.encode(part).cast(binary).equals(data.slice(1, 2))
    assert codec.encode(codec.decode(data).slice(1, 2)).cast(binary).equals(data.slice(1, 2))


def test_large_values_are_not_joined_into_one_column(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    rows = stored(Types.BYTES(), [b"x" * 600] * 5)
    typed = round_trip(state_schema(value=Types.BYTES()), rows)
    assert typed["value"].num_chunks == 5


# -- what does not fit


def misfit(column, schema, **columns):
    table = StateTable(schema)
    given_columns = {"key_group": [0], "key": ["k"], "value": [1]} | columns
    typed = pa.table(
        [
            value
            if isinstance(value := given_columns[f.name], pa.Array)
            else pa.array(value, f.type)
            for f in table.arrow_schema
        ],
        names=table.arrow_schema.names,
    )
    with pytest.raises(StateError, match=rf"state 'state' of operator 'op', column {column}: "):
        table.to_rows(typed)


def test_typed_values_that_cannot_be_stored_are_refused():
    misfit("key", state_schema(), key=[None])
    misfit("key_group", state_schema(), key_group=[-1])
    misfit("key_group", state_schema(), key_group=[None])
    tuple_keys = state_schema(keys=(Types.STRING(), Types.LONG()))
    misfit("key", tuple_keys, key=[{"f0": "a", "f1": None}])
    misfit("position", state_schema("list"), position=[-1])
    misfit("position", state_schema("list"), position=[None])
    misfit("map_key", state_schema("map", sub=Types.STRING()), map_key=[None])
    for text in ("1.0", "1_0", " 1", "", "-0", "NaN", "x" * 5000, "01"):
        misfit("value", state_schema(value=Types.BIG_INT()), value=[text])
    far = pa.array([2**31 - 1], pa.int32())
    misfit("value", state_schema(value=Types.SQL_DATE()), value=far.view(pa.date32()))
    late = pa.array([2**62])
    for text in ("24:00:00", "1:00:00", "01:00", "01:00:00.0", "01:00:00.000000", "01:00:00Z", ""):
        misfit("value", state_schema(value=Types.SQL_TIME()), value=[text])
    misfit("value", state_schema(value=Types.SQL_TIMESTAMP()), value=late.view(pa.timestamp("us")))
    instants = late.view(pa.timestamp("us", "UTC"))
    misfit("value", state_schema(value=Types.INSTANT()), value=instants)
    broken = pa.array([b"\xff\xfe"]).view(pa.string())
    misfit("value", state_schema(value=Types.STRING()), value=broken)
    type_ = MapTypeInfo(Types.STRING(), Types.LONG())
    misfit("value", state_schema(value=type_), value=[[("a", 1), ("a", 2)]])


def test_rows_that_are_not_of_the_type_are_refused():
    table = StateTable(state_schema("list"))
    for sub, value, column in [
        (b"short", b"\x01", "position"),
        (None, b"\x01", "position"),
        (struct.pack(">QI", 2**31, 0), b"\x01", "position"),
        (b"\0" * 12, b"\xa1x", "value"),
        (b"\0" * 12, b"\x01\x01", "value"),
        (b"\0" * 12, None, "value"),
    ]:
        with pytest.raises(StateError, match=rf"'state' of operator 'op', column {column}"):
            table.to_typed(rows_table([0], [b"\xa1k"], [sub], [value]))


def test_other_columns_are_refused_naming_both():
    table = StateTable(state_schema())
    good = table.arrow_schema.empty_table()
    for bad in (
        good.drop_columns(["value"]),
        good.append_column("more", pa.array([], pa.int32())),
        good.set_column(2, "value", pa.array([], pa.string())),
        good.append_column("value", pa.array([], pa.int64())),
    ):
        with pytest.raises(IncompatibleStateError, match=r"expected .*value int64.*, found"):
            table.to_rows(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "window"},
        {"value": "quaternion"},
        {"key": KeySchema(("double",), True)},
        {"key": KeySchema((), True)},
        {"kind": "map", "sub": None},
    ],
)
def test_a_state_of_the_future_is_refused(change):
    with pytest.raises(IncompatibleStateError, match=r"'state' of operator 'op'.*newer"):
        StateTable(replace(state_schema(), **change))


@pytest.mark.parametrize("key", [{}, None])
def test_a_state_that_does_not_say_how_it_is_keyed_cannot_be_read(key):
    stored = msgspec.to_builtins(state_schema()) | {"key": key}
    with pytest.raises(msgspec.ValidationError, match="key"):
        msgspec.json.decode(msgspec.json.encode(stored), type=StateSchema)
