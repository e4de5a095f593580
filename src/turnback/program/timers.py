"""Which functions go by time, and the state in which timers and windows wait for theirs."""

from __future__ import annotations

from typing import Any

from turnback.program.descriptors import WaitingStateDescriptor
from turnback.program.folded_windows import PaneFunction
from turnback.program.functions import TimerFunction
from turnback.program.graph import NodeKind
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


def goes_by_time(function: Any) -> bool:
    """Whether something may happen when time passes, without an element."""
    return has_timers(function) or isinstance(function, PaneFunction)


def timed_states(operator: Operator) -> dict[str, WaitingStateDescriptor]:
    """The states that an operator has for what waits for its time, by name."""
    function = operator.function
    if isinstance(function, PaneFunction):
        states = [function.state()]
    elif has_timers(function):
        states = [
            WaitingStateDescriptor(EVENT_TIMERS, Types.BOOLEAN()),
            WaitingStateDescriptor(PROCESSING_TIMERS, Types.BOOLEAN()),
        ]
    else:
        return {}
    broadcast = operator.kind is NodeKind.BROADCAST_PROCESS  # its second input waits for nothing
    for number, input in enumerate(operator.inputs[: 1 if broadcast else None]):
        # At equal watermarks the second input comes last, so it can have to wait in any case.
        if "" not in operator.strategies and (number > 0 or len(operator.strategies) > 1):
            waiting = RowTypeInfo(("time", "element"), (Types.LONG(), input.type))
            states.append(WaitingStateDescriptor(AHEAD[number], ListTypeInfo(waiting)))
    return {state.name: state for state in states}
