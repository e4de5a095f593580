"""Which functions have timers, and the state that timers are kept in."""

from __future__ import annotations

from typing import Any

from turnback.program.descriptors import WaitingStateDescriptor
from turnback.program.functions import TimerFunction
from turnback.program.plan import Operator
from turnback.types.typeinfo import ListTypeInfo, RowTypeInfo, Types

EVENT_TIMERS = "timers.event"
PROCESSING_TIMERS = "timers.processing"
AHEAD = ("timers.ahead", "timers.ahead2")
"""Elements of each input that wait for a slower stream."""


def has_timers(function: Any) -> bool:
    """Whether a function has an `on_timer` of its own."""
    timed = isinstance(function, TimerFunction)
    return timed and type(function).on_timer is not TimerFunction.on_timer


def timer_states(operator: Operator) -> dict[str, WaitingStateDescriptor]:
    """The states that an operator has for its timers, by name."""
    if not has_timers(operator.function):
        return {}
    states = [
        WaitingStateDescriptor(EVENT_TIMERS, Types.BOOLEAN()),
        WaitingStateDescriptor(PROCESSING_TIMERS, Types.BOOLEAN()),
    ]
    for number, input in enumerate(operator.inputs):
        # At equal watermarks the second input comes last, so it can have to wait in any case.
        if "" not in operator.strategies and (number > 0 or len(operator.strategies) > 1):
            waiting = RowTypeInfo(("time", "element"), (Types.LONG(), input.type))
            states.append(WaitingStateDescriptor(AHEAD[number], ListTypeInfo(waiting)))
    return {state.name: state for state in states}
