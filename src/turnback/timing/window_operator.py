"""Runs windows: a function with timers that keeps the contents of every window of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from turnback.errors import PlanError
from turnback.functions.base import (
    Function,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
    user_function,
)
from turnback.functions.descriptors import StateDescriptor
from turnback.functions.event_time import MAX_TIME, MIN_TIME, TimeDomain
from turnback.timing.triggers import Evictor, Trigger, TriggerResult
from turnback.timing.window_state import (
    MERGING,
    NAMED_IN_WINDOW,
    WindowedStateDescriptor,
    WindowStates,
    WindowStateStore,
)
from turnback.timing.windows import GLOBAL_WINDOW, TimeWindow, WindowAssigner
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

WINDOWS = "windows"
ELEMENTS = "window.elements"
TRIGGERS = "window.triggers"
ALARMS = "window.alarms"
PLACES = "window.places"
_WINDOW = RowTypeInfo(("start", "end"), (Types.LONG(), Types.LONG()))
TIMER_NAMES = Types.LIST(_WINDOW)
"""What a timer of windows holds: the windows that it is for."""
ANY_WINDOW = TimeWindow(MIN_TIME, MIN_TIME)
"""Stands for all windows of a key, in timers of versions that did not name them."""
_POSITION = RowTypeInfo(("start", "end", "number"), (Types.LONG(),) * 3)
_ALARM = RowTypeInfo(("time", "domain", "start", "end"), (Types.LONG(),) * 4)


def for_any_window(_: bool) -> list[TimeWindow]:
    """What a timer holds that was stored without the windows that it is for."""
    return [ANY_WINDOW]


class TimedResults(list[tuple[int, Iterable[Any] | None]]):
    """Elements to be given out, with the event time that they have."""


@dataclass(frozen=True)
class WindowAccumulator:
    """How a window keeps no more than one value of its elements.

    Attributes:
        type: Of that value.
        reduce: A `ReduceFunction`; or else
        aggregate: an `AggregateFunction`.
        definition: What makes that value, if it is known; see `StateDescriptor`.
    """

    type: TypeInfo
    reduce: Any = None
    aggregate: Any = None
    definition: Mapping[str, str] | None = None

    def first(self, value: Any) -> Any:
        if self.aggregate is None:
            return value
        return self.aggregate.add(value, self.aggregate.create_accumulator())

    def adder(self) -> Callable[[Any, Any], Any]:
        """A function that adds an element, which comes first, to a value."""
        if self.aggregate is not None:
            return self.aggregate.add  # type: ignore[no-any-return]
        reduce = self.reduce.reduce
        return lambda value, held: reduce(held, value)

    def merge(self, one: Any, other: Any) -> Any:
        if self.aggregate is None:
            merged = self.reduce.reduce(one, other)
            method = "reduce"
        else:
            merged = self.aggregate.merge(one, other)
            method = "merge"
        if merged is None and (one is not None or other is not None):
            raise merged_to_nothing(self.aggregate or self.reduce, method)
        return merged

    def result(self, held: Any) -> Any:
        return held if self.aggregate is None else self.aggregate.get_result(held)

    def result_of(self, values: Sequence[Any]) -> Any:
        """The result of some elements, of which there is at least one."""
        serializer = self._serializer
        held = self.first(values[0])
        add = self.adder()
        for value in values[1:]:
            # What functions are given has its declared type, as if it had been stored in between.
            held = add(value, serializer.decode(serializer.encode(held)))
        return self.result(serializer.decode(serializer.encode(held)))

    @cached_property
    def _serializer(self) -> Serializer:
        return Serializer(self.type)


@dataclass(frozen=True)
class WindowPlan:
    """Everything a window operator is made of.

    Attributes:
        evictor: What removes elements before or after a window fires; windows then keep them all.
        folding: How elements are folded, as they come or, with an evictor, when a window fires;
            None not to fold them.
        function: A `ProcessWindowFunction` or `WindowFunction`; None to give out the contents.
        lateness_ms: How long after its end a window takes further elements.
        late: Where elements go that are later than that; None drops them.
    """

    assigner: WindowAssigner
    trigger: Trigger
    element_type: TypeInfo
    evictor: Evictor | None = None
    folding: WindowAccumulator | None = None
    function: ProcessWindowFunction | WindowFunction | None = None
    lateness_ms: int = 0
    late: OutputTag | None = None

    @property
    def keeps_elements(self) -> bool:
        """Whether windows keep all their elements, and not one value of them."""
        return self.folding is None or self.evictor is not None

    def functions(self) -> list[Function]:
        """All functions of the user's, to be opened and closed."""
        folding = self.folding
        given = (self.function, *((folding.reduce, folding.aggregate) if folding else ()))
        return [each for each in given if isinstance(each, Function)]

    def apply(self, key: Any, context: WindowContext, contents: list[Any]) -> list[Any]:
        """What comes out of a window with these contents."""
        if isinstance(self.function, ProcessWindowFunction):
            return list(self.function.process(key, context, contents) or ())
        if self.function is not None:
            return list(self.function.apply(key, context.window(), contents) or ())
        return contents


class WindowContext:
    """What a `ProcessWindowFunction` knows of the window that fires."""

    def __init__(
        self, window: TimeWindow, service: Any, states: WindowStates | None = None
    ) -> None:
        self._window = window
        self._service = service
        self._states = states

    def window(self) -> TimeWindow:
        return self._window

    def current_processing_time(self) -> int:
        return self._service.current_processing_time()  # type: ignore[no-any-return]

    def current_watermark(self) -> int:
        return self._service.current_watermark()  # type: ignore[no-any-return]

    def window_state(self) -> WindowStateStore:
        assert self._states is not None, "a ProcessWindowFunction has them"
        return self._states.of_window(self._window)

    def global_state(self) -> WindowStateStore:
        assert self._states is not None, "a ProcessWindowFunction has them"
        return self._states.of_key()


class WindowOperator(KeyedProcessFunction):
    """Keeps windows, fires them when their trigger says so, and forgets them after their time.

    A window is known, which is an entry of `windows`, from its first element until it is
    forgotten, also while it is empty because it was purged. Timers name the windows that they are
    for, so however many windows are open, each is found without a search.

    The elements of a session stay where they are while it grows: under the bounds of the first
    window that it was, which `places` has.
    """

    def __init__(self, plan: WindowPlan) -> None:
        self._plan = plan
        by_event_time = plan.assigner.is_event_time
        self._domain = TimeDomain.EVENT_TIME if by_event_time else TimeDomain.PROCESSING_TIME
        if plan.assigner.merges and not plan.trigger.can_merge():
            raise PlanError(
                f"{type(plan.trigger).__name__} cannot be used with windows that merge, such as "
                f"sessions"
            )

    def stored_windows(self) -> WindowedStateDescriptor:
        """The state with an entry for each window: what it has come to, or how many elements."""
        plan = self._plan
        type_ = Types.LONG()
        # A count of elements could be taken for a sum of them, and the other way round.
        made_by = {"": "the elements of each window"}
        if plan.folding is not None and not plan.keeps_elements:
            type_ = plan.folding.type
            made_by = {"": "one value of each window", **(plan.folding.definition or {})}
        stored = WindowedStateDescriptor(WINDOWS, _WINDOW, type_)
        return stored.defined_as(plan.assigner.definition()).accumulated_by(made_by)

    def open(self, runtime_context: RuntimeContext) -> None:
        plan = self._plan
        for function in plan.functions():
            function.open(runtime_context)
        self._windows = runtime_context.get_map_state(self.stored_windows())
        self._triggers = runtime_context.get_map_state(
            WindowedStateDescriptor(TRIGGERS, NAMED_IN_WINDOW, Types.BYTES())
        )
        self._alarms = runtime_context.get_map_state(
            WindowedStateDescriptor(ALARMS, _ALARM, Types.BOOLEAN())
        )
        self._states: WindowStates | None = None
        if isinstance(plan.function, ProcessWindowFunction):
            refusal = MERGING if plan.assigner.merges else None
            self._states = WindowStates(runtime_context, refusal)
        if plan.folding is not None:
            self._add_to = plan.folding.adder()
        if plan.keeps_elements:
            element = RowTypeInfo(("time", "element"), (Types.LONG(), plan.element_type))
            self._elements = runtime_context.get_map_state(
                WindowedStateDescriptor(ELEMENTS, _POSITION, element)
            )
        if plan.keeps_elements and plan.assigner.merges:
            self._places = runtime_context.get_map_state(
                WindowedStateDescriptor(PLACES, _WINDOW, _WINDOW)
            )

    def close(self) -> None:
        for function in self._plan.functions():
            function.close()

    def process_element(self, value: Any, ctx: Any) -> TimedResults:
        plan = self._plan
        service = ctx.timer_service()
        by_event_time = plan.assigner.is_event_time
        time = ctx.timestamp() if by_event_time else service.current_processing_time()
        if time is None:
            if plan.assigner.assign_windows(None, 0) != [GLOBAL_WINDOW]:
                raise missing_timestamps(plan.assigner)
            time = 0
        out = TimedResults()
        watermark = service.current_watermark()
        is_taken = False
        for window in plan.assigner.assign_windows(value, time):
            if plan.assigner.merges:
                window = self._merged(window, ctx)
            if self._is_over(window, watermark):
                continue
            is_taken = True
            self._add(window, time, value)
            trigger_context = _Context(self, window, ctx)
            result = plan.trigger.on_element(value, time, window, trigger_context)
            self._act(result, window, ctx, out)
            self._register_timers(window, ctx)
        # An element may belong to no window at all, between windows that slide by more than their
        # size. As in Flink, it is late only if event time has passed it.
        is_late = by_event_time and not is_taken and time + plan.lateness_ms <= watermark
        if is_late and plan.late is not None:
            out.append((time, [(plan.late, value)]))
        return out

    def on_timer(self, timestamp: int, ctx: Any) -> TimedResults:
        plan = self._plan
        out = TimedResults()
        domain = ctx.time_domain()
        is_event = domain is TimeDomain.EVENT_TIME
        on_time = plan.trigger.on_event_time if is_event else plan.trigger.on_processing_time
        for window in self._windows_of_timer(timestamp, ctx):
            alarm = (timestamp, domain.value, *window)
            is_alarm = self._alarms.contains(alarm)
            if is_alarm:
                self._alarms.remove(alarm)
            if not self._is_known(window):
                continue  # its trigger has not deleted what it had set
            # Also if the trigger has set no timer for the end of the window: the one before an
            # upgrade may not have needed it.
            is_end = domain is self._domain and timestamp == window.max_timestamp()
            if is_alarm or is_end:
                result = on_time(timestamp, window, _Context(self, window, ctx))
                self._act(result, window, ctx, out)
            if domain is not self._domain:
                continue
            if self._gone_at(window) <= timestamp:
                if isinstance(plan.function, ProcessWindowFunction):
                    plan.function.clear(WindowContext(window, ctx.timer_service(), self._states))
                self._forget(window, ctx)
            else:
                # The timer may be from a time when the allowed lateness was less.
                self._register_timers(window, ctx)
        return out

    def _windows_of_timer(self, timestamp: int, ctx: Any) -> list[TimeWindow]:
        """The windows that a timer is for, in the order in which they are to be treated."""
        windows = {TimeWindow(*each) for each in ctx.timer_names()}
        if ANY_WINDOW in windows:
            windows.remove(ANY_WINDOW)
            windows |= self._all_windows()
            at = (timestamp, ctx.time_domain().value)
            windows |= {TimeWindow(*each[2:]) for each in self._alarms if tuple(each[:2]) == at}
        return sorted(windows)

    def _all_windows(self) -> set[TimeWindow]:
        """All windows of the key.

        Older versions did not keep windows that were purged: what is left of one tells of it.
        """
        found = {(each[0], each[1]) for each in self._windows}
        purged = {(each[0], each[1]) for each in self._triggers}
        if self._states is not None:
            purged |= self._states.windows()
        for window in purged - found - {GLOBAL_WINDOW}:
            self._put_empty(TimeWindow(*window))
        return {TimeWindow(*each) for each in found | purged}

    def _is_known(self, window: TimeWindow) -> bool:
        return window == GLOBAL_WINDOW or self._windows.contains(tuple(window))

    # -- contents

    def _add(self, window: TimeWindow, time: int, value: Any) -> None:
        plan = self._plan
        if plan.keeps_elements:
            count = self._windows.get(tuple(window)) or 0
            self._elements.put((*self._place(window), count), (time, value))
            self._windows.put(tuple(window), count + 1)
            return
        assert plan.folding is not None
        before = self._windows.get(tuple(window))
        after = plan.folding.first(value) if before is None else self._add_to(value, before)
        self._windows.put(tuple(window), after)

    def _held(self, window: TimeWindow) -> list[tuple[int, Any]]:
        count = self._windows.get(tuple(window)) or 0
        place = self._place(window)
        rows = [self._elements.get((*place, number)) for number in range(count)]
        return [(row[0], row[1]) for row in rows]

    def _place(self, window: TimeWindow) -> tuple[int, int]:
        """The window under which the elements of a window are."""
        if not self._plan.assigner.merges:
            return window
        return self._places.get(tuple(window)) or window

    def _act(self, result: TriggerResult, window: TimeWindow, ctx: Any, out: TimedResults) -> None:
        if result.is_fire():
            out.append((window.max_timestamp(), self._fired(window, ctx)))
        if result.is_purge():
            self._purge(window)

    def _fired(self, window: TimeWindow, ctx: Any) -> list[Any]:
        plan = self._plan
        service = ctx.timer_service()
        held = self._windows.get(tuple(window))
        if held is None or (plan.keeps_elements and held == 0):
            return []
        key = ctx.get_current_key()
        context = WindowContext(window, service, self._states)
        if plan.folding is not None and not plan.keeps_elements:
            return plan.apply(key, context, [plan.folding.result(held)])
        elements: Sequence[tuple[int, Any]] = self._held(window)
        if plan.evictor is None:
            return plan.apply(key, context, [value for _, value in elements])
        by_event_time = plan.assigner.is_event_time
        now = context.current_watermark() if by_event_time else context.current_processing_time()
        elements = list(plan.evictor.evict_before(elements, window, now))
        contents = [value for _, value in elements]
        if plan.folding is None:
            given = plan.apply(key, context, contents)
        elif contents:
            given = plan.apply(key, context, [plan.folding.result_of(contents)])
        else:
            given = []
        self._replace(window, plan.evictor.evict_after(elements, window, now))
        return given

    def _replace(self, window: TimeWindow, elements: Iterable[tuple[int, Any]]) -> None:
        self._purge(window)
        for time, value in elements:
            self._add(window, time, value)

    def _purge(self, window: TimeWindow) -> None:
        """Remove the contents of a window, which stays known until its time is over."""
        self._remove_elements(window)
        if window == GLOBAL_WINDOW:
            self._windows.remove(tuple(window))  # it is always known, and never over
        else:
            self._put_empty(window)

    def _put_empty(self, window: TimeWindow) -> None:
        self._windows.put(tuple(window), 0 if self._plan.keeps_elements else None)

    def _remove_elements(self, window: TimeWindow) -> None:
        if self._plan.keeps_elements:
            place = self._place(window)
            for number in range(self._windows.get(tuple(window)) or 0):
                self._elements.remove((*place, number))

    # -- time

    def _gone_at(self, window: TimeWindow) -> int:
        if window == GLOBAL_WINDOW:
            return MAX_TIME
        lateness = self._plan.lateness_ms if self._plan.assigner.is_event_time else 0
        return min(window.max_timestamp() + lateness, MAX_TIME)

    def _is_over(self, window: TimeWindow, watermark: int) -> bool:
        """Whether a window takes no more elements."""
        return self._plan.assigner.is_event_time and self._gone_at(window) <= watermark

    def cleanup_timer(self, window: TimeWindow) -> tuple[TimeDomain, int]:
        return self._domain, self._gone_at(window)

    def _register_timers(self, window: TimeWindow, ctx: Any) -> None:
        """Register when a window ends, unless that is past, and when it is forgotten."""
        service = ctx.timer_service()
        domain, gone_at = self.cleanup_timer(window)
        if gone_at == MAX_TIME:
            return
        service.register_named(domain, gone_at, tuple(window))
        end = window.max_timestamp()
        if end != gone_at and end > service.current_watermark():
            service.register_named(domain, end, tuple(window))

    def _forget(self, window: TimeWindow, ctx: Any) -> None:
        self._plan.trigger.clear(window, _Context(self, window, ctx))
        self._remove_elements(window)
        self._windows.remove(tuple(window))
        if self._plan.keeps_elements and self._plan.assigner.merges:
            self._places.remove(tuple(window))
        for entry in self._triggers.of_window(window):
            self._triggers.remove(entry)
        if self._states is not None:
            self._states.forget(window)
        domain, gone_at = self.cleanup_timer(window)
        for time in {gone_at, window.max_timestamp()}:
            ctx.timer_service().delete_named(domain, time, tuple(window))

    def _merged(self, window: TimeWindow, ctx: Any) -> TimeWindow:
        """The window that a new one becomes together with those it touches."""
        watermark = ctx.timer_service().current_watermark()
        known = [TimeWindow(*each) for each in self._windows.touching(window)]
        touching = [each for each in known if not self._is_over(each, watermark)]
        whole = window
        for each in touching:
            whole = whole.cover(each)
        others = [each for each in touching if each != whole]
        if not others:
            return whole
        if self._plan.keeps_elements:
            self._merge_elements(touching, whole)
        else:
            self._windows.put(tuple(whole), self._merged_value(touching))
        context = _Context(self, whole, ctx, others)
        self._plan.trigger.on_merge(whole, context)
        for old in others:
            self._forget(old, ctx)
        return whole

    def _merge_elements(self, windows: Sequence[TimeWindow], whole: TimeWindow) -> None:
        """Give the elements of some windows to one; those of the first stay where they are."""
        first, *others = windows
        place = self._place(first)
        count = self._windows.get(tuple(first)) or 0
        for window in others:
            elements = self._held(window)
            self._remove_elements(window)
            self._windows.put(tuple(window), 0)
            for number, element in enumerate(elements, start=count):
                self._elements.put((*place, number), element)
            count += len(elements)
        self._windows.put(tuple(first), 0)
        self._windows.put(tuple(whole), count)
        self._places.put(tuple(whole), tuple(place))

    def _merged_value(self, windows: Iterable[TimeWindow]) -> Any:
        """What some windows have come to together; None if all of them are empty."""
        folding = self._plan.folding
        assert folding is not None
        total = None
        for window in windows:
            value = self._windows.get(tuple(window))
            if total is None or value is None:
                total = value if total is None else total
            else:
                total = folding.merge(total, value)
        return total


def merged_to_nothing(function: Any, method: str) -> PlanError:
    """The error for a function that takes two values of a window and returns None."""
    name = type(user_function(function)).__name__
    return PlanError(
        f"{name}.{method} returned None, so its arguments would be lost. It merges the parts of "
        "sliding windows and of sessions: return the merged value"
    )


def missing_timestamps(assigner: WindowAssigner) -> PlanError:
    """The error that elements without timestamps are met with."""
    return PlanError(
        f"{type(assigner).__name__} needs timestamps, but the elements have none: call "
        "assign_timestamps_and_watermarks(...) before key_by"
    )


class _Context:
    """What a trigger gets; see `Trigger.TriggerContext`."""

    def __init__(
        self,
        operator: WindowOperator,
        window: TimeWindow,
        ctx: Any,
        merged: Sequence[TimeWindow] = (),
    ) -> None:
        self._operator = operator
        self._window = window
        self._service = ctx.timer_service()
        self._merged = merged

    def get_current_processing_time(self) -> int:
        return self._service.current_processing_time()  # type: ignore[no-any-return]

    def get_current_watermark(self) -> int:
        return self._service.current_watermark()  # type: ignore[no-any-return]

    def register_event_time_timer(self, time: int) -> None:
        self._register(TimeDomain.EVENT_TIME, time)

    def register_processing_time_timer(self, time: int) -> None:
        self._register(TimeDomain.PROCESSING_TIME, time)

    def delete_event_time_timer(self, time: int) -> None:
        self._delete(TimeDomain.EVENT_TIME, time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._delete(TimeDomain.PROCESSING_TIME, time)

    def _register(self, domain: TimeDomain, time: int) -> None:
        self._service.register_named(domain, time, tuple(self._window))
        self._operator._alarms.put((time, domain.value, *self._window), True)

    def _delete(self, domain: TimeDomain, time: int) -> None:
        alarm = (time, domain.value, *self._window)
        if not self._operator._alarms.contains(alarm):
            return
        self._operator._alarms.remove(alarm)
        if (domain, time) != self._operator.cleanup_timer(self._window):
            self._service.delete_named(domain, time, tuple(self._window))

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return WindowStateStore(self._operator._triggers, self._window).any_state(state_descriptor)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        into = self.get_partitioned_state(state_descriptor)
        for window in self._merged:
            store = WindowStateStore(self._operator._triggers, window)
            into.absorb(store.any_state(state_descriptor))
