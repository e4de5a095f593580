"""Folds several state files into one, a slice of key groups at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.state.apply import check_compatible, select
from turnback.state.delta import (
    COLUMNS,
    BuiltDelta,
    Delta,
    bounded_batches,
    read_delta,
    write_delta,
)
from turnback.state.file import StateFile, in_order
from turnback.state.schema import SINGLE_KINDS, StateSchema
from turnback.storage.digest import check

Read = Callable[[StateFile], bytes]

_WIDE = pa.schema(
    [field.with_type(pa.large_binary()) if i > 1 else field for i, field in enumerate(COLUMNS)]
)


def merge(files: Sequence[StateFile], read: Read, *, final: bool) -> BuiltDelta:
    """Fold files into one: the last write of each entry wins, and clears are honoured.

    Of each file only the key groups and operators that count are taken. In memory at once are the
    compressed files and a slice of their rows, not all of them.

    Args:
        files: Neighbours among the files of a partition.
        read: Gives the bytes of a file that does not carry them inline.
        final: Nothing older is left, so tombstones are dropped.

    Raises:
        CorruptFileError: A file is not what its `StateFile` says.
    """
    states = _States()
    sources = [_Source(file, _checked(file, read), states) for file in in_order(files)]
    kept = _Kept(_latest(piece, states.single(), final) for piece in _pieces(sources))
    data = write_delta(states.schemas, kept.batches())
    first, last = kept.groups or (
        min(file.first_group for file in files),
        max(file.last_group for file in files),
    )
    operators = tuple(sorted({states.schemas[i].uid for i in kept.states}))
    return BuiltDelta(data, kept.rows, first, last, operators)


def live_rows(files: Sequence[StateFile], read: Read) -> Iterator[tuple[StateSchema, pa.Table]]:
    """What is there after all these files, without tombstones, in ascending key groups.

    In memory at once is what `merge` needs. Every table holds rows of one state, with the columns
    group, key, sub and value; the tables of a state follow each other in the order of groups.

    Args:
        files: As `share` gives them.
        read: Gives the bytes of a file that does not carry them inline.

    Raises:
        CorruptFileError: A file is not what its `StateFile` says.
    """
    states = _States()
    sources = [_Source(file, _checked(file, read), states) for file in in_order(files)]
    for piece in _pieces(sources):
        rows = _latest(piece, states.single(), final=True)
        for number in pc.unique(rows["state"]).to_pylist():
            for batch in bounded_batches(rows.filter(pc.field("state") == number)):
                table = pa.Table.from_batches([batch]).drop_columns(["state"])
                yield states.schemas[number], table


class _Kept:
    """The rows of the merged file, counted as they pass."""

    def __init__(self, pieces: Iterable[pa.Table]) -> None:
        self._pieces = pieces
        self.rows = 0
        self.groups: tuple[int, int] | None = None
        self.states: set[int] = set()

    def batches(self) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces:
            if not len(piece):
                continue
            groups = piece["group"]
            first, last = int(groups[0].as_py()), int(groups[-1].as_py())
            self.groups = (self.groups[0] if self.groups else first, last)
            self.rows += len(piece)
            self.states.update(pc.unique(piece["state"]).to_pylist())
            yield from bounded_batches(piece)


class _States:
    """The states of all files, numbered anew."""

    def __init__(self) -> None:
        self.schemas: list[StateSchema] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, schema: StateSchema) -> int:
        number = self._numbers.setdefault(schema.id, len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
        else:
            check_compatible(self.schemas[number], schema)
        return number

    def single(self) -> npt.NDArray[np.bool_]:
        return np.array([s.kind in SINGLE_KINDS for s in self.schemas], np.bool_)


class _Source:
    """The rows of one file, handed out group by group in ascending order."""

    def __init__(self, file: StateFile, delta: Delta, states: _States) -> None:
        counts = [schema.uid in file.operators for schema in delta.schemas]
        self._numbers = np.array(
            [states.number(s) if c else -1 for s, c in zip(delta.schemas, counts, strict=True)],
            np.int16,
        )
        self._all_count = all(counts)
        self._range = (file.first_group, file.last_group)
        self._batches = iter(delta.batches(*self._range))
        self._held: list[pa.Table] = []
        self.exhausted = False
        self.load()

    def load(self) -> None:
        """Hold one more batch."""
        for read in self._batches:
            batch = select(read(), *self._range)
            states = self._numbers[batch["state"].to_numpy()]
            columns = [pa.array(states), *batch.columns[1:]]
            table = pa.Table.from_arrays(columns, schema=COLUMNS)
            if not self._all_count:
                table = table.filter(pc.field("state") >= 0)
            if len(table):
                self._held.append(table.cast(_WIDE))
                return
        self.exhausted = True

    def safe(self) -> int | None:
        """The last group of which every row is held; None when nothing bounds it."""
        return None if self.exhausted else int(self._held[-1]["group"][-1].as_py()) - 1

    def take(self, last: int | None) -> list[pa.Table]:
        """Hand out the rows of all groups up to the last."""
        if last is None:
            taken, self._held = self._held, []
            return taken
        taken, kept = [], []
        for table in self._held:
            cut = int(np.searchsorted(table["group"].to_numpy(), last, side="right"))
            if cut:
                taken.append(table.slice(0, cut))
            if cut < len(table):
                kept.append(table.slice(cut))
        self._held = kept
        return taken


def _pieces(sources: list[_Source]) -> Iterator[pa.Table]:
    """All rows, cut between key groups; within a piece in the order of the files."""
    while True:
        bounds = [bound for s in sources if (bound := s.safe()) is not None]
        last = min(bounds, default=None)
        taken = [table for source in sources for table in source.take(last)]
        if taken:
            yield pa.concat_tables(taken).combine_chunks()
        if last is None:
            return
        for source in sources:
            if source.safe() == last:
                source.load()


def _latest(piece: pa.Table, single: npt.NDArray[np.bool_], final: bool) -> pa.Table:
    """The rows that still count, sorted by group, clears first."""
    rows = len(piece)
    state = piece["state"].to_numpy()
    many = ~single[state]
    no_sub = piece["sub"].is_null().to_numpy()
    keep = np.zeros(rows, np.bool_)
    keep[_last_of_each(piece, ["state", "group", "key", "sub"])] = True
    clears = many & no_sub
    if clears.any():
        owner = _identify(piece, ["state", "group", "key"])
        cleared_at = np.full(int(owner.max()) + 1, -1, np.int64)
        cleared_at[owner[clears]] = np.flatnonzero(clears)
        keep &= ~many | (np.arange(rows) >= cleared_at[owner])
    if final:
        keep &= piece["value"].is_valid().to_numpy()
    index = np.flatnonzero(keep)
    group = piece["group"].to_numpy()[index]
    order = np.lexsort((~clears[index], group))
    return piece.take(pa.array(index[order]))


def _last_of_each(piece: pa.Table, columns: list[str]) -> npt.NDArray[np.int64]:
    ids = _identify(piece, columns)
    last = np.zeros(int(ids.max()) + 1, np.int64)
    last[ids] = np.arange(len(ids))  # of equal ids the last assignment stays
    return last


def _identify(piece: pa.Table, columns: list[str]) -> npt.NDArray[np.int64]:
    """Number the rows so that equal ones, and only they, have equal numbers."""
    ids = np.zeros(len(piece), np.int64)
    for name in columns:
        encoded = piece[name].combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        ids = ids * (len(encoded.dictionary) + 1) + codes
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def _checked(file: StateFile, read: Read) -> Delta:
    data = file.inline if file.inline is not None else read(file)
    check(data, file.length, file.digest, file.path)
    return read_delta(data, file.path)
