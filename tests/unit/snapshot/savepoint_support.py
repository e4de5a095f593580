"""Types with every value they can hold, states made of them, and a savepoint."""

from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from turnback.checkpoint.manifest import LogFile, OperatorInfo, SourcePosition
from turnback.config.savepoints import SavepointFormat
from turnback.snapshot.metadata import Origin, SavedState, SavepointMetadata, StatePart
from turnback.snapshot.table import ROWS
from turnback.state.backend import sub_codec
from turnback.state.files import StateFile
from turnback.state.schema import KeySchema, StateSchema
from turnback.types.factory import Types
from turnback.types.keys import KeyCodec
from turnback.types.serializer import Serializer
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
SCALARS = [*KEY_TYPES, Types.FLOAT(), Types.DOUBLE(), Types.PICKLED_BYTE_ARRAY()]
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": _TEXT,
    "bytes": st.binary(max_size=20),
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "big_int": st.integers() | st.integers(-(2**200), 2**200),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date": st.dates(),
    "time": st.times(),
    "timestamp": st.datetimes(),
    "instant": st.datetimes(timezones=st.just(UTC)),
    "pickled": st.integers() | _TEXT | st.tuples(_TEXT),
}
_NAMES = st.one_of(st.sampled_from(["count", "a.b", "a b", "class", "key", "element"]), _TEXT)


def row_types(inner: st.SearchStrategy[TypeInfo]) -> st.SearchStrategy[TypeInfo]:
    names = st.lists(_NAMES.filter(bool), min_size=1, max_size=3, unique=True)
    return names.flatmap(
        lambda n: st.tuples(*[inner] * len(n)).map(lambda t: RowTypeInfo(tuple(n), t))
    )


def types() -> st.SearchStrategy[TypeInfo]:
    scalars = st.sampled_from(SCALARS)
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            inner.map(ListTypeInfo),
            st.builds(MapTypeInfo, scalars | row_types(scalars), inner),
            row_types(inner),
        ),
        max_leaves=6,
    )


def key_types() -> st.SearchStrategy[TypeInfo]:
    return st.recursive(st.sampled_from(KEY_TYPES), row_types, max_leaves=4)


def values(type_: TypeInfo, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Return values of the type; None too, but not in the key of a map."""
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


def state_schema(
    kind: str = "value",
    value: TypeInfo | None = None,
    keys: tuple[TypeInfo, ...] | None = None,
    sub: TypeInfo | None = None,
    uid: str = "op",
    name: str = "state",
) -> StateSchema:
    return StateSchema(
        uid=uid,
        name=name,
        kind=kind,
        key=KeySchema(tuple(t.describe() for t in keys or (Types.STRING(),)), True),
        value=(value or Types.LONG()).describe(),
        sub=None if sub is None else sub.describe(),
    )


def rows_table(groups: list[int], keys: list[bytes], subs: list[Any], data: list[Any]) -> pa.Table:
    arrays = [
        pa.array(groups, pa.int32()),
        *(pa.array(column, pa.binary()) for column in (keys, subs, data)),
    ]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def stored(type_: TypeInfo, held: list[Any]) -> pa.Table:
    """Rows of a value state with a text key each, encoded as the state itself would do it."""
    encode = Serializer(type_).encode
    key = KeyCodec((Types.STRING(),), by_columns=True).encode
    n = len(held)
    return rows_table([7] * n, [key(str(i)) for i in range(n)], [None] * n, list(map(encode, held)))


def encoded_subs(type_: TypeInfo, held: list[Any]) -> list[bytes]:
    return list(map(sub_codec(type_).encode, held))


PART = StatePart("state/op/state/u1.parquet", 100, "xxh3:" + "0" * 32, 7, 0, 63)
NATIVE = StateFile("files/u3.arrow", 50, "xxh3:" + "2" * 32, 9, 1, 4, 0, 127, ("op",), True)
LOG = LogFile("3", "sources/u2", 20, "xxh3:" + "1" * 32)
METADATA = SavepointMetadata(
    id="0f3c",
    turnback_version="0.1.0",
    type=SavepointFormat.CANONICAL,
    job="likes",
    job_id="j1",
    attempt=2,
    checkpoint=17,
    epoch=170,
    created_ms=1_700_000_000_000,
    trigger="user",
    label="before the migration",
    note='naïve \u2028 ☃ "quoted" \\ text\n',
    max_parallelism=128,
    sources={"src": SourcePosition('{"a": 1}', (LOG,)), "new": SourcePosition(None)},
    operators=(OperatorInfo("op", "count", "process", 2),),
    states=(
        SavedState(state_schema(), 7, (PART,)),
        SavedState(state_schema("list", name="seen"), 0),
    ),
    watermarks={"op": -5},
    origin=Origin("file:///old", id="0a", job="likes", checkpoint=3),
)
