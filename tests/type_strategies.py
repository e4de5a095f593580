"""Types and values of them, for hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from turnback.values.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    Types,
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
Values = st.SearchStrategy[Any]
TypeInfos = st.SearchStrategy[TypeInfo]

_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_ZONES = [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=11))]
_VALUES: dict[str, Values] = {
    "string": _TEXT,
    "bytes": st.binary(max_size=20),
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "date": st.dates(),
    "time": st.times(),
    "timestamp": st.datetimes(),
}
_NAMES = ["count", "index", "as_dict", "a b", "a.b", "class", "key", "element", "_fields"]


@dataclass(frozen=True)
class TypeStrategies:
    """Types, and values of them.

    Attributes:
        scalars: The types that have no parts.
        map_keys: The types that keys of maps have.
        basic: The values of each basic type, by its name.
    """

    scalars: list[TypeInfo]
    map_keys: TypeInfos
    basic: dict[str, Values]

    def types(self) -> TypeInfos:
        return st.recursive(
            st.sampled_from(self.scalars),
            lambda inner: st.one_of(
                inner.map(ListTypeInfo),
                st.builds(MapTypeInfo, self.map_keys, inner),
                row_types(inner),
            ),
            max_leaves=6,
        )

    def key_types(self) -> TypeInfos:
        return st.recursive(st.sampled_from(KEY_TYPES), row_types, max_leaves=4)

    def values(self, type_: TypeInfo, nullable: bool = True) -> Values:
        """Return values of the type; None too, but not as the key of a map."""
        result = self._values(type_, nullable)
        return st.none() | result if nullable else result

    def typed_values(self, count: int = 1) -> st.SearchStrategy[tuple[TypeInfo, list[Any]]]:
        return self.types().flatmap(
            lambda t: st.tuples(st.just(t), st.lists(self.values(t), min_size=count, max_size=8))
        )

    def _values(self, type_: TypeInfo, nullable: bool) -> Values:
        if isinstance(type_, BasicTypeInfo):
            return self.basic[type_.name]
        if isinstance(type_, DecimalTypeInfo):
            top, places = 10**type_.precision - 1, -type_.scale
            return st.integers(-top, top).map(
                lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), places))
            )
        if isinstance(type_, ListTypeInfo):
            return st.lists(self.values(type_.element, nullable), max_size=4)
        if isinstance(type_, MapTypeInfo):
            items = self.values(type_.value, nullable)
            return st.dictionaries(self.values(type_.key, False), items, max_size=3)
        assert isinstance(type_, RowTypeInfo)
        return st.tuples(*[self.values(t, nullable) for t in type_.types])


def row_types(inner: TypeInfos) -> TypeInfos:
    names = st.one_of(st.sampled_from(_NAMES), _TEXT).filter(bool)
    return st.lists(names, min_size=1, max_size=4, unique=True).flatmap(
        lambda n: st.tuples(*[inner] * len(n)).map(lambda t: RowTypeInfo(tuple(n), t))
    )


ELEMENTS = TypeStrategies(
    SCALARS,
    st.sampled_from(KEY_TYPES),
    _VALUES
    | {
        "big_int": st.integers(-(10**38) + 1, 10**38 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "instant": st.datetimes(timezones=st.sampled_from(_ZONES)).filter(
            lambda d: 2 < d.year < 9998  # in UTC it must be in range too
        ),
    },
)
"""Elements of streams: what columns hold, and what equals itself."""

_STORED = [*SCALARS, Types.PICKLED_BYTE_ARRAY()]
STORED = TypeStrategies(
    _STORED,
    st.sampled_from(_STORED) | row_types(st.sampled_from(_STORED)),
    _VALUES
    | {
        "big_int": st.integers() | st.integers(-(2**200), 2**200),
        "float": st.floats(width=32),
        "double": st.floats(),
        "instant": st.datetimes(timezones=st.just(UTC)),
        "pickled": st.integers() | _TEXT | st.tuples(_TEXT),
    },
)
"""Values of states, of every type there is."""
