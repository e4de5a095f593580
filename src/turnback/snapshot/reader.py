"""Cuts key groups into the shares of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnback.snapshot.metadata import StatePart, reorder
from turnback.snapshot.snapshot import StoredRows
from turnback.snapshot.table import ROWS, StateTable
from turnback.state.files import StateFile
from turnback.state.schema import SINGLE_KINDS, StateSchema
from turnback.types.typeinfo import type_from_descriptor

Span = tuple[int, int]
"""First and last key group."""

READS = 16
"""A file is read by about this many tasks at most: each has to read all of its bytes."""


def spans(groups: int, pieces: int) -> list[Span]:
    """Cut all key groups into about as many ranges of about one size."""
    pieces = max(1, min(pieces, groups))
    bounds = [groups * i // pieces for i in range(pieces + 1)]
    return [(a, b - 1) for a, b in pairwise(bounds)]


def spans_of(
    groups: int, files: Sequence[StateFile | StatePart], rows: int, size: int
) -> list[Span]:
    """Cut all key groups into ranges that hold about so many rows and bytes of some files."""
    widest = max((file.last_group - file.first_group + 1 for file in files), default=1)
    pieces = max(
        -(-sum(file.rows for file in files) // rows),
        -(-sum(file.length for file in files) // size),
    )
    return spans(groups, min(pieces, READS * groups // widest))


Batches = Iterator[pa.RecordBatch]

SPAN_ROWS = 500_000
SPAN_BYTES = 32 << 20
"""A task reads about as much. Less would mean that more tasks open the same file."""

ENTRIES = pa.schema([ROWS.field(name) for name in ("key", "sub", "value")])
"""What `EntryReader` gives: rows without their key group."""


def reading_spans(stored: StoredRows, max_parallelism: int) -> list[Span]:
    """Cut the key groups of a state into the shares of tasks."""
    files = [file for file in stored.files if stored.schema.uid in file.operators]
    return spans_of(max_parallelism, [*stored.parts, *files], SPAN_ROWS, SPAN_BYTES)


@dataclass(frozen=True)
class StateReader:
    """Gives the rows of a state with typed columns.

    Attributes:
        stored: The state.
        spans: The shares; tasks are given the numbers of theirs.
    """

    stored: StoredRows
    spans: tuple[Span, ...]

    @property
    def schema(self) -> pa.Schema:
        """What it gives."""
        return StateTable(self.stored.schema).arrow_schema

    def __call__(self, batches: Batches) -> Batches:
        """Read the shares whose numbers these are."""
        for first, last in _chosen(self.spans, batches):
            for table in self.stored.typed(first, last):
                yield from table.to_batches()


@dataclass(frozen=True)
class EntryReader:
    """Gives the rows of a state as bytes, the same for equal rows of any two snapshots.

    Attributes:
        stored: The state.
        spans: The shares; tasks are given the numbers of theirs.
    """

    stored: StoredRows
    spans: tuple[Span, ...]

    @property
    def schema(self) -> pa.Schema:
        """What it gives."""
        return ENTRIES

    def __call__(self, batches: Batches) -> Batches:
        """Read the shares whose numbers these are."""
        codec = StateTable(self.stored.schema)
        ordered = reorder(type_from_descriptor(self.stored.schema.value))
        for first, last in _chosen(self.spans, batches):
            for typed in self.stored.typed(first, last):
                # Typed and back again: decimals of one value then have the same bytes.
                entries = codec.to_rows(typed).select(ENTRIES.names)
                if ordered is not None:
                    values = pa.array(map(ordered, entries["value"].to_pylist()), pa.binary())
                    entries = entries.set_column(2, ENTRIES.field(2), values)
                yield from entries.to_batches()


def _chosen(spans: tuple[Span, ...], numbers: Batches) -> Iterator[Span]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield spans[number]


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
        ("key type", list(old.key.types), list(new.key.types)),
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
