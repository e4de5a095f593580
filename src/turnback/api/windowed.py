"""Streams in windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnback.api.functions import as_function, checked_instance, name_of, returned_type
from turnback.core.errors import PlanError
from turnback.functions.aggregates import Aggregate
from turnback.functions.base import (
    AggregateFunction,
    Function,
    OutputTag,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from turnback.functions.event_time import Duration, as_milliseconds
from turnback.functions.operator_state import has_operator_state
from turnback.plan.graph import NodeKind, has_partitions, strategies_before
from turnback.timing.folded_windows import FoldedWindows
from turnback.timing.triggers import Evictor, Trigger
from turnback.timing.window_aggregation import plan_window_aggregation
from turnback.timing.window_operator import Folding, WindowOperator, WindowPlan
from turnback.timing.windows import TumblingEventTimeWindows, WindowAssigner
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo

if TYPE_CHECKING:
    from turnback.api.stream import DataStream, KeyedStream


class WindowedStream:
    """The elements of each key, in windows. What is done with a window makes a stream again."""

    def __init__(self, keyed: KeyedStream, assigner: WindowAssigner) -> None:
        if not isinstance(assigner, WindowAssigner):
            given = getattr(assigner, "__name__", type(assigner).__name__)
            raise PlanError(
                f"window takes windows such as TumblingEventTimeWindows.of(Time.minutes(5)), got "
                f"{given}"
            )
        self._keyed = keyed
        self._plan = WindowPlan(assigner, assigner.default_trigger(), keyed.type)

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Let windows fire when a trigger says so."""
        return self._with(trigger=checked_instance(trigger, Trigger, "trigger"))

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Remove elements before or after a window fires.

        Windows then keep all elements, also those that are reduced or aggregated when they fire.
        """
        return self._with(evictor=checked_instance(evictor, Evictor, "evictor"))

    def allowed_lateness(self, time_ms: int | Duration) -> WindowedStream:
        """Let windows take elements for so long after their end; each fires its window again."""
        given = Duration(time_ms) if type(time_ms) is int else time_ms
        return self._with(lateness_ms=as_milliseconds(given, "allowed_lateness"))

    def side_output_late_data(self, output_tag: OutputTag) -> WindowedStream:
        """Send elements that are too late for all their windows to a side output."""
        return self._with(late=checked_instance(output_tag, OutputTag, "side_output_late_data"))

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: WindowFunction | ProcessWindowFunction | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Combine the elements of a window; it keeps no more than their combination.

        Args:
            reduce_function: Combines two elements into one.
            window_function: Gets the combination; without it, that is what comes out.
            output_type: Of what the window function gives.
        """
        function = as_function(reduce_function, ReduceFunction, "reduce")
        folding = Folding(self._keyed.type, reduce=function)
        return self._apply(folding, window_function, output_type, self._keyed.type, reduce_function)

    def aggregate(
        self,
        aggregate_function: AggregateFunction | None = None,
        window_function: WindowFunction | ProcessWindowFunction | None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """Aggregate the elements of a window; it keeps no more than their accumulator.

        Instead of a function it takes declared aggregates: ``aggregate(views=count())``. They give
        one row per key and window: the columns of the key, ``window_start`` and ``window_end`` as
        timestamps, and the aggregates. Elements are then combined before the shuffle, on columns.

        Args:
            aggregate_function: Folds elements into an accumulator; its `merge` is for sessions and
                for sliding windows, which share what they have in common.
            window_function: Gets the result; without it, that is what comes out.
            accumulator_type: Type of the accumulator, which is what is stored.
            output_type: Type of the result, or of what the window function gives.
            **aggregates: By the names that they have in the output.
        """
        if aggregates:
            given = (aggregate_function, window_function, accumulator_type, output_type)
            return self._declared(given, aggregates)
        if not isinstance(aggregate_function, AggregateFunction):
            raise PlanError(
                f"aggregate takes an AggregateFunction, or aggregates by name such as n=count(), "
                f"got {type(aggregate_function).__name__}"
            )
        if accumulator_type is None:
            accumulator_type = returned_type(aggregate_function.create_accumulator)
        if accumulator_type is None or accumulator_type is Any:
            raise PlanError("aggregate needs accumulator_type: the type of what is stored")
        folding = Folding(as_type(accumulator_type), aggregate=aggregate_function)
        if output_type is None and window_function is None:
            output_type = returned_type(aggregate_function.get_result)
        return self._apply(folding, window_function, output_type, None, aggregate_function)

    def process(
        self, process_window_function: ProcessWindowFunction, output_type: Any = None
    ) -> DataStream:
        """Give all elements of a window to a function."""
        given = process_window_function
        function = checked_instance(given, ProcessWindowFunction, "process")
        return self._apply(None, function, output_type, None, function)

    def apply(self, window_function: WindowFunction, output_type: Any = None) -> DataStream:
        """Give all elements of a window to a function."""
        function = checked_instance(window_function, WindowFunction, "apply")
        return self._apply(None, function, output_type, None, function)

    def _declared(self, given: Sequence[Any], aggregates: Mapping[str, Aggregate]) -> DataStream:
        if any(each is not None for each in given):
            raise PlanError(
                "aggregate takes either an AggregateFunction, with what belongs to it, or "
                "aggregates by name such as n=count(); an aggregate cannot be called "
                "aggregate_function, window_function, accumulator_type or output_type"
            )
        keyed = self._keyed
        declared = plan_window_aggregation(self._plan, keyed._key, aggregates)
        if declared.combined is not None and self._can_combine(aggregates):
            return keyed._combined(*declared.combined)
        return self._run(declared.plan, declared.type, self.aggregate)

    def _can_combine(self, aggregates: Mapping[str, Aggregate]) -> bool:
        """Whether elements can be aggregated as they come, and need not wait for others.

        Partitions are not in step with each other. An element that is ahead still falls into its
        window, but not into some of several, and not behind those that are to come before it.
        """
        node = self._keyed._node
        assigner = self._plan.assigner
        if len(strategies_before(node)) > 1:
            return False
        in_order = any(aggregate.in_order for aggregate in aggregates.values())
        tumbling = isinstance(assigner, TumblingEventTimeWindows)
        return not has_partitions(node) or (tumbling and not in_order)

    def _with(self, **changes: Any) -> WindowedStream:
        changed = WindowedStream(self._keyed, self._plan.assigner)
        changed._plan = replace(self._plan, **changes)
        return changed

    def _apply(
        self,
        folding: Folding | None,
        function: Any,
        output_type: Any,
        default: TypeInfo | None,
        named_after: Any,
    ) -> DataStream:
        if function is not None:
            checked_instance(function, (WindowFunction, ProcessWindowFunction), "window_function")
            default = None
        if output_type is None and default is None:
            raise PlanError("windows need output_type: the type of what comes out of them")
        for each in (named_after, function):
            if has_operator_state(each):
                raise PlanError(
                    f"{type(each).__name__} is a CheckpointedFunction, but functions of windows "
                    f"have no operator state; keep it in a process function before or after"
                )
        plan = replace(self._plan, folding=folding, function=function)
        type_ = default if output_type is None else as_type(output_type)
        assert type_ is not None
        return self._run(plan, type_, named_after)

    def _run(self, plan: WindowPlan, type_: TypeInfo, named_after: Any) -> DataStream:
        function: Function = FoldedWindows.of(plan) or WindowOperator(plan)
        keyed = self._keyed
        stream = keyed._add(NodeKind.KEYED_PROCESS, named_after, function, type_, keyed._key)
        return stream.name(name_of(named_after))
