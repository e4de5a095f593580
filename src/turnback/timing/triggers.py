"""Triggers and evictors: when a window fires, and with which of its elements; PyFlink's names."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from turnback.errors import PlanError
from turnback.functions.descriptors import (
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from turnback.functions.event_time import Time, as_milliseconds
from turnback.values.typeinfo import Types

_COUNT = ReducingStateDescriptor[int]("count", operator.add, Types.LONG())
_NEXT = ValueStateDescriptor[int]("next", Types.LONG())


class TriggerResult(Enum):
    """What becomes of a window: whether it fires, and whether its contents go."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        return self.value[0]

    def is_purge(self) -> bool:
        return self.value[1]


class Trigger(ABC):
    """Decides when a window fires. It must not keep state in its own attributes."""

    class TriggerContext(Protocol):
        """Information about the current window, and access to the trigger's state."""

        def get_current_processing_time(self) -> int:
            """The clock's time, in milliseconds since 1970."""

        def get_current_watermark(self) -> int:
            """The current event time."""

        def register_processing_time_timer(self, time: int) -> None:
            """Register a timer that calls `on_processing_time` for this window."""

        def register_event_time_timer(self, time: int) -> None:
            """Register a timer that calls `on_event_time` for this window."""

        def delete_processing_time_timer(self, time: int) -> None:
            """Delete a timer of this window."""

        def delete_event_time_timer(self, time: int) -> None:
            """Delete a timer of this window."""

        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """A value or reducing state of this window, deleted with it."""

    class OnMergeContext(TriggerContext, Protocol):
        """The same for a window into which others were merged."""

        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge a reducing state of the merged windows into that of this one."""

    @abstractmethod
    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        """Called for every element that is added to a window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        """Called when a processing-time timer of the trigger fires."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        """Called when an event-time timer of the trigger fires."""

    def on_merge(self, window: Any, ctx: Any) -> None:
        """Called for a window into which others were merged; `ctx` is an `OnMergeContext`."""
        return

    def can_merge(self) -> bool:
        """Whether it can be used with windows that merge."""
        return True

    def clear(self, window: Any, ctx: Any) -> None:
        """Called when a window is deleted.

        Its state is deleted automatically, and remaining timers have no effect; a trigger that sets
        timers long after the end of windows should delete them here.
        """
        return


class _BaseTrigger(Trigger):
    """Base of the built-in triggers: a timer changes nothing, unless a subclass says so."""

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE


@dataclass(frozen=True)
class EventTimeTrigger(_BaseTrigger):
    """Fires once the watermark has passed the end of the window, and for each late element."""

    @staticmethod
    def create() -> EventTimeTrigger:
        return EventTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


@dataclass(frozen=True)
class ProcessingTimeTrigger(_BaseTrigger):
    """Fires when the clock has passed the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        return ProcessingTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


@dataclass(frozen=True)
class NeverTrigger(_BaseTrigger):
    """Never fires."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE


@dataclass(frozen=True)
class CountTrigger(_BaseTrigger):
    """Fires after every so many elements."""

    count: int

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        return CountTrigger(_count(window_size, "CountTrigger"))

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        seen = ctx.get_partitioned_state(_COUNT)
        seen.add(1)
        return self._if_full(seen)

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(_COUNT)

    def _if_full(self, seen: Any) -> TriggerResult:
        if seen.get() < self.count:
            return TriggerResult.CONTINUE
        seen.clear()
        return TriggerResult.FIRE


@dataclass(frozen=True)
class PurgingTrigger(Trigger):
    """Fires when another trigger does, and then removes what is in the window."""

    nested: Trigger

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        if not isinstance(nested_trigger, Trigger):
            raise PlanError(f"PurgingTrigger takes a trigger, got {nested_trigger!r:.60}")
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        return _purging(self.nested.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return _purging(self.nested.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return _purging(self.nested.on_event_time(time, window, ctx))

    def on_merge(self, window: Any, ctx: Any) -> None:
        self.nested.on_merge(window, ctx)

    def can_merge(self) -> bool:
        return self.nested.can_merge()

    def clear(self, window: Any, ctx: Any) -> None:
        self.nested.clear(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result


@dataclass(frozen=True)
class ContinuousEventTimeTrigger(_BaseTrigger):
    """Fires again and again while the watermark passes, and once at the end of the window."""

    interval_ms: int

    @staticmethod
    def of(interval: Time) -> ContinuousEventTimeTrigger:
        return ContinuousEventTimeTrigger(as_milliseconds(interval, "interval", least=1))

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        if ctx.get_partitioned_state(_NEXT).value() is None:
            self._set(timestamp - timestamp % self.interval_ms + self.interval_ms, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        if time != ctx.get_partitioned_state(_NEXT).value():
            return TriggerResult.CONTINUE
        self._set(time + self.interval_ms, window, ctx)
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return False

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())
        following = ctx.get_partitioned_state(_NEXT).value()
        if following is not None:
            ctx.delete_event_time_timer(following)

    def _set(self, time: int, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(_NEXT).update(time)
        if time < window.max_timestamp():
            ctx.register_event_time_timer(time)


@dataclass(frozen=True)
class ContinuousProcessingTimeTrigger(_BaseTrigger):
    """Fires again and again, by the clock."""

    interval_ms: int

    @staticmethod
    def of(interval: Time) -> ContinuousProcessingTimeTrigger:
        return ContinuousProcessingTimeTrigger(as_milliseconds(interval, "interval", least=1))

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        if ctx.get_partitioned_state(_NEXT).value() is None:
            now = ctx.get_current_processing_time()
            self._set(now - now % self.interval_ms + self.interval_ms, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        if time != ctx.get_partitioned_state(_NEXT).value():
            return TriggerResult.CONTINUE
        self._set(time + self.interval_ms, ctx)
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return False

    def clear(self, window: Any, ctx: Any) -> None:
        following = ctx.get_partitioned_state(_NEXT).value()
        if following is not None:
            ctx.delete_processing_time_timer(following)

    def _set(self, time: int, ctx: Any) -> None:
        ctx.get_partitioned_state(_NEXT).update(time)
        ctx.register_processing_time_timer(time)


def _count(given: Any, what: str) -> int:
    if type(given) is not int or given < 1:
        raise PlanError(f"{what} takes a whole number above 0, got {given!r:.40}")
    return given


Timestamped = tuple[int, Any]
"""The time of an element in a window, and the element."""


class Evictor:
    """Removes elements of a window before or after its function sees them."""

    def evict_before(
        self, elements: Sequence[Timestamped], window: Any, now: int
    ) -> Iterable[Timestamped]:
        """The elements that the function is to see; `now` is the time the window goes by."""
        return elements

    def evict_after(
        self, elements: Sequence[Timestamped], window: Any, now: int
    ) -> Iterable[Timestamped]:
        """The elements that stay in the window after it has fired."""
        return elements


@dataclass(frozen=True)
class CountEvictor(Evictor):
    """Keeps the newest elements only, so many of them."""

    count: int

    @staticmethod
    def of(max_count: int) -> CountEvictor:
        return CountEvictor(_count(max_count, "CountEvictor"))

    def evict_before(
        self, elements: Sequence[Timestamped], window: Any, now: int
    ) -> Iterable[Timestamped]:
        return elements[-self.count :]


@dataclass(frozen=True)
class TimeEvictor(Evictor):
    """Keeps elements only that are not much older than the newest one."""

    age_ms: int

    @staticmethod
    def of(window_size: Time) -> TimeEvictor:
        return TimeEvictor(as_milliseconds(window_size, "window_size", least=1))

    def evict_before(
        self, elements: Sequence[Timestamped], window: Any, now: int
    ) -> Iterable[Timestamped]:
        newest = max((time for time, _ in elements), default=0)
        return [each for each in elements if each[0] > newest - self.age_ms]
