"""What a task knows of event time: the timestamps of elements, and how far watermarks have come.

Elements of a source have an order: files in the order in which they are read, rows in the order of
their file. A watermark strategy looks at them in this order, so what it says at an element depends
on the elements before it, and not on where epochs end. A task that reads a part of the source, a
segment, knows the order inside of it only. It notes with every element its row and the greatest
timestamp before it in its segment, and in its barriers the greatest timestamp of the segment and
its place. Who has got all barriers of an epoch knows the watermark at each of its elements, and
their order.

What operators give out has segments too: the place is that of the elements it was made from, so
that it has their order, wherever it was made.

A source may also have partitions without an order among them, as Kafka has. A strategy looks at
each of them for itself: the watermark at an element depends on what came before it in its own
partition. How far time has come, the slowest partition tells; elements that are ahead of it wait
where order matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from turnback.functions.event_time import MAX_TIME, MIN_TIME
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
FIRST = -1
"""In a place: before all others, whatever their strategies and inputs."""
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


Partitions = dict[str, dict[int, int]]
"""The greatest timestamp of every partition, by uid of the strategy."""


class EpochTime(msgspec.Struct, frozen=True):
    """What time it is when an epoch begins.

    Attributes:
        now_ms: The time of the driver's clock.
        greatest: The greatest timestamp so far, by uid of the strategy.
        idle: Strategies that watermarks do not wait for.
        ended: Whether nothing comes any more, so that watermarks go to the end of time.
        files: The place of every file in its source, by what tasks know files by.
        partitions: The greatest timestamp of every partition so far, by uid of the strategy.
        idle_partitions: Those that watermarks do not wait for, by uid of the strategy.
        reached: The watermarks that operators have reached so far, by their uid. There they do not
            go back, whichever streams come to an operator or go with a new version of the program.
    """

    now_ms: int = 0
    greatest: dict[str, int] = {}
    idle: tuple[str, ...] = ()
    ended: bool = False
    files: dict[int, int] = {}
    partitions: Partitions = {}
    idle_partitions: dict[str, tuple[int, ...]] = {}
    reached: dict[str, int] = {}


def watermark_of(greatest: int, bound_ms: int | None) -> int:
    """The watermark after elements of which this is the greatest timestamp."""
    if bound_ms is None or greatest == MIN_TIME:
        return MIN_TIME
    return max(greatest - bound_ms - 1, MIN_TIME)


def advance(time: EpochTime, segments: Iterable[Segment]) -> tuple[dict[str, int], Partitions]:
    """The greatest timestamps after an epoch: by strategy, and of their partitions."""
    partitions = {uid: dict(known) for uid, known in time.partitions.items()}
    idle = {(uid, each) for uid, some in time.idle_partitions.items() for each in some}
    for segment in segments:
        if segment.strategy:
            known = partitions.setdefault(segment.strategy, {})
            before = known.get(segment.partition, MIN_TIME)
            known[segment.partition] = max(before, segment.greatest)
            idle.discard((segment.strategy, segment.partition))
    after = dict(time.greatest)
    for uid, known in partitions.items():
        # They belong nowhere, and tell how late it is nevertheless.
        after[uid] = max(after.get(uid, MIN_TIME), known.pop(UNPLACED, MIN_TIME))
    for uid, known in partitions.items():
        slowest = min((t for each, t in known.items() if (uid, each) not in idle), default=MIN_TIME)
        after[uid] = max(after.get(uid, MIN_TIME), slowest)
    return after, partitions


def still_idle(idle: Iterable[str], segments: Iterable[Segment]) -> tuple[str, ...]:
    """Those of some strategies for which nothing has come in an epoch, as before it."""
    active = {segment.strategy for segment in segments}
    return tuple(uid for uid in idle if uid not in active)


@cache
def strategy_place(uid: str) -> Place:
    """The place of a strategy among all that there may ever be: in the order of their uids.

    Places are part of snapshots, so they must not depend on which other strategies a job has.
    """
    data = uid.encode()
    parts = [data[start : start + 7] for start in range(0, len(data), 7)]
    # Each part is above zero, so that a uid comes before those that go on after it.
    return (*(int.from_bytes(part.ljust(7, b"\0"), "big") + 1 for part in parts), 0)


@dataclass
class _OwnPart:
    """A part of a source that this task reads: its number, and what it has been so far."""

    number: int
    greatest: int = MIN_TIME
    rows: int = 0


class TaskTime:
    """Event time in one task.

    Args:
        bounds: How late elements may be, by uid of the strategies of the whole job.

    Attributes:
        way: A number for the way on which elements come just now, to be compared.
    """

    def __init__(self, bounds: Mapping[str, int | None]) -> None:
        self.way = 0
        self._bounds = bounds
        self.begin(EpochTime(), 0, 0, 0, ordered=False)

    def begin(self, time: EpochTime, number: int, level: int, task: int, *, ordered: bool) -> None:
        """Start an epoch in a task of a level; `ordered`: elements come as the source has them."""
        self.way = 0
        self.epoch = time
        self.task = task
        self.number = number
        self._first_id = (level << 24 | task) << 24
        self._ordered = ordered
        self._at: Part = (WHOLE, 0, 0)
        self._first_offsets: dict[int, int] = {}
        self._own: dict[tuple[str, Part], _OwnPart] = {}
        self._given: dict[tuple[Place, int], int] = {}
        self._placed: dict[int, int] = {}
        """How many elements without timestamps have been read, by segment."""
        self._given_segments: dict[int, Segment] = {}
        self._segments: dict[int, Segment] = {}
        self._after: dict[str, int] = dict(time.greatest)
        self._idle = time.idle
        self._bases: dict[int, tuple[int, int | None]] = {}
        """What watermarks in a segment depend on: the greatest timestamp before it, the bound."""

    def enter(self, file: int, block: int, partition: int = WHOLE) -> None:
        """Go to the part of a source from which the next elements come.

        Without partitions, all of the source is `partition`.
        """
        if block <= PARTITION:
            # A task reads one range of a partition, which begins here.
            self._at = (file, 0, self._first_offsets.setdefault(file, PARTITION - block))
            return
        place = self.epoch.files.get(file)
        self._at = (partition, 0, 0) if place is None else (partition, place, block)

    @contextmanager
    def within(self, part: Part) -> Iterator[None]:
        """Go back to a part of a source for what comes from it later than what follows it."""
        there = self._at
        self._at = part
        try:
            yield
        finally:
            self._at = there

    @property
    def part(self) -> Part:
        """The part of a source that elements come from just now."""
        return self._at

    @property
    def order_matters(self) -> bool:
        """Whether a strategy may look at elements in the order in which they come here."""
        return self._ordered and bool(self._bounds)

    def place(self, source: int, count: int) -> Stamps:
        """Where the next elements of a source are in it, which have no timestamps yet."""
        partition, *part = self._at
        id = self.given((source, partition, self.number, *part), source, partition)
        first = self._placed.get(id, 0)
        self._placed[id] = first + count
        none = np.full(count, MIN_TIME, np.int64)
        return Stamps(none, none, np.full(count, id, np.int64), np.arange(first, first + count))

    def stamp(self, strategy: str, times: Times) -> Stamps:
        """Take the timestamps of the next elements into account."""
        if self._at == ASIDE:
            return self.stamp_fed_back(strategy, times)
        if self._ordered:
            return self._stamped(strategy, times)
        return self.stamp_unplaced(strategy, times)

    def stamp_in_order(self, strategy: str, times: Times, partition: int) -> Stamps:
        """The same for elements of a partition that are in order, although they were shuffled."""
        self._at = (partition, 0, 0)
        return self._stamped(strategy, times)

    def stamp_fed_back(self, strategy: str, times: Times) -> Stamps:
        """The stamps of elements that come again, long after those they belong with.

        Time has gone on without them. They do not move it, nor is it held back for more of them.
        """
        watermark = self.watermark_before((strategy,))
        return Stamps.of(times, np.full(len(times), watermark, np.int64), FED_BACK)

    def stamp_unplaced(self, strategy: str, times: Times) -> Stamps:
        """The same for elements of which nobody knows in which order they come."""
        self._at = (UNPLACED, 0, 0)
        self._stamped(strategy, times)
        watermark = self.watermark_before((strategy,))
        return Stamps.of(times, np.full(len(times), watermark, np.int64))

    def _stamped(self, strategy: str, times: Times) -> Stamps:
        own = self._own.setdefault((strategy, self._at), _OwnPart(len(self._own)))
        before = np.maximum.accumulate(np.concatenate([[own.greatest], times]))
        own.greatest = int(before[-1])
        first = own.rows
        own.rows = own.rows + len(times)
        segments = np.full(len(times), self._id(own.number), np.int64)
        return Stamps(times, before[:-1], segments, np.arange(first, own.rows))

    def given(self, place: Place, giver: int, partition: int = WHOLE) -> int:
        """The segment of what an operator gives out here that belongs to a place."""
        id = self._given.setdefault((place, giver), -2 - self._id(len(self._given)))
        if id not in self._given_segments:
            self._given_segments[id] = Segment(id, "", place, MIN_TIME, partition, giver)
        return id

    def segment(self, id: int) -> Segment | None:
        """A segment of what has come here or is given out; None if it is not known."""
        return self._segments.get(id) or self._given_segments.get(id)

    def own_segments(self) -> tuple[Segment, ...]:
        """The parts of the sources that this task has read, and those of what it gives out."""
        read = [
            Segment(
                self._id(own.number),
                strategy,
                (*strategy_place(strategy), partition, self.number, file, block),
                own.greatest,
                partition,
            )
            for (strategy, (partition, file, block)), own in self._own.items()
        ]
        return (*read, *self._given_segments.values())

    def learn(self, segments: Iterable[Segment]) -> None:
        """Learn of all parts of the sources in this epoch."""
        self._segments.update({segment.id: segment for segment in segments})
        self._after, _ = advance(self.epoch, self._segments.values())
        self._idle = still_idle(self.epoch.idle, self._segments.values())
        self._bases.clear()

    def segments(self) -> tuple[Segment, ...]:
        """All parts of the sources, as far as they are known here."""
        return (*self._segments.values(), *self.own_segments())

    def watermark_before(self, strategies: Sequence[str], operator: str = "") -> int:
        """The watermark at the beginning of the epoch, where these are combined.

        It is that of an operator, if a uid is given, or of the strategies alone. If there is
        something that it does not wait for any more, such as a stream that fell silent since, it
        gets further only in the epoch, from element to element: some may have waited.
        """
        reached = self.epoch.reached.get(operator)
        if reached is not None:
            return reached
        return self._combined(strategies, self.epoch.greatest, self.epoch.idle)

    def watermark(self, strategies: Sequence[str], operator: str = "") -> int:
        """The watermark at the end of the epoch, where these are combined."""
        return MAX_TIME if self.epoch.ended else self.reached(strategies, operator)

    def reached(self, strategies: Sequence[str], operator: str = "") -> int:
        """How far elements have brought the watermark, also if event time ends with the epoch."""
        reached = self.epoch.reached.get(operator, MIN_TIME)
        return max(reached, self._combined(strategies, self._after, self._idle))

    def is_idle(self, strategies: Sequence[str]) -> bool:
        """Whether watermarks wait for none of these, at the end of the epoch."""
        return all(uid in self._idle for uid in strategies)

    def has_watermarks(self, strategies: Sequence[str]) -> bool:
        """Whether event time moves where these are combined."""
        return all(self._bounds.get(uid) is not None for uid in strategies)

    def has_partitions(self, strategy: str) -> bool:
        """Whether partitions without an order among them go by this strategy."""
        return len(self.epoch.partitions.get(strategy, ())) > 1

    def of_strategy(self, stamps: Stamps, strategy: str) -> Any:
        """For each element, whether it is known to go by this strategy."""
        known = [id for id, each in self._segments.items() if each.strategy == strategy]
        return np.isin(stamps.segment, known)

    def marks(self, stamps: Stamps) -> Times:
        """The watermark at each element, from its own strategy alone."""
        marks = stamps.mark.copy()
        for id in np.unique(stamps.segment).tolist():
            if id >= 0:
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
            known &= stamps.segment < 0
        less = np.where(stamps.segment < 0, 0, (bound or 0) + 1)
        marks: Times = np.where(known, stamps.mark - np.where(known, less, 0), MIN_TIME)
        return marks

    def own_marks(self, watermarks: Times, segments: Times, strategy: str) -> Times:
        """The marks of elements that have these watermarks, the other way round."""
        bound = self._bounds.get(strategy) or 0
        known = (watermarks != MIN_TIME) & (segments >= 0)
        marks: Times = watermarks + np.where(known, bound + 1, 0)
        return marks

    def partitions(self, stamps: Stamps, strategy: str) -> Times:
        """For each element, the partition a strategy has it in.

        `UNPLACED` if it is in none, and that of `ASIDE` if it was fed back.
        """
        waited_for = self.epoch.partitions.get(strategy, {})
        ids, which = np.unique(stamps.segment, return_inverse=True)
        found = np.full(len(ids), UNPLACED, np.int64)
        for i, id in enumerate(ids.tolist()):
            segment = self.segment(id)
            if id == FED_BACK:
                found[i] = ASIDE[0]
            elif segment is not None and len(waited_for) < 2:
                found[i] = next(iter(waited_for), WHOLE)
            elif segment is not None and segment.partition in waited_for:
                found[i] = segment.partition
        partitions: Times = found[which]
        return partitions

    def places(self, stamps: Stamps) -> Times:
        """Where the segment of each element is among all, to be compared with others."""
        return self._compared(stamps, [segment.place for segment in self._segments_of(stamps)])

    def order(self, stamps: Stamps, marks: Times, by_key: Callable[[], Times] | None = None) -> Any:
        """The positions of elements in the order in which they are to be processed.

        Where elements have one place, `by_key` gives a number for each, by which they come. Then
        those come first that a lower task gives.
        """
        segments = self._segments_of(stamps)
        givers = self._compared(stamps, [segment.giver for segment in segments])
        columns = [givers, stamps.row, self.places(stamps), marks]
        order = np.lexsort(columns)
        same = [column[order][1:] == column[order][:-1] for column in columns]
        if not np.all(same, axis=0).any():
            return order
        # Numbers of what is given out are below zero, and go down from task to task.
        tasks = np.where(stamps.segment < 0, -stamps.segment, 0)
        return np.lexsort((tasks, *([] if by_key is None else [by_key()]), *columns))

    def _segments_of(self, stamps: Stamps) -> list[Segment]:
        ids = np.unique(stamps.segment).tolist()
        return [self.segment(id) or Segment(id, "", ()) for id in ids]

    def _compared(self, stamps: Stamps, of_segments: list[Any]) -> Times:
        """A number for each element, which compares as what its segment has does."""
        numbered = {each: number for number, each in enumerate(sorted(set(of_segments)))}
        numbers = np.array([numbered[each] for each in of_segments], np.int64)
        _, which = np.unique(stamps.segment, return_inverse=True)
        return numbers[which]

    def last_place(self, strategies: Iterable[str]) -> Place:
        """After all elements of some strategies, at whatever watermark it is."""
        return (*max(map(strategy_place, strategies), default=()), LAST)

    def _base(self, id: int) -> tuple[int, int | None]:
        """What is known of the time at a segment without looking into it."""
        segment = self._segments[id]
        uid = segment.strategy
        partition = segment.partition
        base = max(
            self.epoch.greatest.get(uid, MIN_TIME),
            self.epoch.partitions.get(uid, {}).get(partition, MIN_TIME),
        )
        for other in self._segments.values():
            if (other.strategy, other.partition) == (uid, partition):
                base = max(base, other.greatest if other.place < segment.place else MIN_TIME)
        self._bases[id] = base, self._bounds[uid]
        return self._bases[id]

    def _combined(
        self, strategies: Sequence[str], greatest: Mapping[str, int], idle: tuple[str, ...]
    ) -> int:
        active = [uid for uid in strategies if uid not in idle] or strategies
        return min(
            (watermark_of(greatest.get(uid, MIN_TIME), self._bounds.get(uid)) for uid in active),
            default=MIN_TIME,
        )

    def _id(self, number: int) -> int:
        return self._first_id | number
