"""Which functions have timers, and the state that timers are kept in."""

from __future__ import annotations

from typing import Any

from turnback.program.descriptors import WaitingStateDescriptor
from turnback.program.functions import KeyedProcessFunction
from turnback.program.plan import Operator
from turnback.types.typeinfo import ListTypeInfo, RowTypeInfo, Types

EVENT_TIMERS = "timers.event"
PROCESSING_TIMERS = "timers.processing"
AHEAD = "timers.ahead"
"""Elements that wait for a slower stream."""


def has_timers(function: Any) -> bool:
    """Whether a function has an `on_timer` of its own."""
    own = getattr(type(function), "on_timer", KeyedProcessFunction.on_timer)
    return own is not KeyedProcessFunction.on_timer


def timer_states(operator: Operator) -> dict[str, WaitingStateDescriptor]:
    """The states that an operator has for its timers, by name."""
    if not has_timers(operator.function):
        return {}
    states = [
        WaitingStateDescriptor(EVENT_TIMERS, Types.BOOLEAN()),
        WaitingStateDescriptor(PROCESSING_TIMERS, Types.BOOLEAN()),
    ]
    if "" not in operator.strategies and len(operator.strategies) > 1:
        assert operator.input_type is not None
        waiting = RowTypeInfo(("time", "element"), (Types.LONG(), operator.input_type))
        states.append(WaitingStateDescriptor(AHEAD, ListTypeInfo(waiting)))
    return {state.name: state for state in states}
