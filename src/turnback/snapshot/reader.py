"""The rows of one state of a snapshot, read in tasks, each of which has a share of key groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from turnback.snapshot.metadata import StatePart
from turnback.state.files import Span, StateFile, StorageRef, read_state, share, storage_of
from turnback.state.schema import StateSchema

if TYPE_CHECKING:  # Arrow is loaded when the first state is read
    import pyarrow as pa

Batches = Iterator["pa.RecordBatch"]

READS = 16
"""A file is read by about this many tasks at most: each has to read all of its bytes."""

SPAN_ROWS = 500_000
SPAN_BYTES = 32 << 20
"""A task reads about as much. Less would mean that more tasks open the same file."""


def spans(groups: int, count: int) -> list[Span]:
    """Cut all key groups into about so many ranges of about one size."""
    count = max(1, min(count, groups))
    bounds = [groups * i // count for i in range(count + 1)]
    return [(a, b - 1) for a, b in pairwise(bounds)]


def spans_of(
    groups: int, files: Sequence[StateFile | StatePart], rows: int, size: int
) -> list[Span]:
    """Cut all key groups into ranges that hold about so many rows and bytes of some files."""
    widest = max((file.last_group - file.first_group + 1 for file in files), default=1)
    count = max(
        -(-sum(file.rows for file in files) // rows),
        -(-sum(file.length for file in files) // size),
    )
    return spans(groups, min(count, READS * groups // widest))


@dataclass(frozen=True)
class StoredRows:
    """One state of a snapshot, to be read in tasks.

    Attributes:
        schema: What it is, as it was written.
        storage: Where the snapshot's files are.
        parts: Its Parquet files, in a savepoint.
        files: The state files, among others with its rows, in a checkpoint.
    """

    schema: StateSchema
    storage: StorageRef
    parts: tuple[StatePart, ...] = ()
    files: tuple[StateFile, ...] = ()

    def held_by(self) -> list[StateFile | StatePart]:
        files = [file for file in self.files if self.schema.uid in file.operators]
        return [*self.parts, *files]

    def rows(self, first: int, last: int) -> Iterator[pa.Table]:
        """Its rows in the key groups first..last, with the columns group, key, sub and value."""
        from turnback.snapshot.table import StateTable, read_parts
        from turnback.state.merging import live_rows

        if self.parts:
            codec = StateTable(self.schema)
            for typed in read_parts(storage_of(self.storage), self.parts, first, last):
                yield codec.to_rows(typed)
        mine = share(self.files, {self.schema.uid: (first, last)})
        for schema, rows in live_rows(mine, lambda f: read_state(self.storage, f)):
            if schema.id == self.schema.id:
                yield rows

    def typed(self, first: int, last: int) -> Iterator[pa.Table]:
        from turnback.snapshot.table import StateTable, read_parts

        if self.parts:
            yield from read_parts(storage_of(self.storage), self.parts, first, last)
        else:
            codec = StateTable(self.schema)
            for rows in self.rows(first, last):
                yield codec.to_typed(rows)


def reading_spans(stored: StoredRows, max_parallelism: int) -> list[Span]:
    """Cut the key groups of a state into the shares of tasks."""
    return spans_of(max_parallelism, stored.held_by(), SPAN_ROWS, SPAN_BYTES)


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
        from turnback.snapshot.table import StateTable

        return StateTable(self.stored.schema).arrow_schema

    def read(self, first: int, last: int) -> Iterator[pa.Table]:
        return self.stored.typed(first, last)

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for table in self.read(*self.spans[number]):
                    yield from table.to_batches()
