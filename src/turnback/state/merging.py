"""Merges state files: the last write of each entry counts, after the last clear.

Files are read a batch at a time, in pieces of some key groups each, so that a merge needs little
memory however large the files are: at once it holds the compressed files, the compressed result and
some of their rows, or of a key group that is too large, the keys of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.state.delta import (
    BATCH_BYTES,
    BATCH_ROWS,
    WIDE_COLUMNS,
    BuiltDelta,
    Delta,
    DeltaBatch,
    OpenFile,
    ReadFile,
    bounded_batches,
    bounded_tables,
    open_delta,
    write_delta,
)
from turnback.state.expiry import Expired, Limits
from turnback.state.files import StateFile, in_order
from turnback.state.replica import check_compatible, select
from turnback.state.schema import LONGEST, SINGLE_KINDS, StateSchema, component

_ENTRY = ["key", "state", "group", "sub"]
_OWNER = _ENTRY[:3]

HELD_BYTES = 128 << 20
"""A piece with more bytes than this is cut; a key group with more is never held as a whole."""

_NO_LIMITS: Limits = {}
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


def merge(
    files: Sequence[StateFile], read: ReadFile, *, final: bool, limits: Limits = _NO_LIMITS
) -> BuiltDelta:
    """Fold neighbouring files of a partition into one.

    Of each file only the key groups and operators that count are taken. When it is `final`, nothing
    older is left, and tombstones are dropped. Values that have expired become tombstones.
    """
    states = _States()
    merged = _Counter(_folded(files, partial(open_delta, read=read), states, limits, final=final))
    data = write_delta(states.schemas, merged.batches())
    first, last = merged.groups or (
        min(file.first_group for file in files),
        max(file.last_group for file in files),
    )
    operators = tuple(sorted({states.schemas[i].uid for i in merged.states}))
    return BuiltDelta(data, merged.rows, first, last, operators)


def live_rows(
    files: Sequence[StateFile], open: OpenFile, limits: Limits = _NO_LIMITS
) -> Iterator[tuple[StateSchema, pa.Table]]:
    """The rows of all these files, as `clip_files` gives them, that are not overwritten or deleted.

    Every table holds rows of one state, with the columns group, key, sub and value; the tables of a
    state follow each other in the order of groups.
    """
    states = _States()
    for rows in _folded(files, open, states, limits, final=True):
        numbers = pc.unique(rows["state"]).to_pylist()
        for number in numbers:
            mine = rows if len(numbers) == 1 else rows.filter(pc.field("state") == number)
            for table in bounded_tables(mine.drop_columns(["state"]), BATCH_ROWS, BATCH_BYTES):
                yield states.schemas[number], table


def _folded(
    files: Sequence[StateFile], open: OpenFile, states: _States, limits: Limits, *, final: bool
) -> Iterable[pa.Table]:
    """The rows that count; all states are numbered before the first of them comes."""
    files = in_order(files)
    sources = [_Source(file, open(file), states) for file in files]
    single = states.single()
    pieces = _pieces(sources, _settled(files))
    expired = Expired(states.schemas, limits)
    folded = (rows for piece in pieces for rows in _fold(piece, single, final=final))
    return (expired.without(rows, final=final) for rows in folded)


def _settled(files: Sequence[StateFile]) -> int:
    """How many files at the beginning are complete, and have no key group in common."""
    for count, file in enumerate(files):
        if not file.complete or any(
            file.first_group <= other.last_group and other.first_group <= file.last_group
            for other in files[:count]
        ):
            return count
    return len(files)


class _Counter:
    """Counts the rows of the merged file as they pass."""

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
            first = int(groups[0].as_py())
            last = int(groups[-1].as_py())
            self.groups = (self.groups[0] if self.groups else first, last)
            self.rows += len(piece)
            self.states.update(pc.unique(piece["state"]).to_pylist())
            yield from bounded_batches(piece)


class _Part(NamedTuple):
    """Some rows of a piece, read when they are needed; as `keys` without their values."""

    rows: Callable[[], pa.Table]
    keys: Callable[[], pa.Table]


class _Piece(NamedTuple):
    """The rows of some key groups, in the order of the files.

    A `large` piece is one key group with more rows than fit into memory. Of any other the first
    `settled` rows are all of different entries, none of them a clear.
    """

    parts: Sequence[_Part]
    large: bool
    settled: int = 0


class _States:
    """The states of all files, numbered anew."""

    def __init__(self) -> None:
        self.schemas: list[StateSchema] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, schema: StateSchema) -> int:
        """Number a state; raises `IncompatibleStateError` if it was stored with two types."""
        number = self._numbers.setdefault(schema.id, len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
        else:
            check_compatible(self.schemas[number], schema)
            self.schemas[number] = schema  # the newest knows how long values live
        return number

    def single(self) -> npt.NDArray[np.bool_]:
        """By number, whether a state has one value per key."""
        return np.array([s.kind in SINGLE_KINDS for s in self.schemas], np.bool_)


class _Source:
    """The rows of one file that count, handed out group by group in ascending order."""

    def __init__(self, file: StateFile, delta: Delta, states: _States) -> None:
        counts = [schema.uid in file.operators for schema in delta.schemas]
        self._numbers = np.array(
            [states.number(s) if c else -1 for s, c in zip(delta.schemas, counts, strict=True)],
            np.int16,
        )
        self._all_count = all(counts)
        self._delta = delta
        self._first = file.first_group
        self._last = file.last_group
        self._held: list[pa.Table] = []
        self._batches: Iterator[DeltaBatch] = iter(())
        self._exhausted = False
        self._begin(self._first)

    @property
    def held_bytes(self) -> int:
        return sum(table.nbytes for table in self._held)

    def load(self) -> None:
        for read in self._batches:
            table = self._read(read, self._first, self._last)
            if len(table):
                self._held.append(table)
                return
        self._exhausted = True

    def last_complete(self) -> int | None:
        """The last group of which every row is held; None when nothing bounds it."""
        return None if self._exhausted else int(self._held[-1]["group"][-1].as_py()) - 1

    def take(self, last: int | None) -> list[pa.Table]:
        """Hand out the rows of all groups up to the last."""
        taken, self._held = (self._held, []) if last is None else _split(self._held, last)
        return taken

    def skip(self, group: int) -> list[_Part]:
        """Skip the next group; return its rows, to be read later."""
        if not self._first <= group <= self._last:
            return []
        parts = [
            _Part(*(partial(self._read, read, group, group) for read in both))
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
        self._held = []
        self._exhausted = False
        self._batches = iter(self._delta.batches(group, self._last) if group <= self._last else ())
        self.load()

    def _read(self, read: DeltaBatch, first: int, last: int) -> pa.Table:
        batch = select(read(), first, last)
        states = self._numbers[batch["state"].to_numpy()]
        names = batch.schema.names
        table = pa.Table.from_arrays([pa.array(states), *batch.columns[1:]], names=names)
        if not self._all_count:
            table = table.filter(pc.field("state") >= 0)
        return table.cast(pa.schema([WIDE_COLUMNS.field(name) for name in names]))


def _pieces(sources: Sequence[_Source], settled: int) -> Iterator[_Piece]:
    """All rows of the sources, in ascending key groups; for `settled` sources see `_Piece`."""
    while True:
        bounds = [bound for s in sources if (bound := s.last_complete()) is not None]
        last = min(bounds, default=None)
        taken = [source.take(last) for source in sources]
        yield from _cut(
            list(chain.from_iterable(taken[:settled])), list(chain.from_iterable(taken[settled:]))
        )
        if last is None:
            return
        if not any(taken) and sum(s.held_bytes for s in sources) > HELD_BYTES:
            yield _Piece([part for s in sources for part in s.skip(last + 1)], True)
            continue
        for source in sources:
            if source.last_complete() == last:
                source.load()


def _cut(settled: list[pa.Table], others: list[pa.Table]) -> Iterator[_Piece]:
    """Halve the range of key groups until a half is small enough, or of one group."""
    tables = settled + others
    if not tables:
        return
    first = min(int(table["group"][0].as_py()) for table in tables)
    last = max(int(table["group"][-1].as_py()) for table in tables)
    large = sum(table.nbytes for table in tables) > HELD_BYTES
    if large and first < last:
        middle = (first + last) // 2
        for half in zip(_split(settled, middle), _split(others, middle), strict=True):
            yield from _cut(*half)
    else:
        yield _Piece([_held_part(table) for table in tables], large, sum(map(len, settled)))


def _held_part(table: pa.Table) -> _Part:
    return _Part(lambda: table, lambda: table.drop_columns(["value"]))


def _split(tables: list[pa.Table], last: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """The rows of the groups up to the last, and the others."""
    before = []
    after = []
    for table in tables:
        cut = int(np.searchsorted(table["group"].to_numpy(), last, side="right"))
        if cut:
            before.append(table.slice(0, cut))
        if cut < len(table):
            after.append(table.slice(cut))
    return before, after


def _fold(piece: _Piece, single: Mask, *, final: bool) -> Iterator[pa.Table]:
    """The rows of a piece that still count, sorted by group, clears first."""
    if piece.large:
        yield from _fold_large(piece, single, final)
        return
    rows = pa.concat_tables([part.rows() for part in piece.parts])
    keep, clears = _survivors(rows, single, piece.settled)
    if final and rows["value"].null_count:
        keep &= rows["value"].is_valid().to_numpy()
    index = np.flatnonzero(keep)
    group = rows["group"].to_numpy()[index]
    rank = (2 * group + ~clears[index]).astype(np.uint16)  # which NumPy sorts in linear time
    if len(index) < len(rows) or (rank[1:] < rank[:-1]).any():
        rows = rows.take(pa.array(index[np.argsort(rank, kind="stable")]))
    yield rows


def _fold_large(piece: _Piece, single: Mask, final: bool) -> Iterator[pa.Table]:
    """Decide by the keys of one group alone, then read its values a part at a time."""
    keys = [_shortened(part.keys()) for part in piece.parts]
    sizes = [len(table) for table in keys]
    keep, clears = _survivors(pa.concat_tables(keys), single)
    del keys
    for wanted in [keep & ~clears] if final else [keep & clears, keep & ~clears]:
        start = 0
        for part, size in zip(piece.parts, sizes, strict=True):
            mask = wanted[start : start + size]
            start = start + size
            if mask.any():
                rows = part.rows().filter(pa.array(mask))
                yield rows.filter(pc.field("value").is_valid()) if final else rows


def _shortened(keys: pa.Table) -> pa.Table:
    """Replace long keys by hashes, so that many rows of one key do not hold it each."""
    for name in ("key", "sub"):
        column = keys[name]
        if (pc.max(pc.binary_length(column)).as_py() or 0) > LONGEST:
            # Four times the hash is longer than anything that stands for itself.
            short = [
                v if v is None or len(v) <= LONGEST else component(v) * 4
                for v in column.to_pylist()
            ]
            index = keys.schema.get_field_index(name)
            keys = keys.set_column(index, keys.field(name), pa.array(short, column.type))
    return keys


def _survivors(rows: pa.Table, single: Mask, settled: int = 0) -> tuple[Mask, Mask]:
    """Which rows still count, tombstones among them, and which rows are clears.

    For the `settled` rows see `_Piece`: only later rows of the same key can end them.
    """
    if settled:
        keys = rows["key"].slice(0, settled)
        later = rows["key"].slice(settled)
        touched = pc.is_in(keys, value_set=later.combine_chunks()).to_numpy()
        index = np.concatenate((np.flatnonzero(touched), np.arange(settled, len(rows))))
        keep = np.ones(len(rows), np.bool_)
        clears = np.zeros(len(rows), np.bool_)
        if len(index):
            some = rows.select(_ENTRY).take(pa.array(index))
            keep[index], clears[index] = _survivors(some, single)
        return keep, clears
    count = len(rows)
    many = ~single[rows["state"].to_numpy()]
    clears = many & rows["sub"].is_null().to_numpy()
    ids = _identify(rows, _ENTRY)
    last = np.zeros(int(ids.max()) + 1, np.int64)
    last[ids] = np.arange(count)  # of equal ids the last assignment stays
    keep = np.zeros(count, np.bool_)
    keep[last] = True
    if clears.any():
        owner = _identify(rows, _OWNER)
        cleared_at = np.full(int(owner.max()) + 1, -1, np.int64)
        cleared_at[owner[clears]] = np.flatnonzero(clears)
        keep &= ~many | (np.arange(count) >= cleared_at[owner])
    return keep, clears


def _identify(rows: pa.Table, columns: list[str]) -> Numbers:
    """Number the rows so that equal ones, and only they, have equal numbers.

    The key usually tells state and group, so that most columns add nothing to it.
    """
    ids, most = _codes(rows[columns[0]])
    for name in columns[1:]:
        codes, width = _codes(rows[name])
        if width > 1 and not _follow(codes, ids, most):
            distinct, ids = np.unique(ids * width + codes, return_inverse=True)
            most = len(distinct)
    return ids


def _codes(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    """A number for each value of a column, null among them, and what they all are less than."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64), 1
    if pa.types.is_integer(column.type):
        numbers = column.to_numpy().astype(np.int64)
        return numbers, int(numbers.max()) + 1
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, len(encoded.dictionary)


def _follow(codes: Numbers, ids: Numbers, most: int) -> bool:
    """Whether rows with equal numbers have equal codes, so that those add nothing."""
    example = np.zeros(most, np.int64)
    example[ids] = codes
    return bool((example[ids] == codes).all())
