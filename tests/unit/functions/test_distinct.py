"""Estimated numbers of distinct values: near the truth, and the same however they are cut."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnback import Types
from turnback.errors import PlanError
from turnback.functions import Groups, approx_distinct_of
from turnback.values.typeinfo import DecimalTypeInfo, TypeInfo

DISTINCT = approx_distinct_of("v")


def combined(values: pa.Array, groups: int = 1) -> pa.Array:
    return DISTINCT.combine(Groups(np.arange(len(values)) % groups, groups), values)


@pytest.mark.parametrize(
    "size", [0, 1, 2, 10, 400, 600, 5_000, 100_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
)
def test_it_is_near_the_truth(size: int) -> None:
    (estimate,) = DISTINCT.result(combined(pa.array(np.arange(size)))).to_pylist()
    assert estimate == pytest.approx(size, rel=0.05, abs=0.5)


@pytest.mark.slow
def test_it_has_no_bias() -> None:
    """The mean of many estimates is much nearer to the truth than one of them."""
    for size in (3_000, 12_000, 60_000):
        estimates = [
            DISTINCT.result(combined(pa.array(np.arange(size) + 10**9 * i)))[0].as_py()
            for i in range(30)
        ]
        assert np.mean(estimates) == pytest.approx(size, rel=0.012)


@settings(max_examples=40)
@given(data=st.data())
def test_how_values_are_cut_does_not_matter(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 3_000), max_size=40)) * 3
    values += list(range(data.draw(st.integers(0, 2_000))))
    whole = combined(pa.array(values, pa.int64()))
    at = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    parts = [values[a:b] for a, b in zip([0, *at], [*at, len(values)], strict=True)]
    sketches = pa.concat_arrays([combined(pa.array(part, pa.int64())) for part in reversed(parts)])
    merged = DISTINCT.merge(Groups(np.zeros(len(parts), np.int64), 1), sketches)
    assert merged == whole
    assert len(whole[0].as_py()) <= 4096


def test_groups_are_counted_apart() -> None:
    values = pa.array([*range(3_000), *range(10)])
    index = np.array([0] * 3_000 + [2] * 10)
    sketches = DISTINCT.combine(Groups(index, 4), values)
    small = DISTINCT.merge(Groups(np.array([1, 0, 1, 0]), 2), sketches)
    assert DISTINCT.result(small).to_pylist() == [0, pytest.approx(3_000, rel=0.05)]
    many, none, few, nothing = DISTINCT.result(sketches).to_pylist()
    assert (many, none, few, nothing) == (pytest.approx(3_000, rel=0.05), 0, 10, 0)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (Types.STRING(), ["a", "b", None, "a"]),
        (Types.BYTES(), [b"\xff", b"", None, b""]),
        (Types.BOOLEAN(), [True, False, None]),
        (Types.DOUBLE(), [0.0, -0.0, 1.5]),
        (Types.FLOAT(), [0.5, 1.5, 0.5]),
        (Types.SQL_DATE(), [date(2026, 1, 1), date(2026, 1, 2), None]),
        (DecimalTypeInfo(5, 2), [Decimal("1.50"), Decimal("2.00"), None]),
    ],
    ids=str,
)
def test_values_of_any_type(type_: TypeInfo, values: list[Any]) -> None:
    DISTINCT.types(type_)
    assert DISTINCT.result(combined(pa.array(values, type_.arrow()))).to_pylist() == [2]


def test_the_sketch_is_the_same_in_every_version() -> None:
    """It is in savepoints: a value that was counted must be found again."""
    sketch = combined(pa.array(["a", "b"]))[0].as_py()
    assert sketch.hex() == SKETCH


SKETCH = "01750500026c0e00"


@pytest.mark.parametrize("type_", [Types.LIST(Types.LONG()), Types.PICKLED_BYTE_ARRAY()], ids=str)
def test_types_that_cannot_be_counted(type_: TypeInfo) -> None:
    with pytest.raises(PlanError, match=r"cannot count distinct values of type"):
        DISTINCT.types(type_)
