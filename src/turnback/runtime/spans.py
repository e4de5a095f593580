"""Cuts key groups into the shares of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from turnback.savepoint import StatePart
from turnback.state import StateFile

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
