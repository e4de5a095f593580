"""State as columns: what may be written, what comes back, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from state_support import FakeJob
from turnback.errors import StateError
from turnback.functions.descriptors import ListStateDescriptor, ValueStateDescriptor
from turnback.state.backend import KeyedStateBackend
from turnback.state.stores import HashMapStore
from turnback.values.hints import as_type
from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import Types
from turnback.worker.keys import DistinctKeys
from turnback.worker.runners import BatchState

KEYS = ["a", "b", "c"]
CATEGORIES = pa.DictionaryArray.from_arrays([1, 0, None], pa.array(["", "é"], pa.string_view()))
STATS = "n bigint, mean double"
MAPS = pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int32()))


@pytest.fixture
def backend(tmp_path):
    made = KeyedStateBackend("op", KeyCodec((Types.STRING(),), by_columns=True), 16)
    store = HashMapStore(tmp_path / "store")
    made.begin(store, 1)
    yield made
    store.close()


@pytest.fixture
def columns():
    return BatchState("op", DistinctKeys(KEYS, pa.array(KEYS), np.arange(3)))


def named(parameter):
    return parameter if isinstance(parameter, str) else type(parameter).__name__


class Stream:
    """As Polars does it: columns behind Arrow's C interface, and nothing else known of them."""

    def __init__(self, column):
        self.column = column

    def __arrow_c_stream__(self, requested_schema=None):
        return self.column.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3]),
        pa.array([1, None, 3], pa.int8()),
        pa.array([1.0, None, 3.0]),
        pa.chunked_array([[1], [None, 3]]),
        pa.array([1, None, 3]).dictionary_encode(),
        [1, None, 3],
        (1, None, np.int32(3)),
        np.array([1, None, 3], object),
        pd.Series([1, None, 3]),
        pd.Series([1, None, 3], dtype="Int64"),
        Stream(pa.chunked_array([[1, None, 3]])),
    ],
    ids=lambda v: f"{type(v).__name__} {getattr(v, 'dtype', getattr(v, 'type', ''))}",
)
def test_numbers_may_come_in_many_forms(backend, columns, values):
    state = backend.register(ValueStateDescriptor("n", int))
    columns.write(state, [7, 8, 9])
    columns.write(state, values)
    assert columns.read(state).equals(pa.array([1, None, 3], pa.int64()))
    backend.key = "c"
    assert state.value() == 3 and type(state.value()) is int


COLUMNS = {"n": [1, 2, 3], "mean": [0.5, 1.5, 2.5]}


@pytest.mark.parametrize(
    "values",
    [
        COLUMNS,
        {"mean": np.array(COLUMNS["mean"]), "n": np.array(COLUMNS["n"], np.int16)},
        pa.table(COLUMNS),
        pa.record_batch(COLUMNS).select(["mean", "n"]),
        pa.record_batch(COLUMNS).to_struct_array(),
        pa.chunked_array(pa.table(COLUMNS).to_struct_array()),
        pd.DataFrame(COLUMNS),
        Stream(pa.table(COLUMNS)),
        list(zip(*COLUMNS.values(), strict=True)),
        [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)],
    ],
    ids=lambda v: type(v).__name__,
)
def test_rows_may_come_in_many_forms(backend, columns, values):
    state = backend.register(ValueStateDescriptor("stats", STATS))
    columns.write(state, values)
    read = columns.read(state)
    assert read.type == as_type(STATS).arrow()
    assert read.field("n").to_pylist() == [1, 2, 3]
    backend.key = "b"
    assert state.value() == (2, 1.5) and state.value().mean == 1.5


def test_rows_that_are_null_and_rows_of_nulls(backend, columns):
    state = backend.register(ValueStateDescriptor("stats", STATS))
    rows = pa.array([{"n": 1, "mean": 2.0}, None, {"n": None, "mean": None}])
    columns.write(state, rows)
    assert columns.read(state).to_pylist() == rows.to_pylist()
    assert columns.read(state).field("n").null_count == 2
    columns.write(state, pa.nulls(3))
    assert columns.read(state).null_count == 3


def test_nothing_is_there_before_something_is_written(backend, columns):
    stats = backend.register(ValueStateDescriptor("stats", STATS))
    assert columns.read(stats).to_pylist() == [None, None, None]
    assert columns.read(stats).field("n").to_pylist() == [None, None, None]


@pytest.mark.parametrize(
    "where",
    [
        np.array([True, False, True]),
        pa.array([True, False, True]),
        [True, False, True],
        pd.Series([True, False, True]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_only_some_keys_are_written(backend, columns, where):
    state = backend.register(ValueStateDescriptor("n", int))
    columns.write(state, [1, 2, 3])
    columns.write(state, [10, 20, None], where=where)
    assert columns.read(state).to_pylist() == [10, 2, None]
    columns.write(state, [0, 0, 0], where=[False] * 3)
    assert columns.read(state).to_pylist() == [10, 2, None]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", pa.array(["é", "", None], pa.large_string())),
        ("string", pa.array(["é", "", None], pa.string_view())),
        ("string", pd.Series(["é", "", None])),
        ("string", pd.Series(["é", "", None], dtype="category")),
        ("string", CATEGORIES),
        ("binary", pa.array([b"a", b"", None], pa.large_binary())),
        ("boolean", np.array([True, False, True])),
        ("float", np.array([0.1, np.inf, 3e38])),
        ("double", np.array([np.nan, -0.0, np.inf])),
        ("decimal(10,2)", [Decimal("1.5"), None, 3]),
        ("date", np.array(["2024-02-29", "1969-01-01", "NaT"], "M8[D]")),
        ("date", [date(2024, 2, 29), None, date(1, 1, 1)]),
        ("timestamp_ntz", np.array(["2024-02-29T01", "1969-01-01T00", "NaT"], "M8[us]")),
        ("timestamp", pd.Series(pd.to_datetime(["2024-02-29"] * 3, utc=True))),
        ("timestamp", [datetime(2024, 1, 1, tzinfo=UTC), None, None]),
        ("array<bigint>", pa.array([[1, None], [], None])),
        ("array<struct<a: int>>", pa.array([[{"a": 1}, None], [], None])),
        ("map<string, bigint>", MAPS),
        ("decimal(38,0)", pa.array([1, -1, 2**62])),
        ("struct<a: struct<b: int>>", pa.array([{"a": {"b": 1}}, {"a": None}, None])),
    ],
    ids=named,
)
def test_every_type_comes_back_in_this_epoch_and_in_the_next(tmp_path, columns, kind, values):
    job = FakeJob("hashmap", tmp_path, [ValueStateDescriptor("s", as_type(kind))])
    job.one("a", lambda h: columns.write(h["s"], values))
    given = values if values is CATEGORIES else pa.array(values, as_type(kind).arrow())
    expected = given.to_pylist()
    for wrote_before in (False, True):
        if wrote_before:
            job.one("a", lambda h: columns.write(h["s"], columns.read(h["s"])))
        read = job.one("a", lambda h: columns.read(h["s"]))
        assert read.type == as_type(kind).arrow()
        assert repr(read.to_pylist()) == repr(expected)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("bigint", [1, 2], "got 2 values for 3 keys; return one for each key"),
        ("bigint", np.zeros(4), "got 4 values for 3 keys"),
        ("bigint", np.zeros((3, 3)), "1-dimensional"),
        ("bigint", 5, "expected a column, got 5"),
        ("bigint", None, "expected a column, got None"),
        ("string", "abc", "expected a column, got 'abc'"),
        ("bigint", {3, 4, 5}, "expected a column, got {3, 4, 5}"),
        ("bigint", {"n": [1, 2, 3]}, "expected a column, got {'n'"),
        ("bigint", ["x", "y", "z"], "'x' of class str does not match"),
        ("bigint", pa.array(["1", "2", "3"]), "got a column of string, expected int64"),
        ("bigint", np.array([True, False, True]), "got a column of bool, expected int64"),
        ("bigint", np.array([0.5, 1.0, 2.0]), "truncated"),
        ("int", np.array([0, 0, 2**31]), "not in range"),
        ("float", np.array([0, 0, 1e39]), "too large for 32 bits"),
        ("string", pa.array([1, 2, 3]), "got a column of int64, expected string"),
        ("array<bigint>", pa.array([1, 2, 3]), "got a column of int64, expected list"),
        ("array<bigint>", pa.array([["1"], [], None]), "got a column of list<.*string"),
        ("array<struct<a: int>>", pa.array([[{"b": 1}]] * 3), "got a column of list<.*struct"),
        (
            "map<string, bigint>",
            MAPS.cast(pa.map_(pa.string(), pa.string())),
            "got a column of map",
        ),
        ("double", pa.array([Decimal(1)] * 3), "got a column of decimal128"),
        ("decimal(10,2)", np.array([0.1, 0.2, 0.3]), "got a column of double"),
        ("date", np.zeros(3, "M8[us]"), "got a column of timestamp"),
        ("timestamp", np.zeros(3, "M8[us]"), r"expected timestamp\[us, tz=UTC\]"),
        ("timestamp_ntz", np.zeros(3, "M8[ns]") + 1, "would lose data"),
        (STATS, [1, 2, 3], "expected a row, a tuple or a dict"),
        (STATS, pa.array([1, 2, 3]), "got a column of int64, expected struct"),
        (STATS, {"n": [1, 2, 3]}, r"got the fields \['n'\], expected \['n', 'mean'\]"),
        (STATS, {"n": [1], "mean": [1.0, 2.0]}, r"different lengths: \{'n': 1, 'mean': 2\}"),
        (STATS, {"n": ["x"] * 3, "mean": [1.0] * 3}, "field 'n': 'x' of class str"),
        (STATS, {"n": pa.array(["x"] * 3), "mean": [1.0] * 3}, "field 'n': got a column of string"),
    ],
    ids=named,
)
def test_values_that_do_not_fit_name_operator_state_and_type(
    backend, columns, kind, values, message
):
    state = backend.register(ValueStateDescriptor("s", as_type(kind)))
    with pytest.raises(StateError, match=rf"(?s)state 's' of operator 'op': .*{message}"):
        columns.write(state, values)
    assert columns.read(state).null_count == 3  # nothing of it was written


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([True], "got 1 truth values for 3 keys"),
        ([1, 0, 1], "one truth value per key"),
        (pa.array([True, None, False]), "one truth value per key"),
        ("abc", "one truth value per key"),
    ],
    ids=named,
)
def test_a_choice_of_keys_that_is_none(backend, columns, where, message):
    state = backend.register(ValueStateDescriptor("s", int))
    with pytest.raises(StateError, match=rf"'s' of operator 'op': .*{message}"):
        columns.write(state, [1, 2, 3], where=where)


@pytest.mark.parametrize("given", [ValueStateDescriptor("s", int), "s", None])
def test_what_is_no_state_at_all(columns, given):
    with pytest.raises(StateError, match="operator 'op': process_batch reads and writes value"):
        columns.read(given)


def test_list_state_has_no_column(backend, columns):
    state = backend.register(ListStateDescriptor("s", int))
    with pytest.raises(StateError, match="'op': process_batch reads and writes value, reducing"):
        columns.write(state, [1, 2, 3])


@pytest.mark.parametrize(
    "kind",
    [
        Types.PICKLED_BYTE_ARRAY(),
        Types.LIST(Types.PICKLED_BYTE_ARRAY()),
        Types.MAP(Types.STRING(), Types.PICKLED_BYTE_ARRAY()),
        Types.ROW_NAMED(["a"], [Types.PICKLED_BYTE_ARRAY()]),
    ],
    ids=named,
)
def test_pickled_objects_have_no_column(backend, columns, kind):
    state = backend.register(ValueStateDescriptor("s", kind))
    with pytest.raises(StateError, match="state 's' of operator 'op': pickled objects have no"):
        columns.read(state)


def test_a_number_too_large_for_a_column(backend, columns):
    state = backend.register(ValueStateDescriptor("s", Types.BIG_INT()))
    backend.key = "a"
    state.update(10**40)
    with pytest.raises(StateError, match=r"'s' of operator 'op': .*at most 38 digits"):
        columns.read(state)
