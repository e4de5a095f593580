"""A state as a table with typed columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.core.errors import IncompatibleStateError, StateError, TurnbackError
from turnback.snapshot.columns import ColumnCodec
from turnback.state.backend import sub_codec
from turnback.state.delta import BATCH_BYTES, BATCH_ROWS, COLUMNS, bounded_tables
from turnback.state.expiring import update_times, with_times, without_times
from turnback.state.schema import KINDS, LIST_KINDS, MAP_KINDS, WAITING, WINDOWED, StateSchema
from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import TypeInfo, Types, type_from_descriptor

ROWS = pa.schema([field for field in COLUMNS if field.name != "state"])
"""The columns of rows: group, key, sub, value."""

_UPDATED = pa.field("updated_at", pa.timestamp("us", "UTC"), nullable=False)
_POSITION = np.dtype([("epoch", ">u8"), ("index", ">u4")])
_MAX_EPOCH = (1 << 31) - 1
_CONVERSION_ERRORS = (TurnbackError, msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError)

Translate = Callable[[pa.Array], Any]


class StateTable:
    """One state, as rows of bytes or as a table with typed columns.

    Rows have the columns `ROWS`, and are all live: no value is null, and sub is null exactly for
    states with one value per key. Typed tables have the columns of `arrow_schema`: ``key_group``,
    ``key`` (a struct of f0, f1 and so on for keys of several columns), ``position`` for lists,
    ``map_key`` for maps, ``time`` for what waits, the bounds and so on for what belongs to windows,
    ``value``, which is null where None is stored, and ``updated_at`` for states with a time to
    live.

    Rows to typed and back gives the same bytes, except that decimals in values come back with all
    the places of their type. A list position is ``epoch << 32 | number within the epoch``: what
    the list sorts by, so elements added later come last only in epochs after those stored.

    Raises:
        IncompatibleStateError: This version knows no such state.
    """

    def __init__(self, schema: StateSchema) -> None:
        self.schema = schema
        if schema.kind not in KINDS:
            raise self._unusable(f"its kind {schema.kind!r} is none of {', '.join(KINDS)}")
        try:
            types = schema.key.codec().types
            sub = type_from_descriptor(schema.sub) if schema.kind in MAP_KINDS else None
            value = type_from_descriptor(schema.value)
        except (TurnbackError, TypeError, KeyError) as error:
            raise self._unusable(f"its types cannot be used: {error}") from error
        whole = types[0] if len(types) == 1 else Types.TUPLE(types)
        self._key = ColumnCodec(whole, required=True)
        self._value = ColumnCodec(value)
        self._sub = _sub_columns(schema.kind, sub)
        fields = [
            pa.field("key_group", pa.int32(), nullable=False),
            pa.field("key", self._key.arrow, nullable=False),
            *([] if self._sub is None else self._sub.fields),
            pa.field("value", self._value.arrow),
            *([] if schema.ttl is None else [_UPDATED]),
        ]
        self.arrow_schema = pa.schema(fields)

    def to_typed(self, rows: pa.Table) -> pa.Table:
        """Return rows as a typed table, in the same order."""
        return self._translated(rows, self._typed_columns, self.arrow_schema)

    def to_rows(self, typed: pa.Table) -> pa.Table:
        """Return a typed table as rows, in the same order."""
        expected = {field.name: field.type for field in self.arrow_schema}
        actual = dict(zip(typed.schema.names, typed.schema.types, strict=True))
        if actual != expected or len(typed.schema.names) != len(expected):
            raise self._unusable(
                f"expected the columns {_column_text(expected)}, found {_column_text(actual)}"
            )
        return self._translated(typed, self._row_columns, ROWS)

    def key_bytes(self, typed: pa.Table) -> pa.Array:
        """Return the keys of a typed table as bytes."""
        return self._column("key", self._key.encode, typed["key"].combine_chunks())

    def _translated(
        self, table: pa.Table, translate: Callable[[dict[str, pa.Array]], list[Any]], to: pa.Schema
    ) -> pa.Table:
        batches = []
        for some in bounded_tables(table, BATCH_ROWS, BATCH_BYTES):
            columns = {name: some[name].combine_chunks() for name in some.schema.names}
            batches.append(pa.record_batch(translate(columns), schema=to))
        return pa.Table.from_batches(batches, schema=to)

    def _typed_columns(self, rows: dict[str, pa.Array]) -> list[pa.Array]:
        columns = [rows["group"], self._column("key", self._key.decode, rows["key"])]
        if self._sub is not None:
            decoded = self._column(self._sub.name, self._sub.decode, rows["sub"])
            columns += decoded.flatten() if self._sub.is_struct else [decoded]
        values = rows["value"]
        times = list[pa.Array]()
        if self.schema.ttl is not None:
            times = [self._column(_UPDATED.name, _to_updated, values)]
            values = self._column("value", without_times, values)
        return [*columns, self._column("value", self._value.decode, values), *times]

    def _row_columns(self, typed: dict[str, pa.Array]) -> list[pa.Array]:
        groups = typed["key_group"]
        if groups.null_count or (len(groups) and pc.min(groups).as_py() < 0):
            raise self._wrong("key_group", "every row needs its key group, which is 0 or more")
        subs = pa.nulls(len(groups), pa.binary())
        if self._sub is not None:
            columns = [typed[f.name] for f in self._sub.fields]
            fields = self._sub.fields
            joined = columns[0]
            if self._sub.is_struct:
                joined = pa.StructArray.from_arrays(columns, fields=fields)
            subs = self._column(self._sub.name, self._sub.encode, joined)
        values = self._column("value", self._value.encode, typed["value"])
        if self.schema.ttl is not None:
            times = self._column(_UPDATED.name, _from_updated, typed[_UPDATED.name])
            values = with_times(values, times)
        return [groups, self._column("key", self._key.encode, typed["key"]), subs, values]

    def _column(self, name: str, translate: Translate, column: pa.Array) -> Any:
        try:
            return translate(column)
        except _CONVERSION_ERRORS as error:
            raise self._wrong(name, str(error)) from error

    def _wrong(self, column: str, what: str) -> StateError:
        return StateError(
            f"state {self.schema.name!r} of operator {self.schema.uid!r}, column {column}: {what}"
        )

    def _unusable(self, what: str) -> IncompatibleStateError:
        return IncompatibleStateError(
            f"state {self.schema.name!r} of operator {self.schema.uid!r} cannot be read: {what}. "
            "Use the version of Turnback that wrote it, or a newer one"
        )


class _SubColumns(NamedTuple):
    """What tells the rows of a key apart: a column, or one for every field of a struct."""

    fields: list[pa.Field]
    decode: Translate
    encode: Translate
    is_struct: bool = False

    @property
    def name(self) -> str:
        return ", ".join(field.name for field in self.fields)


def _sub_columns(kind: str, type_: TypeInfo | None) -> _SubColumns | None:
    if kind in LIST_KINDS:
        field = pa.field("position", pa.int64(), nullable=False)
        return _SubColumns([field], _to_positions, _from_positions)
    if type_ is None:
        return None
    required = isinstance(sub_codec(type_), KeyCodec)
    codec = ColumnCodec(type_, required=required)
    if kind == WINDOWED:
        return _SubColumns(list(codec.arrow), codec.decode, codec.encode, is_struct=True)
    name = "time" if kind == WAITING else "map_key"
    field = pa.field(name, codec.arrow, nullable=not required)
    return _SubColumns([field], codec.decode, codec.encode)


def _to_positions(subs: pa.Array) -> pa.Array:
    lengths = pc.min_max(pc.binary_length(subs))
    if subs.null_count or {lengths["min"].as_py(), lengths["max"].as_py()} - {12, None}:
        raise ValueError("a list position has to have 12 bytes")
    fixed = subs.cast(pa.binary(12))
    stored = np.frombuffer(fixed.buffers()[1] or b"", _POSITION)
    stored = stored[fixed.offset : fixed.offset + len(fixed)]
    epochs = stored["epoch"].astype(np.uint64)
    if len(epochs) and int(epochs.max()) > _MAX_EPOCH:
        raise ValueError(f"the epoch {int(epochs.max())} in a list position is too large")
    return pa.array(epochs.astype(np.int64) << 32 | stored["index"].astype(np.int64))


def _from_positions(positions: pa.Array) -> pa.Array:
    if positions.null_count:
        raise ValueError("every element of a list needs a position")
    numbers = positions.to_numpy()
    if len(numbers) and int(numbers.min()) < 0:
        raise ValueError(f"the list position {int(numbers.min())} is negative")
    stored = np.empty(len(numbers), _POSITION)
    stored["epoch"], stored["index"] = numbers >> 32, numbers & 0xFFFFFFFF
    size = len(numbers)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(12), size, [None, pa.py_buffer(stored.tobytes())]
    )
    return fixed.cast(pa.binary())


def _to_updated(values: pa.Array) -> pa.Array:
    return pa.array(update_times(values) * 1000).view(_UPDATED.type)


def _from_updated(times: pa.Array) -> Any:
    if times.null_count:
        raise ValueError("every row of a state with a time to live needs its last update")
    return times.view(pa.int64()).to_numpy() // 1000


def _column_text(columns: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns.items()) or "nothing"
