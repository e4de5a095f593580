"""Where elements belong in time: their stamps, and the segments of the stream they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from turnback.functions.event_time import MIN_TIME
from turnback.plan.sources import WHOLE

Times = np.ndarray[Any, np.dtype[np.int64]]
Part = tuple[int, int, int]
"""A part of a source: its partition, then a file by its place and a block of it, or an offset."""
Place = tuple[int, ...]
"""Where a segment is among others, to be compared.

For a part of a source: the place of its strategy, the partition, the epoch, the file and the
block.
"""

NOWHERE = -1
"""In place of a segment: nobody knows where the element belongs; it comes before all others."""
FED_BACK = -(2**62)
"""The same for a dead letter that was fed back: event time does not go by it."""
LAST = 2**62
"""In a place: after whatever has come."""
PARTITION = -1
"""In place of a block, less an offset: what is called a file is a partition."""
UNPLACED = -1
"""In place of a partition: elements of which nobody knows where they belong."""
ASIDE: Part = (-2, 0, 0)
"""In place of a part of a source: dead letters that were fed back."""


class Stamps(NamedTuple):
    """The timestamps of the elements of a batch, and the watermark at each of them.

    Attributes:
        time: Event time in milliseconds; `MIN_TIME` for none.
        mark: The greatest timestamp that came before the element in its segment, if that is a part
            of a source; else the watermark at the element.
        segment: The part of the source it comes from; below zero for what operators give out.
        row: Where it is in its segment. What was made from one element has one row.
    """

    time: Times
    mark: Times
    segment: Times
    row: Times

    def take(self, which: Any) -> Stamps:
        """Those of some elements, given by their positions or by a truth value for each."""
        return Stamps(*(column[which] for column in self))

    def repeat(self, counts: Sequence[int]) -> Stamps:
        """Those of elements of which each was made from one of these, so many from each."""
        return Stamps(*(np.repeat(column, counts) for column in self))

    @staticmethod
    def join(parts: Sequence[Stamps]) -> Stamps:
        return Stamps(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @staticmethod
    def of(times: Times, marks: Times, segment: int = NOWHERE) -> Stamps:
        """Stamps of elements whose place is not known, with the watermarks themselves."""
        nowhere = np.full(len(times), segment, np.int64)
        return Stamps(times, marks, nowhere, np.zeros_like(nowhere))


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A part of a source in one epoch, as a strategy has seen it; or of what an operator gives out.

    Attributes:
        id: Its number among all of the epoch; below zero for what operators give out.
        strategy: Uid of the operator that gives timestamps and watermarks; of what operators
            give out, nothing.
        place: Where it is. Parts of a source of which no one knows are all in one place.
        greatest: The greatest timestamp in it, if it is a part of a source.
        partition: The partition of the source it belongs to.
        giver: The operator that gives it out. Of what was made from one element by several, it
            tells what comes first.
    """

    id: int
    strategy: str
    place: Place
    greatest: int = MIN_TIME
    partition: int = WHOLE
    giver: int = -1
