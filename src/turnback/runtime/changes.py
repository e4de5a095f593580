"""What differs between two snapshots of a state, as bytes and as typed columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.core.types import type_from_descriptor
from turnback.runtime.statereader import Batches
from turnback.savepoint import ROWS, StateTable
from turnback.state import StateSchema
from turnback.state.schema import SINGLE_KINDS

_NIL = pa.scalar(b"\xc0", pa.binary())


class Change(StrEnum):
    """What became of a row between two snapshots."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


def incomparable(old: StateSchema, new: StateSchema) -> str | None:
    """Say why the rows of two states cannot be compared; None if they can.

    How key groups are computed does not matter, nor do kinds that are stored alike.
    """
    for what, was, now in (
        ("kind of state", _shape(old), _shape(new)),
        ("key type", old.key["types"], new.key["types"]),
        ("map key type", old.sub, new.sub),
        ("value type", old.value, new.value),
    ):
        if was != now:
            return f"its {what} was {_told(was)} and is {_told(now)}"
    return None


def _shape(schema: StateSchema) -> str:
    return "value" if schema.kind in SINGLE_KINDS else schema.kind


def _told(what: object) -> str:
    if isinstance(what, list):
        return ", ".join(map(_told, what))
    return str(what if what in ("value", "list", "map", None) else type_from_descriptor(what))


@dataclass(frozen=True)
class ChangeDecoder:
    """Gives the columns of changes their types.

    Takes batches of key, sub, change, old and new, where what is not there is null.

    Attributes:
        state: What the state is.
    """

    state: StateSchema

    @property
    def schema(self) -> pa.Schema:
        """What it gives."""
        columns = StateTable(self.state).arrow_schema
        value = columns.field("value").type
        return pa.schema(
            [
                *[columns.field(i) for i in range(1, len(columns) - 1)],
                pa.field("change", pa.string(), nullable=False),
                pa.field("old", value),
                pa.field("new", value),
            ]
        )

    def __call__(self, batches: Batches) -> Batches:
        """Decode."""
        codec, schema = StateTable(self.state), self.schema
        for batch in batches:
            old = codec.to_typed(_rows(batch, "old"))
            new = codec.to_typed(_rows(batch, "new"))
            names = schema.names[:-3]
            columns = [old[name] for name in names]
            columns += [batch.column("change").cast(pa.string()), old["value"], new["value"]]
            yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _rows(batch: pa.RecordBatch, value: str) -> pa.Table:
    """Rows as a state has them; what is not there stands as None."""
    columns = [pa.array(np.zeros(batch.num_rows, np.int32))]
    columns += [batch.column(name).cast(pa.binary()) for name in ("key", "sub", value)]
    columns[-1] = pc.fill_null(columns[-1], _NIL)
    return pa.Table.from_arrays(columns, schema=ROWS)
