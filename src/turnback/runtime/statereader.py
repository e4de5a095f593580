"""Reads a state of a snapshot in tasks, each some key groups of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from turnback.core.types import type_from_descriptor
from turnback.runtime.snapshot import StoredRows
from turnback.runtime.spans import Span, spans_of
from turnback.savepoint import ROWS, StateTable, reorder

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
