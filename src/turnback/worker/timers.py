"""Operators that go by time: those that give timestamps, and functions with timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from turnback.core.errors import ElementTypeError, StateError
from turnback.program.plan import Operator
from turnback.program.time import MAX_TIME, MIN_TIME, TimeDomain, TimestampAssigner
from turnback.program.timers import AHEAD, EVENT_TIMERS, PROCESSING_TIMERS, timer_states
from turnback.program.window_operator import Emissions
from turnback.state.backend import KeyedStateBackend
from turnback.state.waiting import WaitingState
from turnback.types.columns import Batch, stream_columns
from turnback.worker.elements import ElementFunction, element_functions
from turnback.worker.message import user_error
from turnback.worker.output import Collected
from turnback.worker.runners import KeyedContext, KeyedRunner, Runner, times_of
from turnback.worker.time import Stamps, TaskTime, Times

_CHUNK = 8192


class TimestampsRunner(Runner):
    """Gives elements their timestamps, by a watermark strategy."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self._time = time
        assert operator.input_type is not None
        assigner = operator.function.assigner
        if isinstance(assigner, TimestampAssigner):
            self._read: Callable[[Batch], Times] = self._by_function
        else:
            names = [name for name, _ in stream_columns(operator.input_type)]
            self._column = names.index(assigner)
            self._read = self._by_column

    def process(self, batch: Batch) -> Batch | None:
        if not len(batch):
            return None
        times = self._read(batch)
        stamped = batch.copy() if batch.stamps is not None else batch
        stamped.stamps = self._time.stamp(self.operator.uid, times)
        return stamped

    def _by_column(self, batch: Batch) -> Times:
        column = batch.arrow.column(self._column)
        if column.null_count:
            raise self._without("null in the column", self.operator.function.assigner)
        if not pa.types.is_timestamp(column.type):
            numbers: Times = column.to_numpy().astype(np.int64)
            return numbers
        micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
        times: Times = micros.to_numpy() // 1000
        return times

    def _by_function(self, batch: Batch) -> Times:
        op, row, times = self.operator, None, []
        extract, stamps = op.function.assigner.extract_timestamp, batch.stamps
        before = [MIN_TIME] * len(batch) if stamps is None else stamps.time.tolist()
        try:
            for row, known in zip(batch.rows, before, strict=True):
                times.append(extract(row, known))
        except Exception as e:
            raise user_error(e, op.uid, "extract_timestamp", element=row) from e
        for row, time in zip(batch.rows, times, strict=True):
            if type(time) is not int or not MIN_TIME < time < MAX_TIME:
                raise self._without(f"{time!r:.40} from extract_timestamp for", f"{row!r:.80}")
        return np.array(times, np.int64)

    def _without(self, what: str, where: str) -> ElementTypeError:
        op = self.operator
        return ElementTypeError(
            f"operator {op.uid!r} ({op.name}): an element has no timestamp: {what} {where}. "
            f"Timestamps are whole milliseconds since 1970; filter such elements out before"
        )


class TimerContext(KeyedContext):
    """The context of an element or a timer, and the `TimerService` of a function with timers."""

    __slots__ = ("_clock", "_domain", "_event", "_processing", "watermark")

    def __init__(
        self,
        backend: KeyedStateBackend,
        time: TaskTime,
        event: WaitingState,
        processing: WaitingState,
    ) -> None:
        super().__init__(backend, self)
        self.watermark = MIN_TIME
        self._clock = time
        self._event = event
        self._processing = processing
        self._domain: TimeDomain | None = None

    def during(self, domain: TimeDomain, time: int) -> None:
        """Become the context of a timer."""
        self._domain, self.time = domain, time

    def time_domain(self) -> TimeDomain:
        assert self._domain is not None, "only on_timer has a time domain"
        return self._domain

    def current_processing_time(self) -> int:
        return self._clock.epoch.now_ms

    def current_watermark(self) -> int:
        return self.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._event.put(_checked(timestamp), True)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._processing.put(_checked(timestamp), True)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._event.remove(_checked(timestamp))

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._processing.remove(_checked(timestamp))


def _checked(timestamp: Any) -> int:
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise StateError(
            f"a timer needs whole milliseconds since 1970, got {timestamp!r:.40}; "
            f"int(time.timestamp() * 1000) makes them of a datetime"
        )
    return min(max(timestamp, MIN_TIME + 1), MAX_TIME)


class _Element(NamedTuple):
    """An element with its time, the watermark at it, its key, and the function it is for."""

    mark: int
    time: int | None
    key: Any
    row: Any
    function: ElementFunction


class TimerRunner(KeyedRunner):
    """A function with timers, of one keyed input or two.

    It processes the elements of an epoch at its end, when the watermark at each of them is known:
    in the order of these watermarks, and before each of them the timers that are due. So what comes
    out does not depend on where epochs end. With several watermark strategies upstream, elements
    that are ahead of the slowest wait in the state. At one watermark the elements of the first
    input come before those of the second, which wait until no more of the first can come.
    """

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend)
        self._time = time
        self._functions = element_functions(operator)
        states = {name: backend.register(d) for name, d in timer_states(operator).items()}
        self._event: WaitingState = states[EVENT_TIMERS]
        self._processing: WaitingState = states[PROCESSING_TIMERS]
        self._ahead: list[WaitingState | None] = [states.get(name) for name in AHEAD]
        self._waits = any(state is not None for state in self._ahead)
        # Where a stream without watermarks takes part, nothing would ever be done with waiting.
        moves = not self._waits or time.has_watermarks(operator.strategies)
        self._has_event_time = moves and "" not in operator.strategies
        self.context = TimerContext(backend, time, self._event, self._processing)
        self._gathered: list[list[Batch]] = [[] for _ in operator.inputs]

    def begin(self) -> None:
        super().begin()
        self._gathered = [[] for _ in self.operator.inputs]

    def process(self, batch: Batch) -> Batch | None:
        self._gathered[0].append(batch)
        return None

    def process_second(self, batch: Batch) -> Batch | None:
        self._gathered[1].append(batch)
        return None

    def process_rest(self) -> Batch | None:
        op, time, context = self.operator, self._time, self.context
        gathered, self._gathered = self._gathered, [[] for _ in op.inputs]
        before, after = time.watermark_before(op.strategies), time.watermark(op.strategies)
        if not self._has_event_time and not time.epoch.ended:
            before = after = MIN_TIME
        context.watermark = before
        out = _Output(self.collect())
        now = time.epoch.now_ms
        self._processing.open(now)
        self._event.open(after)
        self._fire_processing(now, out)
        elements = self._in_order(gathered, after)
        row, due = None, self._event.due
        try:
            for mark, moment, key, row, function in elements:
                if due and due[0][0] <= mark:
                    self._fire_event(mark, out)
                if mark > context.watermark:
                    context.watermark = mark
                self.backend.key, context.time = key, moment
                out.add(function(row, context), moment, context.watermark)
        except Exception as e:
            raise self.failed(e, row) from e
        self._fire_event(after, out)
        context.watermark = max(context.watermark, after)
        self._fire_processing(now, out)
        return self.collected(out.collected, out.stamps())

    def next_timer(self) -> int | None:
        """When the next timer by the clock is due."""
        return self._processing.earliest()

    def _fire_event(self, upto: int, out: _Output) -> None:
        while (due := self._event.take(upto)) is not None:
            self.context.watermark = max(self.context.watermark, due[0])
            self._fire(TimeDomain.EVENT_TIME, due[0], out, due[0], due[0] - 1)

    def _fire_processing(self, now: int, out: _Output) -> None:
        while (due := self._processing.take(now)) is not None:
            self._fire(TimeDomain.PROCESSING_TIME, due[0], out, None, self.context.watermark)

    def _fire(
        self, domain: TimeDomain, time: int, out: _Output, stamp: int | None, mark: int
    ) -> None:
        op, context = self.operator, self.context
        context.during(domain, time)
        try:
            out.add(op.function.on_timer(time, context), stamp, mark)
        except Exception as e:
            name, key = f"{op.name}, on_timer", self.backend.key
            raise user_error(e, op.uid, name, key=key, timer=time) from e

    def _in_order(self, gathered: list[list[Batch]], after: int) -> Iterable[_Element]:
        """The elements whose time has come, in the order of the watermarks at them."""
        inputs = [[batch for batch in batches if len(batch)] for batches in gathered]
        stamped = all(batch.stamps is not None for batches in inputs for batch in batches)
        if not self._has_event_time or not stamped:
            return self._as_they_come(inputs)
        if not self._waits:
            return self._ordered(inputs[0], 0)
        ready: list[_Element] = []
        for number, batches in enumerate(inputs):
            limit = self._limit(number, after)
            ready += self._waited(number, limit)
            ready += self._ready(self._ordered(batches, number), number, limit)
        ready.sort(key=lambda element: element.mark)  # keeps the order of inputs
        return ready

    def _as_they_come(self, inputs: list[list[Batch]]) -> Iterator[_Element]:
        for number, batches in enumerate(inputs):
            marks = [np.full(len(batch), MIN_TIME, np.int64) for batch in batches]
            yield from self._elements(batches, marks, number)

    def _ordered(self, batches: list[Batch], input: int) -> Iterator[_Element]:
        """New elements of an input in the order of the watermarks at them."""
        marks = [self._time.marks(batch.stamps) for batch in batches]
        if batches:
            places = np.concatenate([self._time.places(batch.stamps) for batch in batches])
            order = np.lexsort((places, np.concatenate(marks)))
            if (np.diff(order) < 0).any():
                batches, marks = _reordered(batches, marks, order)
        return self._elements(batches, marks, input)

    def _elements(self, batches: list[Batch], marks: list[Times], input: int) -> Iterator[_Element]:
        read_keys, function = self.key_readers[input], self._functions[input]
        for batch, each in zip(batches, marks, strict=True):
            columns = each.tolist(), times_of(batch), read_keys(batch), batch.rows
            yield from map(_Element._make, zip(*columns, [function] * len(batch), strict=True))

    def _limit(self, input: int, after: int) -> int:
        """Up to which watermark elements of an input are processed."""
        time, op = self._time, self.operator
        first = op.inputs[0].strategies
        is_idle = time.is_idle(first) and not time.is_idle(op.strategies)
        if input == 0 or time.epoch.ended or is_idle:
            return after
        return min(after, time.watermark(first) - 1)

    def _waited(self, input: int, limit: int) -> Iterator[_Element]:
        """Elements of an input that have waited until now."""
        ahead, function = self._ahead[input], self._functions[input]
        if ahead is not None:
            ahead.open(limit)
            while (due := ahead.take(limit)) is not None:
                mark, key, waiting = due
                yield from (_Element(mark, time, key, row, function) for time, row in waiting)

    def _ready(self, elements: Iterable[_Element], input: int, limit: int) -> Iterator[_Element]:
        """Those of some elements whose time has come; keeps the others."""
        ahead = self._ahead[input]
        for element in elements:
            if ahead is None or element.mark <= limit:
                yield element
            else:
                self.backend.key = element.key
                waiting = ahead.get(element.mark) or []
                ahead.put(element.mark, [*waiting, (element.time, element.row)])


class _Output:
    """What a function gives, with the time and the watermark of what it was made from."""

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self._times: list[int] = []
        self._marks: list[int] = []

    def add(self, elements: Iterable[Any] | None, time: int | None, mark: int) -> None:
        if elements is None:
            return
        if type(elements) is Emissions:
            for own_time, some in elements:
                self.add(some, own_time, mark)
            return
        self.collected.add(elements, len(self._times))
        self._times.append(MIN_TIME if time is None else time)
        self._marks.append(mark)

    def stamps(self) -> Stamps:
        return Stamps.of(np.array(self._times, np.int64), np.array(self._marks, np.int64))


def _reordered(
    batches: list[Batch], marks: list[Times], order: Any
) -> tuple[list[Batch], list[Times]]:
    """The same elements in another order."""
    every = np.concatenate(marks)
    stamps = Stamps.join([batch.stamps for batch in batches]).take(order)
    table = pa.Table.from_batches([batch.arrow for batch in batches]).take(pa.array(order))
    every, start = every[order], 0
    parts, ordered = [], []
    for data in table.to_batches(max_chunksize=_CHUNK):
        end = start + data.num_rows
        part = Batch(batches[0].type, data)
        part.stamps = stamps.take(slice(start, end))
        parts.append(part)
        ordered.append(every[start:end])
        start = end
    return parts, ordered
