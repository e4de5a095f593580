"""Functions with timers: those that are due fire between elements, in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnback.core.errors import StateError
from turnback.functions.event_time import MAX_TIME, MIN_TIME, TimeDomain
from turnback.plan.plan import Operator
from turnback.plan.timers import EVENT_TIMERS, PROCESSING_TIMERS
from turnback.state.backend import KeyedStateBackend
from turnback.state.waiting import WaitingState
from turnback.timing.windows import GLOBAL_WINDOW
from turnback.values.columns import Batch
from turnback.worker.element_context import KeyedContext
from turnback.worker.elements import element_functions
from turnback.worker.event_time import TaskTime
from turnback.worker.message import user_error
from turnback.worker.ordering import Cause, OrderedRunner, TimedOutput
from turnback.worker.stamps import NOWHERE


class TimerContext(KeyedContext):
    """The context of an element or a timer, and the `TimerService` of a function with timers.

    Attributes:
        watermark: How far event time has come.
        last_timers: While event time runs to its end, the last timer that each key had before;
            None at other times.
        clock_timer: The time of the timer by the clock that fires; None at other times.
    """

    __slots__ = (
        "_clock", "_domain", "_event", "_names", "_processing",
        "clock_timer", "last_timers", "watermark",
    )  # fmt: skip

    def __init__(
        self,
        backend: KeyedStateBackend,
        time: TaskTime,
        event: WaitingState,
        processing: WaitingState,
    ) -> None:
        super().__init__(backend, self)
        self.watermark = MIN_TIME
        self.last_timers: dict[Any, int] | None = None
        self.clock_timer: int | None = None
        self._clock = time
        self._event = event
        self._processing = processing
        self._domain: TimeDomain | None = None
        self._names: Any = None

    def during(self, domain: TimeDomain, time: int, names: Any) -> None:
        """Become the context of a timer, and of what it holds."""
        self._domain = domain
        self.time = time
        self._names = names

    def time_domain(self) -> TimeDomain:
        assert self._domain is not None, "only on_timer has a time domain"
        return self._domain

    def timer_names(self) -> Sequence[Name]:
        """What the timer is for, if it was registered with `register_named`."""
        return self._names  # type: ignore[no-any-return]

    def current_processing_time(self) -> int:
        return self._clock.epoch.now_ms

    def current_watermark(self) -> int:
        return self.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._register(TimeDomain.EVENT_TIME, _checked(timestamp))

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._register(TimeDomain.PROCESSING_TIME, _checked(timestamp))

    def _register(self, domain: TimeDomain, time: int) -> None:
        if self._has_to_wait(domain, time):
            self._timers(domain).put_aside(time, True)
        else:
            self._timers(domain).put(time, True)

    def _has_to_wait(self, domain: TimeDomain, time: int) -> bool:
        """Whether a timer does not fire in this epoch, although it is due.

        One that registers itself again and again would never end.
        """
        if domain is TimeDomain.PROCESSING_TIME:
            return self.clock_timer is not None and time <= self.clock_timer
        return self.last_timers is not None and time > self._end_of_time(self.last_timers)

    def _end_of_time(self, last_timers: dict[Any, int]) -> int:
        """Up to when timers of the current key fire while event time runs to its end."""
        last = last_timers.get(self._backend.key, MIN_TIME)
        if self.time is not None and self.time <= last:
            return MAX_TIME  # it has waited, and may have one to follow it
        return max(last, self.watermark) if self.watermark < MAX_TIME else last

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._event.remove(_checked(timestamp))

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._processing.remove(_checked(timestamp))

    def register_named(self, domain: TimeDomain, timestamp: int, name: Name) -> None:
        """Register a timer that holds what it is for; for the timers of windows."""
        time = _checked(timestamp)
        self._timers(domain).add(time, name, aside=self._has_to_wait(domain, time))

    def delete_named(self, domain: TimeDomain, timestamp: int, name: Name) -> None:
        """Delete a timer as far as it is for this; nothing happens if it is not."""
        timers = self._timers(domain)
        time = _checked(timestamp)
        names = timers.get(time) or []
        if name not in names:
            return
        others = [each for each in names if each != name]
        if others:
            timers.put(time, others)
        else:
            timers.remove(time)

    def _timers(self, domain: TimeDomain) -> WaitingState:
        return self._event if domain is TimeDomain.EVENT_TIME else self._processing


Name = tuple[int, ...]
"""What a timer is for."""


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

    def begin(self) -> None:
        super().begin()
        self.context.last_timers = self.context.clock_timer = None

    def process_rest(self) -> Batch | None:
        context = self.context
        context.watermark, after = self.watermarks()
        self._element_watermark = self._mark = context.watermark
        out = self.timed_output()
        self._cause = (NOWHERE, 0)
        now = self.time.epoch.now_ms
        self._processing.open(now)
        self._event.open(after)
        self._fire_processing(now, out)
        elements = self.in_order(after)
        row = None
        due = self._event.due
        try:
            for mark, moment, key, row, function, cause in elements:
                if due and due[0][0] <= mark:
                    self._fire_event(mark, out)
                if mark > context.watermark:
                    context.watermark = mark
                self._element_watermark = self._mark = context.watermark
                self.backend.key = key
                context.time = moment
                self._cause = cause
                out.add(function(row, context), moment, context.watermark, cause)
        except Exception as e:
            raise self.failed(e, row) from e
        if self.time.epoch.ended:
            self._drain(out)
        else:
            self._fire_event(after, out)
        context.watermark = max(context.watermark, after)
        self._fire_processing(now, out)
        return self.collected(out.collected, out.stamps())

    def _drain(self, out: TimedOutput) -> None:
        """Let event time run to its end, which is where the last timer of each key was."""
        if self._has_event_time:
            self._fire_event(self.time.reached(self.operator.strategies, self.operator.uid), out)
        # Global windows end with time itself, which is no time that others could go on until.
        self.context.last_timers = self._event.last_due(GLOBAL_WINDOW.max_timestamp())
        self._fire_event(MAX_TIME, out)
        self.context.last_timers = None

    def next_timer(self) -> int | None:
        return self._processing.earliest()

    def _fire_event(self, upto: int, out: TimedOutput) -> None:
        while (due := self._event.take(upto)) is not None:
            time, key, names = due
            self.context.watermark = max(self.context.watermark, time)
            # What it gives comes right before the watermark at which it is due. If it was due
            # when it was set, it comes after what set it: the last element, or another timer.
            if time > self._element_watermark or self._mark > self._element_watermark:
                self._mark = max(self._mark, time - 1)
                self._cause = out.end_of_watermark(key)
            self._fire(TimeDomain.EVENT_TIME, time, names, out, time, self._mark, self._cause)

    def _fire_processing(self, now: int, out: TimedOutput) -> None:
        while (due := self._processing.take(now)) is not None:
            time, _, names = due
            self.context.clock_timer = time
            mark = self.context.watermark
            self._fire(TimeDomain.PROCESSING_TIME, time, names, out, None, mark, (NOWHERE, 0))
        self.context.clock_timer = None

    def _fire(
        self,
        domain: TimeDomain,
        time: int,
        names: Any,
        out: TimedOutput,
        stamp: int | None,
        mark: int,
        cause: Cause,
    ) -> None:
        op = self.operator
        context = self.context
        context.during(domain, time, names)
        try:
            out.add(op.function.on_timer(time, context), stamp, mark, cause)
        except Exception as e:
            name = f"{op.name}, on_timer"
            key = self.backend.key
            raise user_error(e, op.uid, name, key=key, timer=time) from e
