"""Declared aggregates on columns, against what plain Python makes of the same values."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Context, Decimal
from statistics import mean, stdev, variance
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnback import Types, count, max_of, mean_of, min_of, sum_of
from turnback.errors import ElementTypeError, PlanError
from turnback.functions import (
    Aggregate,
    Groups,
    count_of,
    first_of,
    last_of,
    list_of,
    stddev_of,
    variance_of,
)
from turnback.values.typeinfo import DecimalTypeInfo, TypeInfo

LONGS = st.none() | st.integers(-(10**6), 10**6)
DOUBLES = st.none() | st.floats(-1e6, 1e6, allow_subnormal=False)
TEXTS = st.none() | st.text(max_size=3)


def aggregated(
    aggregate: Aggregate, cuts: list[list[tuple[int, Any]]], *types: TypeInfo
) -> list[Any]:
    """The results of three groups, combined part by part and merged one part after the other."""
    accumulator, output = aggregate.types(*types)
    merged = pa.nulls(3, accumulator.arrow())
    for rows in cuts:
        index = np.array([group for group, _ in rows], np.int64)
        values = [row[1] if len(types) > 1 else (row[1],) for row in rows]
        columns = [
            pa.array([value[i] for value in values], type_.arrow()) for i, type_ in enumerate(types)
        ]
        present, positions = np.unique(index, return_inverse=True)
        combined = aggregate.combine(Groups(positions, len(present)), *columns)
        both = pa.concat_arrays([merged, combined.cast(accumulator.arrow())])
        valid = np.asarray(both.is_valid())
        groups = Groups(np.concatenate([np.arange(3), present])[valid], 3)
        merged = aggregate.merge(groups, both.drop_null()).cast(accumulator.arrow())
    result = aggregate.result(merged)
    assert result.type == output.arrow()
    return result.to_pylist()


def cuts(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[int, Any]]]]:
    row = st.tuples(st.integers(0, 2), values)
    return st.lists(st.lists(row, min_size=1, max_size=8), max_size=4)


def by_group(cut: list[list[tuple[int, Any]]]) -> list[list[Any]]:
    return [[value for rows in cut for at, value in rows if at == g] for g in range(3)]


def present(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


@given(cut=cuts(LONGS))
def test_whole_numbers(cut: list[list[tuple[int, Any]]]) -> None:
    groups = by_group(cut)
    expected: list[tuple[Aggregate, list[Any]]] = [
        (count_of("v"), [len(present(g)) if g else None for g in groups]),
        (sum_of("v"), [sum(present(g)) if present(g) else None for g in groups]),
        (min_of("v"), [min(present(g), default=None) for g in groups]),
        (max_of("v"), [max(present(g), default=None) for g in groups]),
        (list_of("v"), [present(g) for g in groups] if cut else [None] * 3),
    ]
    for aggregate, wanted in expected:
        assert aggregated(aggregate, cut, Types.LONG()) == wanted
    sizes = [len(g) or None for g in groups]
    assert aggregated(count(), [[(g, None) for g, _ in rows] for rows in cut]) == sizes


@given(cut=cuts(DOUBLES))
def test_moments_do_not_depend_on_where_elements_are_cut(
    cut: list[list[tuple[int, Any]]],
) -> None:
    groups = [present(g) for g in by_group(cut)]
    expected: list[tuple[Aggregate, Any, int]] = [
        (mean_of("v"), mean, 1),
        (variance_of("v"), variance, 2),
        (stddev_of("v"), stdev, 2),
    ]
    for aggregate, function, least in expected:
        results = aggregated(aggregate, cut, Types.DOUBLE())
        for values, result in zip(groups, results, strict=True):
            if len(values) < least:
                assert result is None
            else:
                assert result == pytest.approx(function(values), rel=1e-6, abs=1e-6)


@given(cut=cuts(st.tuples(TEXTS, LONGS)))
def test_first_and_last_by_another_column(cut: list[list[tuple[int, Any]]]) -> None:
    types = (Types.STRING(), Types.LONG())
    for aggregate, pick in ((first_of("v", by="t"), min), (last_of("v", by="t"), max)):
        results = aggregated(aggregate, cut, *types)
        for rows, result in zip(by_group(cut), results, strict=True):
            known = [(text, at) for text, at in rows if at is not None]
            at = pick((at for _, at in known), default=None)
            assert result in [text for text, when in known if when == at] or (
                not known and not result
            )


@given(cut=cuts(TEXTS))
def test_text_has_an_order(cut: list[list[tuple[int, Any]]]) -> None:
    groups = [present(g) for g in by_group(cut)]
    least = [min(g, key=str.encode, default=None) for g in groups]
    greatest = [max(g, key=str.encode, default=None) for g in groups]
    assert aggregated(min_of("v"), cut, Types.STRING()) == least
    assert aggregated(max_of("v"), cut, Types.STRING()) == greatest


@pytest.mark.parametrize(
    ("type_", "low", "high"),
    [
        (Types.BOOLEAN(), False, True),
        (Types.BYTE(), -1, 7),
        (Types.DOUBLE(), -1.5, math.inf),
        (Types.SQL_DATE(), date(1969, 1, 1), date(2026, 1, 1)),
        (Types.SQL_TIMESTAMP(), datetime(1969, 1, 1), datetime(2026, 1, 1)),
        (DecimalTypeInfo(5, 2), Decimal("-1.50"), Decimal("2.25")),
    ],
    ids=str,
)
def test_values_of_any_ordered_type(type_: TypeInfo, low: Any, high: Any) -> None:
    cut = [[(0, high), (0, None)], [(0, low), (1, low)], [(1, high)]]
    assert aggregated(min_of("v"), cut, type_) == [low, low, None]
    assert aggregated(max_of("v"), cut, type_) == [high, high, None]


def test_not_a_number_is_the_greatest() -> None:
    cut = [[(0, math.nan), (0, 1.0)], [(0, math.inf), (1, math.nan)]]
    assert aggregated(min_of("v"), cut, Types.DOUBLE())[0] == 1.0
    assert str(aggregated(max_of("v"), cut, Types.DOUBLE())) == "[nan, nan, None]"


@pytest.mark.parametrize(
    ("type_", "value", "total"),
    [
        (Types.BYTE(), 100, 300),
        (Types.FLOAT(), 0.5, 1.5),
        (DecimalTypeInfo(4, 2), Decimal("99.99"), Decimal("299.97")),
    ],
    ids=str,
)
def test_sums_are_wider_than_their_columns(type_: TypeInfo, value: Any, total: Any) -> None:
    assert aggregated(sum_of("v"), [[(0, value), (0, value)], [(0, value)]], type_)[0] == total


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("cut", [[[(0, 1), (0, 1)]], [[(0, 1)], [(0, 1)]]], ids=["one", "two"])
def test_a_sum_that_does_not_fit_is_refused(cut: list[Any], sign: int) -> None:
    large = [[(group, sign * (2**63 - 1)) for group, _ in rows] for rows in cut]
    with pytest.raises(ElementTypeError, match=r"sum of column 'v' does not fit in bigint.*double"):
        aggregated(sum_of("v"), large, Types.LONG())


LARGE_LONGS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-1000, 1000)
LARGE_DECIMALS = st.none() | st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-1000, 1000)


@given(st.lists(st.tuples(st.integers(0, 2), LARGE_LONGS), max_size=12))
def test_sums_of_whole_numbers_are_exact_or_refused(rows: list[tuple[int, Any]]) -> None:
    expected = [sum(present(values)) if present(values) else None for values in by_group([rows])]
    if all(total is None or -(2**63) <= total < 2**63 for total in expected):
        assert aggregated(sum_of("v"), [rows], Types.LONG()) == expected
    else:
        with pytest.raises(ElementTypeError, match="does not fit in bigint"):
            aggregated(sum_of("v"), [rows], Types.LONG())


@given(st.lists(st.tuples(st.integers(0, 2), LARGE_DECIMALS), max_size=12), st.integers(0, 38))
def test_sums_of_decimals_are_exact_or_refused(rows: list[tuple[int, Any]], scale: int) -> None:
    context, type_ = Context(prec=76), DecimalTypeInfo(38, scale)
    units = by_group([rows])
    expected = [sum(present(values)) if present(values) else None for values in units]
    decimals = [
        (group, None if value is None else Decimal(value).scaleb(-scale, context))
        for group, value in rows
    ]
    if all(total is None or abs(total) < 10**38 for total in expected):
        totals = aggregated(sum_of("v"), [decimals], type_)
        found = [None if t is None else int(t.scaleb(scale, context)) for t in totals]
        assert found == expected
    else:
        with pytest.raises(ElementTypeError, match=rf"does not fit in decimal\(38,{scale}\)"):
            aggregated(sum_of("v"), [decimals], type_)


def test_a_sum_that_is_the_greatest_number() -> None:
    cut = [[(0, 2**63 - 1), (1, -(2**63))]]
    assert aggregated(sum_of("v"), cut, Types.LONG()) == [2**63 - 1, -(2**63), None]


@pytest.mark.parametrize("aggregate", [variance_of("v"), stddev_of("v")])
@pytest.mark.filterwarnings("error")
def test_moments_of_infinite_numbers(aggregate: Aggregate) -> None:
    """Of one number there is no variance, whatever it is; of several it is not a number."""
    cut = [[(0, math.inf), (1, math.inf), (2, math.nan)], [(1, 1.0)]]
    assert str(aggregated(aggregate, cut, Types.DOUBLE())) == "[None, nan, None]"


@pytest.mark.parametrize(
    ("aggregate", "types", "problem"),
    [
        (sum_of("v"), (Types.STRING(),), "does not contain numbers"),
        (mean_of("v"), (Types.SQL_DATE(),), "does not contain numbers"),
        (min_of("v"), (Types.LIST(Types.LONG()),), "no order"),
        (last_of("v", by="t"), (Types.LONG(), Types.LIST(Types.LONG())), "by='t'.*no order"),
    ],
)
def test_columns_that_cannot_be_aggregated(
    aggregate: Aggregate, types: tuple[TypeInfo, ...], problem: str
) -> None:
    with pytest.raises(PlanError, match=problem):
        aggregate.types(*types)
