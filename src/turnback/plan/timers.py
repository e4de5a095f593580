"""Which functions go by time, and the state in which timers and windows wait for theirs."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from turnback.functions.base import TimerFunction
from turnback.functions.descriptors import WaitingStateDescriptor
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator
from turnback.timing.folded_windows import PaneFunction
from turnback.timing.window_join import WindowJoinOperator
from turnback.timing.window_operator import TIMER_NAMES, WindowOperator, for_any_window
from turnback.values.typeinfo import ListTypeInfo, RowTypeInfo, Types

EVENT_TIMERS = "timers.event"
PROCESSING_TIMERS = "timers.processing"
AHEAD = ("ahead.input1", "ahead.input2")
"""Elements of each input that wait for a slower stream or partition."""
_AHEAD_BY_RANK = re.compile(r"timers\.ahead([1-9][0-9]*)?")
"""What these were called by older versions: one state for each rank, known by its position."""
_STRATEGY = Types.STRING()


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


def ahead_rank(state: str) -> int | None:
    """The number of the rank that a state of an older version has waiting elements of."""
    match = _AHEAD_BY_RANK.fullmatch(state)
    return int(match[1] or 1) - 1 if match else None


def has_to_wait(operator: Operator, rank: int) -> bool:
    """Whether elements of a rank may be ahead of others that belong before them."""
    # Of elements with one watermark those of later ranks come last, so they can have to wait
    # even for a stream of the same strategy.
    several = rank > 0 or len(operator.strategies) > 1
    partitioned = operator.inputs[ranks(operator)[rank].input].partitioned
    return "" not in operator.strategies and (several or partitioned)


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
    if in_order and any(operator.strategies):
        # Also where nothing has to wait: with an earlier version of the program it may have.
        for number in sorted({rank.input for rank in ranks(operator)}):
            parts = Types.LONG(), operator.inputs[number].type, Types.LIST(Types.LONG()), _STRATEGY
            waiting = RowTypeInfo(("time", "element", "place", "strategy"), parts)
            states.append(WaitingStateDescriptor(AHEAD[number], ListTypeInfo(waiting)))
    return {state.name: state for state in states}
