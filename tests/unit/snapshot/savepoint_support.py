"""Types with every value they can hold, states made of them, and a savepoint."""

from typing import Any

import pyarrow as pa

from turnback.checkpoint.manifest import LogFile, OperatorInfo, SourcePosition
from turnback.config.checkpointing import SavepointFormat
from turnback.snapshot.metadata import Origin, SavedState, SavepointMetadata, StatePart
from turnback.snapshot.table import ROWS
from turnback.state.backend import sub_codec
from turnback.state.files import StateFile
from turnback.state.schema import KeySchema, StateSchema
from turnback.values.keys import KeyCodec
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import (
    TypeInfo,
    Types,
)
from type_strategies import STORED

key_types, types, values = STORED.key_types, STORED.types, STORED.values


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
