"""Runs windows: a function with timers that keeps the contents of every window of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnback.core.errors import PlanError
from turnback.program.descriptors import StateDescriptor
from turnback.program.functions import (
    Function,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
    user_function,
)
from turnback.program.graph import OutputTag
from turnback.program.time import MAX_TIME, TimeDomain
from turnback.program.triggers import Evictor, Trigger, TriggerResult
from turnback.program.window_state import (
    MERGING,
    NAMED_IN_WINDOW,
    WindowedStateDescriptor,
    WindowStates,
    WindowStateStore,
)
from turnback.program.windows import GLOBAL_WINDOW, TimeWindow, WindowAssigner
from turnback.types.typeinfo import RowTypeInfo, TypeInfo, Types

WINDOWS = "windows"
ELEMENTS = "window.elements"
TRIGGERS = "window.triggers"
ALARMS = "window.alarms"
_WINDOW = RowTypeInfo(("start", "end"), (Types.LONG(), Types.LONG()))
_POSITION = RowTypeInfo(("start", "end", "number"), (Types.LONG(),) * 3)
_ALARM = RowTypeInfo(("time", "domain", "start", "end"), (Types.LONG(),) * 4)


class Emissions(list[tuple[int, Iterable[Any] | None]]):
    """Elements to be given out, with the event time that they have."""


@dataclass(frozen=True)
class Folding:
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
            merged, method = self.reduce.reduce(one, other), "reduce"
        else:
            merged, method = self.aggregate.merge(one, other), "merge"
        if merged is None and (one is not None or other is not None):
            raise merged_to_nothing(self.aggregate or self.reduce, method)
        return merged

    def result(self, held: Any) -> Any:
        return held if self.aggregate is None else self.aggregate.get_result(held)


@dataclass(frozen=True)
class WindowPlan:
    """Everything a window operator is made of.

    Attributes:
        folding: How elements are folded; None to keep them all.
        function: A `ProcessWindowFunction` or `WindowFunction`; None to give out the contents.
        lateness_ms: How long after its end a window takes further elements.
        late: Where elements go that are later than that; None drops them.
    """

    assigner: WindowAssigner
    trigger: Trigger
    element_type: TypeInfo
    evictor: Evictor | None = None
    folding: Folding | None = None
    function: ProcessWindowFunction | WindowFunction | None = None
    lateness_ms: int = 0
    late: OutputTag | None = None

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
    """Keeps windows, fires them when their trigger says so, and forgets them after their time."""

    def __init__(self, plan: WindowPlan) -> None:
        self._plan = plan
        if plan.assigner.merges and not plan.trigger.can_merge():
            raise PlanError(
                f"{type(plan.trigger).__name__} cannot be used with windows that merge, such as "
                f"sessions"
            )

    def open(self, runtime_context: RuntimeContext) -> None:
        plan = self._plan
        for function in plan.functions():
            function.open(runtime_context)
        held = Types.LONG() if plan.folding is None else plan.folding.type
        definition = None if plan.folding is None else plan.folding.definition
        self._windows = runtime_context.get_map_state(
            WindowedStateDescriptor(WINDOWS, _WINDOW, held).defined_by(definition)
        )
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
        else:
            element = RowTypeInfo(("time", "element"), (Types.LONG(), plan.element_type))
            self._elements = runtime_context.get_map_state(
                WindowedStateDescriptor(ELEMENTS, _POSITION, element)
            )

    def close(self) -> None:
        for function in self._plan.functions():
            function.close()

    def process_element(self, value: Any, ctx: Any) -> Emissions:
        plan, service = self._plan, ctx.timer_service()
        by_event_time = plan.assigner.is_event_time
        time = ctx.timestamp() if by_event_time else service.current_processing_time()
        if time is None:
            if plan.assigner.assign_windows(None, 0) != [GLOBAL_WINDOW]:
                raise missing_timestamps(plan.assigner)
            time = 0
        out = Emissions()
        watermark = service.current_watermark()
        is_late = True
        for window in plan.assigner.assign_windows(value, time):
            if plan.assigner.merges:
                window = self._merged(window, ctx)
            if by_event_time and self._gone_at(window) <= watermark:
                self._forget(window, ctx)
                continue
            is_late = False
            self._add(window, time, value)
            trigger_context = _Context(self, window, ctx)
            result = plan.trigger.on_element(value, time, window, trigger_context)
            self._act(result, window, ctx, out)
            self._register(self._gone_at(window), ctx)
        if is_late and plan.late is not None:
            out.append((time, [(plan.late, value)]))
        return out

    def on_timer(self, timestamp: int, ctx: Any) -> Emissions:
        plan, out = self._plan, Emissions()
        is_event = ctx.time_domain() is TimeDomain.EVENT_TIME
        on_time = plan.trigger.on_event_time if is_event else plan.trigger.on_processing_time
        domain = ctx.time_domain().value
        for window in self._known():
            alarm = (timestamp, domain, *window)
            if self._alarms.contains(alarm):
                self._alarms.remove(alarm)
                result = on_time(timestamp, window, _Context(self, window, ctx))
                self._act(result, window, ctx, out)
            if is_event == plan.assigner.is_event_time and self._gone_at(window) == timestamp:
                if isinstance(plan.function, ProcessWindowFunction):
                    plan.function.clear(WindowContext(window, ctx.timer_service(), self._states))
                self._forget(window, ctx)
        return out

    def _known(self) -> list[TimeWindow]:
        """All windows of the key; of one that was purged its trigger may be left."""
        known = {tuple(each) for each in self._windows}
        known |= {tuple(each[2:]) for each in self._alarms}
        known |= {tuple(each[:2]) for each in self._triggers}
        if self._states is not None:
            known |= self._states.windows()
        return sorted(TimeWindow(*each) for each in known)

    # -- contents

    def _add(self, window: TimeWindow, time: int, value: Any) -> None:
        folding = self._plan.folding
        if folding is None:
            count = self._windows.get(tuple(window)) or 0
            self._elements.put((*window, count), (time, value))
            self._windows.put(tuple(window), count + 1)
            return
        before = self._windows.get(tuple(window))
        after = folding.first(value) if before is None else self._add_to(value, before)
        self._windows.put(tuple(window), after)

    def _held(self, window: TimeWindow) -> list[tuple[int, Any]]:
        count = self._windows.get(tuple(window)) or 0
        rows = [self._elements.get((*window, number)) for number in range(count)]
        return [(row[0], row[1]) for row in rows]

    def _act(self, result: TriggerResult, window: TimeWindow, ctx: Any, out: Emissions) -> None:
        if result.is_fire():
            out.append((window.max_timestamp(), self._fired(window, ctx)))
        if result.is_purge():
            self._purge(window)

    def _fired(self, window: TimeWindow, ctx: Any) -> list[Any]:
        plan, service = self._plan, ctx.timer_service()
        if not self._windows.contains(tuple(window)):
            return []
        key, context = ctx.get_current_key(), WindowContext(window, service, self._states)
        if plan.folding is not None:
            contents = [plan.folding.result(self._windows.get(tuple(window)))]
            return plan.apply(key, context, contents)
        elements: Sequence[tuple[int, Any]] = self._held(window)
        if plan.evictor is None:
            return plan.apply(key, context, [value for _, value in elements])
        by_event_time = plan.assigner.is_event_time
        now = context.current_watermark() if by_event_time else context.current_processing_time()
        elements = list(plan.evictor.evict_before(elements, window, now))
        given = plan.apply(key, context, [value for _, value in elements])
        self._replace(window, plan.evictor.evict_after(elements, window, now))
        return given

    def _replace(self, window: TimeWindow, elements: Iterable[tuple[int, Any]]) -> None:
        self._purge(window)
        for time, value in elements:
            self._add(window, time, value)

    def _purge(self, window: TimeWindow) -> None:
        if self._plan.folding is None:
            for number in range(self._windows.get(tuple(window)) or 0):
                self._elements.remove((*window, number))
        self._windows.remove(tuple(window))

    # -- time

    def _gone_at(self, window: TimeWindow) -> int:
        """When a window is forgotten."""
        if window == GLOBAL_WINDOW:
            return MAX_TIME
        lateness = self._plan.lateness_ms if self._plan.assigner.is_event_time else 0
        return min(window.max_timestamp() + lateness, MAX_TIME)

    def _register(self, time: int, ctx: Any) -> None:
        if time == MAX_TIME:
            return
        service = ctx.timer_service()
        if self._plan.assigner.is_event_time:
            service.register_event_time_timer(time)
        else:
            service.register_processing_time_timer(time)

    def _forget(self, window: TimeWindow, ctx: Any) -> None:
        self._plan.trigger.clear(window, _Context(self, window, ctx))
        self._purge(window)
        for entry in [each for each in self._triggers if each[:2] == window]:
            self._triggers.remove(entry)
        for entry in [each for each in self._alarms if each[2:] == window]:
            self._alarms.remove(entry)
        if self._states is not None:
            self._states.forget(window)

    def _merged(self, window: TimeWindow, ctx: Any) -> TimeWindow:
        """The window that a new one becomes together with those it touches."""
        known = [TimeWindow(*each) for each in self._windows]
        touching = sorted(each for each in known if each.intersects(window))
        whole = window
        for each in touching:
            whole = whole.cover(each)
        others = [each for each in touching if each != whole]
        if not others:
            return whole
        folding = self._plan.folding
        if folding is not None:
            held = [self._windows.get(tuple(each)) for each in touching]
            total = held[0]
            for each in held[1:]:
                total = folding.merge(total, each)
            self._windows.put(tuple(whole), total)
        else:
            elements = [each for old in touching for each in self._held(old)]
            self._replace(whole, elements)
        context = _Context(self, whole, ctx, others)
        self._plan.trigger.on_merge(whole, context)
        for old in others:
            self._forget(old, ctx)
        return whole


def merged_to_nothing(function: Any, method: str) -> PlanError:
    """The error for a function that takes two values of a window and returns None."""
    name = type(user_function(function)).__name__
    return PlanError(
        f"{name}.{method} returned None, so what it was given would be lost. The parts of sliding "
        f"windows and of sessions are merged by it: return the merged value"
    )


def missing_timestamps(assigner: WindowAssigner) -> PlanError:
    """The error that elements without timestamps are met with."""
    return PlanError(
        f"{type(assigner).__name__} needs timestamps, and the elements have none: put "
        f"assign_timestamps_and_watermarks(...) before key_by"
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
        self._service.register_event_time_timer(time)
        self._operator._alarms.put((time, TimeDomain.EVENT_TIME.value, *self._window), True)

    def register_processing_time_timer(self, time: int) -> None:
        self._service.register_processing_time_timer(time)
        self._operator._alarms.put((time, TimeDomain.PROCESSING_TIME.value, *self._window), True)

    def delete_event_time_timer(self, time: int) -> None:
        self._operator._alarms.remove((time, TimeDomain.EVENT_TIME.value, *self._window))

    def delete_processing_time_timer(self, time: int) -> None:
        self._operator._alarms.remove((time, TimeDomain.PROCESSING_TIME.value, *self._window))

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return WindowStateStore(self._operator._triggers, self._window).any_state(state_descriptor)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        into = self.get_partitioned_state(state_descriptor)
        for window in self._merged:
            store = WindowStateStore(self._operator._triggers, window)
            into.absorb(store.any_state(state_descriptor))
