"""Folds several state files into one, some key groups at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from turnback.state.delta import BuiltDelta, Delta, bounded_batches, read_delta, write_delta
from turnback.state.file import StateFile, in_order
from turnback.state.folding import fold
from turnback.state.mergeinput import Source, States, cut_pieces
from turnback.state.schema import StateSchema
from turnback.storage.digest import check

Read = Callable[[StateFile], bytes]


def merge(files: Sequence[StateFile], read: Read, *, final: bool) -> BuiltDelta:
    """Fold files into one: the last write of each entry wins, and clears are honoured.

    Of each file only the key groups and operators that count are taken. In memory at once are the
    compressed files, the compressed result and some of their rows; of a key group that is too
    large, the keys of all rows.

    Args:
        files: Neighbours among the files of a partition.
        read: Gives the bytes of a file that does not carry them inline.
        final: Nothing older is left, so tombstones are dropped.

    Raises:
        CorruptFileError: A file is not what its `StateFile` says.
    """
    states = States()
    kept = _Kept(_folded(files, read, states, final=final))
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
    states = States()
    for rows in _folded(files, read, states, final=True):
        for number in pc.unique(rows["state"]).to_pylist():
            for batch in bounded_batches(rows.filter(pc.field("state") == number)):
                table = pa.Table.from_batches([batch]).drop_columns(["state"])
                yield states.schemas[number], table


def _folded(
    files: Sequence[StateFile], read: Read, states: States, *, final: bool
) -> Iterable[pa.Table]:
    """The rows that count; all states are numbered before the first of them comes."""
    sources = [Source(file, _checked(file, read), states) for file in in_order(files)]
    single = states.single()
    return (rows for piece in cut_pieces(sources) for rows in fold(piece, single, final=final))


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


def _checked(file: StateFile, read: Read) -> Delta:
    data = file.inline if file.inline is not None else read(file)
    check(data, file.length, file.digest, file.path)
    return read_delta(data, file.path)
