"""Which rows of a piece still count: the last write of each entry, after the last clear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.state.layout import LONGEST, component
from turnback.state.mergeinput import Piece

_ENTRY = ["state", "group", "key", "sub"]
_OWNER = _ENTRY[:3]
_MOST_IDS = 1 << 62

Mask = npt.NDArray[np.bool_]


def fold(piece: Piece, single: Mask, *, final: bool) -> Iterator[pa.Table]:
    """The rows of a piece that still count, sorted by group, clears first.

    Args:
        piece: The rows, in the order in which they were written.
        single: By number of the state, whether it has one value per key.
        final: Nothing older is left, so tombstones are dropped.
    """
    if piece.large:
        yield from _fold_large(piece, single, final)
        return
    rows = pa.concat_tables([part.rows() for part in piece.parts])
    keep, clears = _survivors(rows, single)
    if final:
        keep &= rows["value"].is_valid().to_numpy()
    index = np.flatnonzero(keep)
    group = rows["group"].to_numpy()[index]
    order = np.lexsort((~clears[index], group))
    yield rows.take(pa.array(index[order]))


def _fold_large(piece: Piece, single: Mask, final: bool) -> Iterator[pa.Table]:
    """Decide by the keys of one group alone, then read its values a part at a time."""
    keys = [_shortened(part.keys()) for part in piece.parts]
    sizes = [len(table) for table in keys]
    keep, clears = _survivors(pa.concat_tables(keys), single)
    del keys
    for wanted in [keep & ~clears] if final else [keep & clears, keep & ~clears]:
        start = 0
        for part, size in zip(piece.parts, sizes, strict=True):
            mask, start = wanted[start : start + size], start + size
            if mask.any():
                rows = part.rows().filter(pa.array(mask))
                yield rows.filter(pc.field("value").is_valid()) if final else rows


def _shortened(keys: pa.Table) -> pa.Table:
    """Put hashes in the place of long keys, so that many rows of one key do not hold it each."""
    for name in ("key", "sub"):
        column = keys[name]
        if (pc.max(pc.binary_length(column)).as_py() or 0) > LONGEST:
            short = [None if v is None else _short(v) for v in column.to_pylist()]
            index = keys.schema.get_field_index(name)
            keys = keys.set_column(index, keys.field(name), pa.array(short, column.type))
    return keys


def _short(data: bytes) -> bytes:
    # Four times the hash is longer than anything that stands for itself.
    return data if len(data) <= LONGEST else component(data) * 4


def _survivors(rows: pa.Table, single: Mask) -> tuple[Mask, Mask]:
    """Which rows still count, tombstones among them, and which rows are clears."""
    count = len(rows)
    many = ~single[rows["state"].to_numpy()]
    clears = many & rows["sub"].is_null().to_numpy()
    keep = np.zeros(count, np.bool_)
    keep[_last_of_each(_identify(rows, _ENTRY))] = True
    if clears.any():
        owner = _identify(rows, _OWNER)
        cleared_at = np.full(int(owner.max()) + 1, -1, np.int64)
        cleared_at[owner[clears]] = np.flatnonzero(clears)
        keep &= ~many | (np.arange(count) >= cleared_at[owner])
    return keep, clears


def _last_of_each(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    last = np.zeros(int(ids.max()) + 1, np.int64)
    last[ids] = np.arange(len(ids))  # of equal ids the last assignment stays
    return last


def _identify(rows: pa.Table, columns: list[str]) -> npt.NDArray[np.int64]:
    """Number the rows so that equal ones, and only they, have equal numbers."""
    ids, most = np.zeros(len(rows), np.int64), 1
    for name in columns:
        encoded = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        width = len(encoded.dictionary) + 1
        if most * width > _MOST_IDS:
            ids, most = _renumber(ids), len(rows)
        ids, most = ids * width + codes, most * width
    return _renumber(ids)


def _renumber(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)
