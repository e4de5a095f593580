"""Types and values of them, for hypothesis."""

from datetime import UTC, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from turnback.types.factory import Types
from turnback.types.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

KEY_TYPES = [
    Types.STRING(),
    Types.BYTES(),
    Types.BOOLEAN(),
    Types.BYTE(),
    Types.SHORT(),
    Types.INT(),
    Types.LONG(),
    Types.BIG_INT(),
    Types.SQL_DATE(),
    Types.SQL_TIME(),
    Types.SQL_TIMESTAMP(),
    Types.INSTANT(),
    Types.BIG_DEC(10, 3),
    Types.BIG_DEC(),
]
SCALARS = [*KEY_TYPES, Types.FLOAT(), Types.DOUBLE()]
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_ZONES = [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=11))]
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": _TEXT,
    "bytes": st.binary(max_size=20),
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "big_int": st.integers(-(10**38) + 1, 10**38 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "date": st.dates(),
    "time": st.times(),
    "timestamp": st.datetimes(),
    "instant": st.datetimes(timezones=st.sampled_from(_ZONES)).filter(
        lambda d: 2 < d.year < 9998  # in UTC it must be in range too
    ),
}
_NAMES = st.one_of(st.sampled_from(["count", "index", "as_dict", "a b", "class", "_fields"]), _TEXT)


def row_types(inner: st.SearchStrategy[TypeInfo]) -> st.SearchStrategy[TypeInfo]:
    names = st.lists(_NAMES.filter(bool), min_size=1, max_size=4, unique=True)
    return names.flatmap(
        lambda n: st.tuples(*[inner] * len(n)).map(lambda t: RowTypeInfo(tuple(n), t))
    )


def types() -> st.SearchStrategy[TypeInfo]:
    return st.recursive(
        st.sampled_from(SCALARS),
        lambda inner: st.one_of(
            inner.map(ListTypeInfo),
            st.builds(MapTypeInfo, st.sampled_from(KEY_TYPES), inner),
            row_types(inner),
        ),
        max_leaves=6,
    )


def key_types() -> st.SearchStrategy[TypeInfo]:
    return st.recursive(st.sampled_from(KEY_TYPES), row_types, max_leaves=4)


def values(type_: TypeInfo, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Return values of the type; None too, but not as the key of a map."""
    result = _values(type_, nullable)
    return st.none() | result if nullable else result


def _values(type_: TypeInfo, nullable: bool) -> st.SearchStrategy[Any]:
    if isinstance(type_, BasicTypeInfo):
        return _VALUES[type_.name]
    if isinstance(type_, DecimalTypeInfo):
        top, places = 10**type_.precision - 1, -type_.scale
        return st.integers(-top, top).map(
            lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), places))
        )
    if isinstance(type_, ListTypeInfo):
        return st.lists(values(type_.element, nullable), max_size=4)
    if isinstance(type_, MapTypeInfo):
        return st.dictionaries(values(type_.key, False), values(type_.value, nullable), max_size=3)
    assert isinstance(type_, RowTypeInfo)
    return st.tuples(*[values(t, nullable) for t in type_.types])


def typed_values(count: int = 1) -> st.SearchStrategy[tuple[TypeInfo, list[Any]]]:
    return types().flatmap(
        lambda t: st.tuples(st.just(t), st.lists(values(t), min_size=count, max_size=8))
    )
