"""Operators that process the elements of an epoch at its end, in the order of watermarks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from turnback.functions.event_time import MAX_TIME, MIN_TIME, within_reach
from turnback.plan.plan import AHEAD, Operator, Rank, has_to_wait, ranks, timed_states
from turnback.state.backend import KeyedStateBackend
from turnback.state.time_order import TimeOrderedState
from turnback.timing.window_operator import TimedResults
from turnback.values.columns import Batch
from turnback.worker.event_time import FED_BACK, FIRST, NOWHERE, Place, Stamps, TaskTime, Times
from turnback.worker.output import Collected
from turnback.worker.runners import KeyedRunner, times_of
from turnback.worker.tolerance import ElementFunction

_CHUNK = 8192


OutputPosition = tuple[int, int]
"""The segment and the row of what is made from an element."""
_UNKNOWN: OutputPosition = (NOWHERE, 0)

Element = tuple[int, int | None, Any, Any, Any, OutputPosition]
"""The watermark at an element, its time, its key, itself, the function it is for, and where
what is made from it belongs.

Plain tuples, because there is one for every element.
"""


Ordered = tuple[Batch, Times]
"""Elements, and the watermark at each of them."""


class OrderedRunner(KeyedRunner):
    """Base of operators of one keyed input or two that go by event time.

    They process the elements of an epoch at its end, when the watermark at each of them is known,
    and in the order of these watermarks. So what comes out does not depend on where epochs end.
    With several watermark strategies or partitions upstream, elements that are ahead of the slowest
    wait in the state. At one watermark elements come in the order of their ranks: by input, then by
    strategy; and then by partition. They wait until no more can come that belong before them. The
    state knows them by their input and the uid of their strategy, so they are processed whatever
    becomes of the streams that they wait for.
    """

    def __init__(
        self,
        operator: Operator,
        backend: KeyedStateBackend,
        time: TaskTime,
        functions: Sequence[ElementFunction | None],
    ) -> None:
        super().__init__(operator, backend)
        self.time = time
        self._functions = functions
        self.states = {name: backend.register(d) for name, d in timed_states(operator).items()}
        self._ranks = ranks(operator)
        self._has_to_wait = [has_to_wait(operator, number) for number in range(len(self._ranks))]
        # Where a stream without watermarks takes part, nothing would ever be done with waiting.
        moves = not any(self._has_to_wait) or time.has_watermarks(operator.strategies)
        self._has_event_time = moves and "" not in operator.strategies
        self._gathered: list[list[tuple[int, Batch]]] = [[] for _ in operator.inputs]
        """The elements of each input, with the way on which they have come."""

    def begin(self) -> None:
        super().begin()
        self._gathered = [[] for _ in self.operator.inputs]

    def process(self, batch: Batch) -> Batch | None:
        self._gathered[0].append((self.time.way, batch))
        return None

    def process_second(self, batch: Batch) -> Batch | None:
        self._gathered[1].append((self.time.way, batch))
        return None

    def _take(self) -> list[list[Batch]]:
        """The elements of each input.

        Of what one element became on several ways, it must not matter which one is faster.
        """
        gathered = self._gathered
        self._gathered = [[] for _ in self.operator.inputs]
        return [[batch for _, batch in sorted(some, key=itemgetter(0))] for some in gathered]

    def watermarks(self) -> tuple[int, int]:
        """The watermark at the beginning and at the end of the epoch."""
        time = self.time
        strategies = self.operator.strategies
        uid = self.operator.uid
        if not self._has_event_time and not time.epoch.ended:
            return MIN_TIME, MIN_TIME
        return time.watermark_before(strategies, uid), time.watermark(strategies, uid)

    def take_gathered(self) -> list[Batch]:
        """The elements of the only input as they have come, after those that had to wait."""
        (batches,) = self._take()
        return [*chain.from_iterable(self._waited(0, MAX_TIME).values()), *batches]

    def whole_batches(self, after: int) -> list[Ordered] | None:
        """The same as `in_order` gives, in batches; None if they cannot be had so."""
        stamped = all(batch.stamps is not None for _, batch in self._gathered[0])
        if len(self._ranks) > 1 or not self._has_event_time or not stamped:
            return None
        (batches,) = self._take()
        waited = self._waited(0, after).get(0, [])
        return self._ready(0, waited, [batch for batch in batches if len(batch)], after)

    def in_order(self, after: int) -> Iterable[Element]:
        """The elements whose time has come, in the order of the watermarks at them."""
        inputs = [[batch for batch in batches if len(batch)] for batches in self._take()]
        if not self._has_event_time:
            return self._as_they_come(inputs)
        # What has no place in event time comes at once, and changes no other element's.
        without = [[batch for batch in batches if batch.stamps is None] for batches in inputs]
        inputs = [[batch for batch in batches if batch.stamps is not None] for batches in inputs]
        return chain(self._without_time(without), self._in_turn(inputs, after))

    def _in_turn(self, inputs: list[list[Batch]], after: int) -> Iterable[Element]:
        waited: dict[int, list[Batch]] = {}
        for number in range(len(inputs)):
            waited |= self._waited(number, after)
        if len(self._ranks) == 1:
            return self.elements(self._ready(0, waited.get(0, []), inputs[0], after))
        ready: list[Element] = []
        for number, rank in enumerate(self._ranks):
            new = self._of_rank(inputs[rank.input], rank)
            ordered = self._ready(number, waited.get(number, []), new, after)
            ready += self.elements(ordered, rank.input)
        ready.sort(key=itemgetter(0))  # keeps the order of ranks
        return ready

    def elements(self, ordered: Iterable[Ordered], input: int = 0) -> Iterator[Element]:
        """The elements of batches, one after the other."""
        read_keys = self.key_readers[input]
        function = self._functions[input]
        for batch, marks in ordered:
            columns = marks.tolist(), times_of(batch), read_keys(batch), batch.rows
            positions = self.positions(batch, input)
            yield from zip(*columns, repeat(function, len(batch)), positions, strict=True)

    def positions(self, batch: Batch, input: int = 0) -> Iterable[OutputPosition]:
        """Where what is made from the elements of a batch belongs."""
        stamps = batch.stamps
        if stamps is None:
            return repeat(_UNKNOWN, len(batch))
        given = {id: self._given(id, input) for id in np.unique(stamps.segment).tolist()}
        segments = map(given.__getitem__, stamps.segment.tolist())
        return zip(segments, stamps.row.tolist(), strict=True)

    def _given(self, segment: int, input: int) -> int:
        known = self.time.segment(segment)
        if known is None:
            return FED_BACK if segment == FED_BACK else NOWHERE
        place = (*self._prefix(input), *known.place)
        return self.time.given(place, self.operator.id, known.partition)

    def _as_they_come(self, inputs: list[list[Batch]]) -> Iterator[Element]:
        for number, new in enumerate(inputs):
            waited = self._waited(number, MAX_TIME)
            batches = [*chain.from_iterable(waited[rank] for rank in sorted(waited)), *new]
            yield from self._at_once(batches, number)

    def _without_time(self, inputs: list[list[Batch]]) -> Iterator[Element]:
        for number, batches in enumerate(inputs):
            yield from self._at_once(batches, number)

    def _at_once(self, batches: list[Batch], input: int) -> Iterator[Element]:
        marks = [np.full(len(batch), MIN_TIME, np.int64) for batch in batches]
        return self.elements(zip(batches, marks, strict=True), input)

    def _of_rank(self, batches: list[Batch], rank: Rank) -> list[Batch]:
        """The elements of a rank; if nobody knows their strategy, they are of the last one."""
        strategies = self.operator.inputs[rank.input].strategies
        if len(strategies) == 1:
            return batches
        parts = []
        for batch in batches:
            mine = self.time.of_strategy(batch.stamps, rank.strategy)
            if rank.strategy == strategies[-1]:
                others = [self.time.of_strategy(batch.stamps, uid) for uid in strategies[:-1]]
                mine = ~np.any(others, axis=0)
            if mine.any():
                part = Batch(batch.type, batch.arrow.filter(pa.array(mine)))
                part.stamps = batch.stamps.take(mine)
                parts.append(part)
        return parts

    def _ordered(self, rank: int, waited: list[Batch], new: list[Batch]) -> list[Ordered]:
        """The elements of a rank in the order of the watermarks at them.

        No new one is below the watermark that the operator has reached, as those of a stream would
        be that was added later: else it would matter whether others that waited for it come in the
        same epoch. What has waited keeps its own, also if a stream that it waited for is gone.
        Where elements may wait, those that were made from one come by key, as they would then.
        """
        before, _ = self.watermarks()
        marks = [self.time.marks(batch.stamps) for batch in waited]
        marks += [np.maximum(self.time.marks(batch.stamps), before) for batch in new]
        batches = [*waited, *new]
        if batches:
            stamps = Stamps.join([batch.stamps for batch in batches])
            numbers = partial(self._key_numbers, batches, self._ranks[rank].input)
            by_key = numbers if self._has_to_wait[rank] else None
            order = self.time.order(stamps, np.concatenate(marks), by_key)
            if (np.diff(order) < 0).any():
                batches, marks = _reordered(batches, marks, order)
        return list(zip(batches, marks, strict=True))

    def _key_numbers(self, batches: list[Batch], input: int) -> Times:
        """A number for the key of each element, in the order in which the state has keys."""
        keys = chain.from_iterable(map(self.key_readers[input], batches))
        encoded = [location[1] for location in self.backend.locate_all(keys)]
        numbered = {each: number for number, each in enumerate(sorted(set(encoded)))}
        return np.array([numbered[each] for each in encoded], np.int64)

    def _ready(self, rank: int, waited: list[Batch], new: list[Batch], after: int) -> list[Ordered]:
        """The elements of a rank whose time has come, in order; the others are kept."""
        ordered = self._ordered(rank, waited, new)
        if not self._has_to_wait[rank]:
            return ordered
        limit = self._limit(rank, after)
        due = []
        for batch, marks in ordered:
            count = int(np.searchsorted(marks, max(limit, MIN_TIME), side="right"))
            count = count if limit >= MIN_TIME else 0
            if count < len(batch):
                self._keep(rank, _part(batch, count, len(batch)), marks[count:])
            if count:
                due.append((_part(batch, 0, count), marks[:count]))
        return due

    def _limit(self, rank: int, after: int) -> int:
        """Up to which watermark elements of a rank are processed."""
        time = self.time
        own = self._ranks[rank].strategy
        earlier = [each.strategy for each in self._ranks[:rank]]
        if time.has_partitions(own):
            earlier.append(own)  # at one watermark, those of another partition may come first
        if not time.is_idle(self.operator.strategies):
            earlier = [uid for uid in earlier if not time.is_idle((uid,))]
        if time.epoch.ended or not earlier:
            return after
        return min(after, time.watermark(earlier) - 1)

    def _waited(self, input: int, after: int) -> dict[int, list[Batch]]:
        """Elements of an input that have waited, up to a watermark, by their rank.

        Those whose strategy is gone are of the last one of their input, and come before others of
        it that have the same watermark: of these there may always be more to come.
        """
        ahead: TimeOrderedState | None = self.states.get(AHEAD[input])
        if ahead is None:
            return {}
        ranks = {rank.strategy: i for i, rank in enumerate(self._ranks) if rank.input == input}
        last = max(ranks.values())
        rows: defaultdict[int, list[Any]] = defaultdict(list)
        stamps: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        ahead.open(after)
        while (due := ahead.take(after)) is not None:
            mark, _, waiting = due
            for time, row, place, strategy in waiting:
                rank = ranks.get(strategy, last)
                if place and strategy not in ranks:
                    place = [FIRST, *place]
                rows[rank].append(row)
                # Older versions gave what global windows gave the end of time.
                known = MIN_TIME if time is None else within_reach(time)
                stamps[rank].append((known, mark, *self._waited_at(place)))
        batches: dict[int, list[Batch]] = {}
        for rank, some in rows.items():
            batch = Batch(self.operator.inputs[input].type, some)
            batch.stamps = Stamps(*np.array(stamps[rank], np.int64).T)
            batches[rank] = [batch]
        return batches

    def _keep(self, rank: int, batch: Batch, marks: Times) -> None:
        """Let elements wait."""
        input, strategy = self._ranks[rank]
        ahead: TimeOrderedState = self.states[AHEAD[input]]
        keys = self.key_readers[input](batch)
        segments = batch.stamps.segment.tolist()
        rows = batch.stamps.row.tolist()
        columns = marks.tolist(), times_of(batch), keys, batch.rows, segments, rows
        together: defaultdict[tuple[int, Any], list[Any]] = defaultdict(list)
        for mark, time, key, element, segment, row in zip(*columns, strict=True):
            together[mark, key].append((time, element, self._place(segment, row), strategy))
        for (mark, self.backend.key), elements in together.items():
            ahead.put_aside(mark, [*(ahead.get(mark) or ()), *elements])

    def _place(self, segment: int, row: int) -> list[int] | None:
        """Where an element that has to wait is; no numbers if it was fed back, None if unknown."""
        if segment == FED_BACK:
            return []
        known = self.time.segment(segment)
        return None if known is None else [*known.place, row, known.giver]

    def _waited_at(self, place: list[int] | None) -> OutputPosition:
        if place is None:
            return _UNKNOWN
        if not place:
            return FED_BACK, 0
        *place, row, giver = place
        return self.time.given(tuple(place), giver), row

    def _prefix(self, input: int) -> Place:
        """At one watermark, elements of the first input come before those of the second."""
        return (input,) if len(self.operator.inputs) > 1 and self._has_event_time else ()

    def timed_output(self) -> TimedOutput:
        """For what the operator gives in this epoch."""
        operator = self.operator
        place = self.time.last_place(operator.strategies)
        place = (*self._prefix(len(operator.inputs) - 1), *place)
        last = self.time.given(place, operator.id)
        return TimedOutput(self.collect(), self.backend, last)


class TimedOutput:
    """What a function gives, with the time, watermark and place of what it was made from.

    Args:
        last: The segment of what is made from no element, but comes at the end of a watermark.
    """

    def __init__(self, collected: Collected, backend: KeyedStateBackend, last: int) -> None:
        self.collected = collected
        self._backend = backend
        self._last = last
        self._times: list[int] = []
        self._marks: list[int] = []
        self._positions: list[OutputPosition] = []

    def add(
        self, elements: Iterable[Any] | None, time: int | None, mark: int, at: OutputPosition
    ) -> None:
        if elements is None:
            return
        if type(elements) is TimedResults:
            for own_time, some in elements:
                self.add(some, own_time, mark, at)
            return
        self.collected.add(elements, self.number_for(time, mark, at))

    def number_for(self, time: int | None, mark: int, at: OutputPosition) -> int:
        """A number for elements of this time and place, which come at this watermark."""
        self._times.append(MIN_TIME if time is None else within_reach(time))
        self._marks.append(mark)
        self._positions.append(at)
        return len(self._times) - 1

    def end_of_watermark(self, key: Any) -> OutputPosition:
        """Where what a key gives at the end of a watermark belongs: after elements, by key."""
        return self._last, key_orders(self._backend, [key])[0]

    def stamps(self) -> Stamps:
        segments, rows = np.array(self._positions, np.int64).reshape(-1, 2).T
        times = np.array(self._times, np.int64)
        marks = np.array(self._marks, np.int64)
        return Stamps(times, marks, segments, rows)


def key_orders(backend: KeyedStateBackend, keys: Iterable[Any]) -> list[int]:
    """Some order of keys, the same in all tasks, as a number for each."""
    return [xxh3_64_intdigest(location[1]) >> 1 for location in backend.locate_all(keys)]


def _part(batch: Batch, start: int, end: int) -> Batch:
    """Some of the elements of a batch, one after the other."""
    if end - start == len(batch):
        return batch
    part = Batch(batch.type, batch.arrow.slice(start, end - start))
    part.stamps = batch.stamps.take(slice(start, end))
    return part


def _reordered(
    batches: list[Batch], marks: list[Times], order: Any
) -> tuple[list[Batch], list[Times]]:
    """The same elements in another order."""
    every = np.concatenate(marks)
    stamps = Stamps.join([batch.stamps for batch in batches]).take(order)
    schema = batches[-1].arrow.schema
    tables = [pa.Table.from_batches([batch.arrow]).cast(schema) for batch in batches]
    table = pa.concat_tables(tables).take(pa.array(order))
    every = every[order]
    start = 0
    parts = []
    ordered = []
    for data in table.to_batches(max_chunksize=_CHUNK):
        end = start + data.num_rows
        part = Batch(batches[0].type, data)
        part.stamps = stamps.take(slice(start, end))
        parts.append(part)
        ordered.append(every[start:end])
        start = end
    return parts, ordered
