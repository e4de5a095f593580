"""Operators that go by time: those that give timestamps, and functions with timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.core.errors import ElementTypeError, StateError
from turnback.program.plan import Operator
from turnback.program.time import MAX_TIME, MIN_TIME, TimeDomain, TimestampAssigner
from turnback.program.timers import EVENT_TIMERS, PROCESSING_TIMERS
from turnback.state.backend import KeyedStateBackend
from turnback.state.waiting import WaitingState
from turnback.types.columns import Batch, stream_columns
from turnback.worker.elements import element_functions
from turnback.worker.message import user_error
from turnback.worker.ordering import Cause, OrderedRunner, TimedOutput
from turnback.worker.runners import KeyedContext, Runner
from turnback.worker.time import NOWHERE, TaskTime, Times


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
        assert operator.type is not None
        self._kept = [name for name, _ in stream_columns(operator.type)]
        self._keeps_all = len(self._kept) == len(stream_columns(operator.input_type))

    def process(self, batch: Batch) -> Batch | None:
        if not len(batch):
            return None
        times = self._read(batch)
        if self._keeps_all:
            stamped = batch.copy() if batch.stamps is not None else batch
        else:
            assert self.operator.type is not None
            stamped = Batch(self.operator.type, batch.arrow.select(self._kept))
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


class TimerRunner(OrderedRunner):
    """A function with timers: those that are due fire before each element."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend, time, element_functions(operator))
        self._event: WaitingState = self.states[EVENT_TIMERS]
        self._processing: WaitingState = self.states[PROCESSING_TIMERS]
        self.context = TimerContext(backend, time, self._event, self._processing)
        self._element_watermark = self._mark = MIN_TIME
        """The watermark at the last element, and at what was given last."""
        self._cause: Cause = (NOWHERE, 0)

    def process_rest(self) -> Batch | None:
        context = self.context
        context.watermark, after = self.watermarks()
        self._element_watermark = self._mark = context.watermark
        out, self._cause = self.timed_output(), (NOWHERE, 0)
        now = self.time.epoch.now_ms
        self._processing.open(now)
        self._event.open(after)
        self._fire_processing(now, out)
        elements = self.in_order(after)
        row, due = None, self._event.due
        try:
            for mark, moment, key, row, function, cause in elements:
                if due and due[0][0] <= mark:
                    self._fire_event(mark, out)
                if mark > context.watermark:
                    context.watermark = mark
                self._element_watermark = self._mark = context.watermark
                self.backend.key, context.time, self._cause = key, moment, cause
                out.add(function(row, context), moment, context.watermark, cause)
        except Exception as e:
            raise self.failed(e, row) from e
        self._fire_event(after, out)
        context.watermark = max(context.watermark, after)
        self._fire_processing(now, out)
        return self.collected(out.collected, out.stamps())

    def next_timer(self) -> int | None:
        return self._processing.earliest()

    def _fire_event(self, upto: int, out: TimedOutput) -> None:
        while (due := self._event.take(upto)) is not None:
            time, key, _ = due
            self.context.watermark = max(self.context.watermark, time)
            # What it gives comes right before the watermark at which it is due. If it was due
            # when it was set, it comes after what set it: the last element, or another timer.
            if time > self._element_watermark or self._mark > self._element_watermark:
                self._mark = max(self._mark, time - 1)
                self._cause = out.end_of_watermark(key)
            self._fire(TimeDomain.EVENT_TIME, time, out, time, self._mark, self._cause)

    def _fire_processing(self, now: int, out: TimedOutput) -> None:
        while (due := self._processing.take(now)) is not None:
            mark = self.context.watermark
            self._fire(TimeDomain.PROCESSING_TIME, due[0], out, None, mark, (NOWHERE, 0))

    def _fire(
        self,
        domain: TimeDomain,
        time: int,
        out: TimedOutput,
        stamp: int | None,
        mark: int,
        cause: Cause,
    ) -> None:
        op, context = self.operator, self.context
        context.during(domain, time)
        try:
            out.add(op.function.on_timer(time, context), stamp, mark, cause)
        except Exception as e:
            name, key = f"{op.name}, on_timer", self.backend.key
            raise user_error(e, op.uid, name, key=key, timer=time) from e
