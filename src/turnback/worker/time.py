"""What a task knows of event time: the timestamps of elements, and how far watermarks have come.

Elements of a source have an order: files in the order in which they are read, rows in the order of
their file. A watermark strategy looks at them in this order, so what it says at an element depends
on the elements before it, and not on where epochs end. A task that reads a part of the source, a
segment, knows the order inside of it only. It notes with every element the greatest timestamp
before it in its segment, and in its barriers the greatest timestamp of the segment. Who has got
all barriers of an epoch knows the watermark at each of its elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from turnback.program.time import MAX_TIME, MIN_TIME

Times = np.ndarray[Any, np.dtype[np.int64]]
SegmentOrder = tuple[int, int]

ABSOLUTE = -1
"""In place of a segment: the mark is the watermark itself."""


class Stamps(NamedTuple):
    """The timestamps of the elements of a batch, and the watermark at each of them.

    Attributes:
        time: Event time in milliseconds; `MIN_TIME` for none.
        mark: The greatest timestamp that came before the element in its segment; without a segment
            the watermark at the element.
        segment: The part of the source it comes from, or `ABSOLUTE`.
    """

    time: Times
    mark: Times
    segment: Times

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
    def of(times: Times, marks: Times) -> Stamps:
        """Stamps that hold the watermarks themselves."""
        return Stamps(times, marks, np.full(len(times), ABSOLUTE, np.int64))


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A part of a source in one epoch, as a strategy has seen it.

    Attributes:
        id: Its number among all of the epoch.
        strategy: Uid of the operator that gives timestamps and watermarks.
        order: Where it is in the source. Parts of which no one knows are all in one place.
        greatest: The greatest timestamp in it.
    """

    id: int
    strategy: str
    order: SegmentOrder
    greatest: int


class EpochTime(msgspec.Struct, frozen=True):
    """What time it is when an epoch begins.

    Attributes:
        now_ms: The time of the driver's clock.
        greatest: The greatest timestamp so far, by uid of the strategy.
        idle: Strategies that watermarks do not wait for.
        ended: Whether nothing comes any more, so that watermarks go to the end of time.
        files: The place of every file in its source, by what tasks know files by.
    """

    now_ms: int = 0
    greatest: dict[str, int] = {}
    idle: tuple[str, ...] = ()
    ended: bool = False
    files: dict[int, int] = {}


def watermark_of(greatest: int, bound_ms: int | None) -> int:
    """The watermark after elements of which this is the greatest timestamp."""
    if bound_ms is None or greatest == MIN_TIME:
        return MIN_TIME
    return max(greatest - bound_ms - 1, MIN_TIME)


def advance(greatest: Mapping[str, int], segments: Iterable[Segment]) -> dict[str, int]:
    """The greatest timestamps after an epoch."""
    after = dict(greatest)
    for segment in segments:
        after[segment.strategy] = max(after.get(segment.strategy, MIN_TIME), segment.greatest)
    return after


class TaskTime:
    """Event time in one task.

    Args:
        bounds: How late elements may be, by uid of the strategies of the whole job.
    """

    def __init__(self, bounds: Mapping[str, int | None]) -> None:
        self._bounds = bounds
        self.begin(EpochTime(), 0, ordered=False)

    def begin(self, time: EpochTime, task: int, *, ordered: bool) -> None:
        """Start an epoch; `ordered` tells whether elements come as the source has them."""
        self.epoch = time
        self.task = task
        self._ordered = ordered
        self._at: SegmentOrder = (0, 0)
        self._own: dict[tuple[str, SegmentOrder], list[int]] = {}
        self._segments: dict[int, Segment] = {}
        self._after: dict[str, int] = dict(time.greatest)
        self._bases: dict[int, tuple[int, int | None]] = {}

    def enter(self, file: int, block: int) -> None:
        """Go to the part of the source from which the next elements come."""
        place = self.epoch.files.get(file)
        self._at = (0, 0) if place is None else (place, block)

    def stamp(self, strategy: str, times: Times) -> Stamps:
        """Take the timestamps of the next elements into account."""
        own = self._own.setdefault((strategy, self._at), [len(self._own), MIN_TIME])
        before = np.maximum.accumulate(np.concatenate([[own[1]], times]))
        own[1] = int(before[-1])
        if not self._ordered:
            watermark = self.watermark_before((strategy,))
            return Stamps.of(times, np.full(len(times), watermark, np.int64))
        return Stamps(times, before[:-1], np.full(len(times), self._id(own[0]), np.int64))

    def own_segments(self) -> tuple[Segment, ...]:
        """The parts of the sources that this task has read."""
        return tuple(
            Segment(self._id(number), strategy, order, greatest)
            for (strategy, order), (number, greatest) in self._own.items()
        )

    def learn(self, segments: Iterable[Segment]) -> None:
        """Learn of all parts of the sources in this epoch."""
        self._segments.update({segment.id: segment for segment in segments})
        self._after = advance(self.epoch.greatest, self._segments.values())
        self._bases.clear()

    def segments(self) -> tuple[Segment, ...]:
        """All parts of the sources, as far as they are known here."""
        return (*self._segments.values(), *self.own_segments())

    def watermark_before(self, strategies: Sequence[str]) -> int:
        """The watermark at the beginning of the epoch, where these are combined."""
        return self._combined(strategies, self.epoch.greatest)

    def watermark(self, strategies: Sequence[str]) -> int:
        """The watermark at the end of the epoch, where these are combined."""
        return MAX_TIME if self.epoch.ended else self._combined(strategies, self._after)

    def is_idle(self, strategies: Sequence[str]) -> bool:
        """Whether watermarks wait for none of these."""
        return all(uid in self.epoch.idle for uid in strategies)

    def has_watermarks(self, strategies: Sequence[str]) -> bool:
        """Whether event time moves where these are combined."""
        return all(self._bounds.get(uid) is not None for uid in strategies)

    def of_strategy(self, stamps: Stamps, strategy: str) -> Any:
        """For each element, whether it is known to go by this strategy."""
        known = [id for id, each in self._segments.items() if each.strategy == strategy]
        return np.isin(stamps.segment, known)

    def marks(self, stamps: Stamps) -> Times:
        """The watermark at each element, from its own strategy alone."""
        marks = stamps.mark.copy()
        for id in np.unique(stamps.segment).tolist():
            if id != ABSOLUTE:
                base, bound = self._bases.get(id) or self._base(id)
                mine = stamps.segment == id
                greatest = np.maximum(stamps.mark[mine], base)
                if bound is None:
                    marks[mine] = MIN_TIME
                    continue
                known = greatest != MIN_TIME
                marks[mine] = np.where(known, greatest - np.where(known, bound + 1, 0), MIN_TIME)
        return marks

    def own_watermarks(self, stamps: Stamps, strategy: str) -> Times:
        """The watermark at each element of a strategy, as far as its own segment tells."""
        bound = self._bounds.get(strategy)
        known = stamps.mark != MIN_TIME
        if bound is None:
            known &= stamps.segment == ABSOLUTE
        less = np.where(stamps.segment == ABSOLUTE, 0, (bound or 0) + 1)
        marks: Times = np.where(known, stamps.mark - np.where(known, less, 0), MIN_TIME)
        return marks

    def own_marks(self, watermarks: Times, segments: Times, strategy: str) -> Times:
        """The marks of elements that have these watermarks, the other way round."""
        bound = self._bounds.get(strategy) or 0
        known = (watermarks != MIN_TIME) & (segments != ABSOLUTE)
        marks: Times = watermarks + np.where(known, bound + 1, 0)
        return marks

    def places(self, stamps: Stamps) -> Times:
        """Where the segment of each element is in its source, to be compared with others."""
        orders = sorted({segment.order for segment in self._segments.values()})
        place = {id: orders.index(segment.order) for id, segment in self._segments.items()}
        ids, which = np.unique(stamps.segment, return_inverse=True)
        places: Times = np.array([place.get(id, -1) for id in ids.tolist()], np.int64)[which]
        return places

    def _base(self, id: int) -> tuple[int, int | None]:
        """The greatest timestamp before a segment, and the bound of its strategy."""
        segment = self._segments[id]
        earlier = (
            other.greatest
            for other in self._segments.values()
            if other.strategy == segment.strategy and other.order < segment.order
        )
        known = self.epoch.greatest.get(segment.strategy, MIN_TIME)
        base = (max(earlier, default=MIN_TIME), known)
        self._bases[id] = max(base), self._bounds[segment.strategy]
        return self._bases[id]

    def _combined(self, strategies: Sequence[str], greatest: Mapping[str, int]) -> int:
        idle = self.epoch.idle
        active = [uid for uid in strategies if uid not in idle] or strategies
        return min(
            (watermark_of(greatest.get(uid, MIN_TIME), self._bounds.get(uid)) for uid in active),
            default=MIN_TIME,
        )

    def _id(self, number: int) -> int:
        return self.task << 24 | number
