"""The rows of several state files, cut between key groups into pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.state.apply import check_compatible, select
from turnback.state.delta import WIDE_COLUMNS, Batch, Delta
from turnback.state.file import StateFile
from turnback.state.schema import SINGLE_KINDS, StateSchema

HELD_BYTES = 128 << 20
"""A piece with more bytes than this is cut; a key group with more is never held as a whole."""


class Part(NamedTuple):
    """Some rows of a piece, read when they are asked for.

    Attributes:
        rows: Gives the rows, with the columns of a state file.
        keys: Gives the same rows without their values.
    """

    rows: Callable[[], pa.Table]
    keys: Callable[[], pa.Table]


class Piece(NamedTuple):
    """Some key groups of all files.

    Attributes:
        parts: Their rows, in the order of the files.
        large: They are rows of one key group, and more than fit into memory.
    """

    parts: Sequence[Part]
    large: bool


class States:
    """The states of all files, numbered anew."""

    def __init__(self) -> None:
        self.schemas: list[StateSchema] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, schema: StateSchema) -> int:
        """The number of a state; refuses one that was stored in two ways."""
        number = self._numbers.setdefault(schema.id, len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
        else:
            check_compatible(self.schemas[number], schema)
        return number

    def single(self) -> npt.NDArray[np.bool_]:
        """By number, whether a state has one value per key."""
        return np.array([s.kind in SINGLE_KINDS for s in self.schemas], np.bool_)


class Source:
    """The rows of one file that count, handed out group by group in ascending order."""

    def __init__(self, file: StateFile, delta: Delta, states: States) -> None:
        counts = [schema.uid in file.operators for schema in delta.schemas]
        self._numbers = np.array(
            [states.number(s) if c else -1 for s, c in zip(delta.schemas, counts, strict=True)],
            np.int16,
        )
        self._all_count = all(counts)
        self._delta = delta
        self._first, self._last = file.first_group, file.last_group
        self._held: list[pa.Table] = []
        self._batches: Iterator[Batch] = iter(())
        self._exhausted = False
        self._begin(self._first)

    @property
    def held_bytes(self) -> int:
        """How much is held."""
        return sum(table.nbytes for table in self._held)

    def load(self) -> None:
        """Hold one more batch."""
        for read in self._batches:
            table = self._read(read, self._first, self._last)
            if len(table):
                self._held.append(table)
                return
        self._exhausted = True

    def safe(self) -> int | None:
        """The last group of which every row is held; None when nothing bounds it."""
        return None if self._exhausted else int(self._held[-1]["group"][-1].as_py()) - 1

    def take(self, last: int | None) -> list[pa.Table]:
        """Hand out the rows of all groups up to the last."""
        if last is None:
            taken, self._held = self._held, []
            return taken
        taken, self._held = _split(self._held, last)
        return taken

    def leave_out(self, group: int) -> list[Part]:
        """Go on after a group, the next one; returns where its rows can be read."""
        if not self._first <= group <= self._last:
            return []
        parts = [
            Part(*(partial(self._read, read, group, group) for read in both))
            for both in zip(
                self._delta.batches(group, group),
                self._delta.batches(group, group, values=False),
                strict=True,
            )
        ]
        self._begin(group + 1)
        return parts

    def _begin(self, group: int) -> None:
        self._first = group
        self._held, self._exhausted = [], False
        self._batches = iter(self._delta.batches(group, self._last) if group <= self._last else ())
        self.load()

    def _read(self, read: Batch, first: int, last: int) -> pa.Table:
        batch = select(read(), first, last)
        states = self._numbers[batch["state"].to_numpy()]
        names = batch.schema.names
        table = pa.Table.from_arrays([pa.array(states), *batch.columns[1:]], names=names)
        if not self._all_count:
            table = table.filter(pc.field("state") >= 0)
        return table.cast(pa.schema([WIDE_COLUMNS.field(name) for name in names]))


def cut_pieces(sources: Sequence[Source]) -> Iterator[Piece]:
    """All rows of the sources, in ascending key groups.

    In memory at once are a batch of each source, what the piece holds, and no more than
    `HELD_BYTES` beyond.
    """
    while True:
        bounds = [bound for s in sources if (bound := s.safe()) is not None]
        last = min(bounds, default=None)
        taken = [table for source in sources for table in source.take(last)]
        yield from _cut(taken)
        if last is None:
            return
        if not taken and sum(s.held_bytes for s in sources) > HELD_BYTES:
            yield Piece([part for s in sources for part in s.leave_out(last + 1)], True)
            continue
        for source in sources:
            if source.safe() == last:
                source.load()


def _cut(tables: list[pa.Table]) -> Iterator[Piece]:
    """Halve the range of key groups until a half is small enough, or of one group."""
    if not tables:
        return
    first = min(int(table["group"][0].as_py()) for table in tables)
    last = max(int(table["group"][-1].as_py()) for table in tables)
    large = sum(table.nbytes for table in tables) > HELD_BYTES
    if large and first < last:
        for half in _split(tables, (first + last) // 2):
            yield from _cut(half)
    else:
        yield Piece([_held_part(table) for table in tables], large)


def _held_part(table: pa.Table) -> Part:
    return Part(lambda: table, lambda: table.drop_columns(["value"]))


def _split(tables: list[pa.Table], last: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """The rows of the groups up to the last, and the others."""
    before, after = [], []
    for table in tables:
        cut = int(np.searchsorted(table["group"].to_numpy(), last, side="right"))
        if cut:
            before.append(table.slice(0, cut))
        if cut < len(table):
            after.append(table.slice(cut))
    return before, after
