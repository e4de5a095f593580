"""Which functions go by time, and the state in which timers and windows wait for theirs."""

from __future__ import annotations

from typing import Any, NamedTuple

from turnback.program.descriptors import WaitingStateDescriptor
from turnback.program.folded_windows import PaneFunction
from turnback.program.functions import TimerFunction
from turnback.program.graph import NodeKind
from turnback.program.plan import Operator
from turnback.program.window_join import WindowJoinOperator
from turnback.program.window_operator import TIMER_NAMES, WindowOperator, for_any_window
from turnback.types.typeinfo import ListTypeInfo, RowTypeInfo, Types

EVENT_TIMERS = "timers.event"
PROCESSING_TIMERS = "timers.processing"
AHEAD = "timers.ahead"
"""Elements that wait for a slower stream or partition; see `ahead_name`."""


class Rank(NamedTuple):
    """The elements of one input that go by one watermark strategy."""

    input: int
    strategy: str


def ranks(operator: Operator) -> tuple[Rank, ...]:
    """In which order elements come that have the same watermark: by input, then by strategy.

    It has to be some order that does not depend on when they arrive.
    """
    # The second input of a broadcast waits for nothing.
    inputs = operator.inputs[: 1 if operator.kind is NodeKind.BROADCAST_PROCESS else None]
    return tuple(Rank(number, uid) for number, each in enumerate(inputs) for uid in each.strategies)


def ahead_name(rank: int) -> str:
    """The name of the state in which elements of a rank wait: ``timers.ahead2`` and so on."""
    return AHEAD if rank == 0 else f"{AHEAD}{rank + 1}"


def has_timers(function: Any) -> bool:
    """Whether a function has an `on_timer` of its own."""
    timed = isinstance(function, TimerFunction)
    return timed and type(function).on_timer is not TimerFunction.on_timer


def goes_by_time(operator: Operator) -> bool:
    """Whether something may happen when time passes, without an element."""
    timed = has_timers(operator.function) or isinstance(operator.function, PaneFunction)
    return timed or is_behind_shuffle(operator)


def is_behind_shuffle(operator: Operator) -> bool:
    """Whether it gives timestamps to elements that may have to wait for others before."""
    return operator.kind is NodeKind.TIMESTAMPS and operator.key is not None


def _timers(function: Any, name: str) -> WaitingStateDescriptor:
    if isinstance(function, WindowOperator | WindowJoinOperator):
        return WaitingStateDescriptor(name, TIMER_NAMES, migrate=for_any_window)
    return WaitingStateDescriptor(name, Types.BOOLEAN())


def timed_states(operator: Operator) -> dict[str, WaitingStateDescriptor]:
    """The states that an operator has for what waits for its time, by name."""
    function = operator.function
    if isinstance(function, PaneFunction):
        states = [function.state()]
    elif is_behind_shuffle(operator):
        states = []
    elif has_timers(function):
        states = [_timers(function, EVENT_TIMERS), _timers(function, PROCESSING_TIMERS)]
    else:
        return {}
    in_order = not isinstance(function, PaneFunction) or function.in_order
    for number, rank in enumerate(ranks(operator) if in_order else ()):
        # Of elements with one watermark those of later ranks come last, so they can have to wait
        # even for a stream of the same strategy.
        several = number > 0 or len(operator.strategies) > 1
        if "" not in operator.strategies and (several or operator.inputs[rank.input].partitioned):
            element = operator.inputs[rank.input].type
            parts = Types.LONG(), element, Types.LIST(Types.LONG())
            waiting = RowTypeInfo(("time", "element", "place"), parts)
            states.append(WaitingStateDescriptor(ahead_name(number), ListTypeInfo(waiting)))
    return {state.name: state for state in states}
