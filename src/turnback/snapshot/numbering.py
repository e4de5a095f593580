"""The places of elements in their lists: 0, 1, 2 and so on, for whoever reads state.

What is stored is what a list sorts by: ``epoch << 32 | number within the epoch``. Restores rely on
it, because elements that are added later have to come last. Everything that people and programs
read counts from 0 instead; Parquet files of savepoints have both, see `parts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.snapshot.parts import POSITION, list_places
from turnback.snapshot.snapshot import StateReader, StoredRows
from turnback.snapshot.table import StateTable
from turnback.state.schema import LIST_KINDS

Numbers = npt.NDArray[np.int64]


def numbered(stored: StoredRows, first: int, last: int) -> Iterator[pa.Table]:
    """The typed rows of some key groups, list elements with their place in the list.

    Lists are read twice, so that only their keys are held in memory.
    """
    if stored.schema.kind not in LIST_KINDS:
        yield from stored.typed(first, last)
        return
    entries = [table.select(["key", "sub"]) for table in stored.rows(first, last)]
    if not entries:
        return
    places = _places(pa.concat_tables(entries))
    start = 0
    for table in stored.typed(first, last):
        yield with_positions(table, places[start : start + len(table)])
        start += len(table)


class NumberedReader(StateReader):
    """Gives what `numbered` does."""

    def read(self, first: int, last: int) -> Iterator[pa.Table]:
        return numbered(self.stored, first, last)


def number_rows(stored: StoredRows, typed: pa.Table) -> pa.Table:
    """Give some rows of a state, from anywhere in it, their places in their lists."""
    if stored.schema.kind not in LIST_KINDS or not len(typed):
        return typed
    wanted = StateTable(stored.schema).to_rows(typed)
    keys = pc.unique(wanted["key"].combine_chunks())
    groups = pc.min_max(typed["key_group"])
    same = [
        table.filter(pc.is_in(table["key"], value_set=keys.cast(table["key"].type)))
        for table in stored.rows(groups["min"].as_py(), groups["max"].as_py())
    ]
    entries = pa.concat_tables([table.select(["key", "sub"]) for table in same])
    known = dict(zip(_pairs(entries), _places(entries).tolist(), strict=True))
    return with_positions(typed, np.array([known[pair] for pair in _pairs(wanted)], np.int64))


def with_positions(typed: pa.Table, places: Any) -> pa.Table:
    """Put other positions into typed rows of lists."""
    index = typed.schema.get_field_index(POSITION)
    return typed.set_column(index, typed.schema.field(index), pa.array(places, pa.int64()))


def _pairs(rows: pa.Table) -> Iterator[tuple[bytes, bytes]]:
    return zip(rows["key"].to_pylist(), rows["sub"].to_pylist(), strict=True)


def _places(entries: pa.Table) -> Numbers:
    """Number the rows of each key in the order of what the list sorts by."""
    return list_places(entries["key"], entries["sub"])
