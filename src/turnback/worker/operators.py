"""The operators of one partition of a level: their functions, opened, and the state they have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace

from turnback.core.errors import PlanError
from turnback.functions.base import (
    Function,
    KeyedBatchFunction,
    declared_states,
    user_function,
)
from turnback.plan.dead_letters import ErrorPolicy
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator
from turnback.plan.timers import has_timers
from turnback.state.backend import KeyedStateBackend
from turnback.state.subtasks import NoStore, OperatorStateBackend
from turnback.timing.folded_windows import FoldedWindows
from turnback.timing.window_aggregation import WindowAggregation, WindowCombination
from turnback.worker.async_calls import AsyncWaitRunner
from turnback.worker.batch_runners import CombineRunner, KeyedBatchRunner, MapBatchesRunner
from turnback.worker.broadcast import BroadcastRunner, NumberRunner, main_operator
from turnback.worker.context import TaskContext
from turnback.worker.event_time import TaskTime
from turnback.worker.folded_windows import FoldedWindowRunner
from turnback.worker.message import Order, user_error
from turnback.worker.operator_state import (
    Confirmed,
    OperatorStateContext,
    check_names,
    confirmed_before,
    initialize,
)
from turnback.worker.program import LevelProgram
from turnback.worker.runners import (
    FilterRunner,
    FlatMapRunner,
    FunctionRunner,
    KeyedFilterRunner,
    KeyedProcessRunner,
    MapRunner,
    PassingRunner,
    PlacingRunner,
    ReduceRunner,
    Runner,
)
from turnback.worker.timers import TimerRunner
from turnback.worker.timestamps import ShuffledTimestampsRunner, TimestampsRunner
from turnback.worker.tolerance import Tolerance
from turnback.worker.window_columns import WindowAggregationRunner, WindowCombineRunner


class OpenOperators:
    """The operators of one partition of a level.

    Functions are opened at once, those with operator state when that can be read.

    Attributes:
        operators: By node id, in the order data flows through them.
        backends: The keyed state of those that have a key.
        operator_backends: The state of the subtasks of those that have such state.
        runners: What runs them; none for sinks, nor where an operator has no subtask.
        ran: What its functions have run last, if they have run it to its end.
    """

    def __init__(self, program: LevelProgram, partition: int) -> None:
        self.program = program
        self.partition = partition
        self.operators = {op.id: op for op in _unshared(program.level.operators)}
        self.time = TaskTime(program.strategies)
        self.backends: dict[int, KeyedStateBackend] = {}
        self.operator_backends: dict[int, OperatorStateBackend] = {}
        self.runners: dict[int, Runner] = {}
        self.opened: list[Function] = []
        self.ran: Confirmed | None = None
        self._submitted = dict(self.operators)
        for operator in self._submitted.values():
            if operator.kind is not NodeKind.SINK:
                self._prepare(operator)

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()
        while self.opened:
            self.opened.pop().close()

    def backends_of(self, partition: int) -> list[KeyedStateBackend]:
        """Whose state is read and written in a partition."""
        own = [b for b in self.operator_backends.values() if partition < b.parallelism]
        for backend in own:
            backend.run_as(partition)
        return [*self.backends.values(), *own]

    def restore(self, order: Order) -> None:
        """Make functions with operator state anew, unless they have run the last epoch.

        The state is open already. They would otherwise hold what an epoch that does not count has
        left in them, or lack what another worker has done.
        """
        ran = self.ran
        self.ran = None
        if ran == confirmed_before(order, self.partition):
            return
        for id, backend in self.operator_backends.items():
            if self.partition < backend.parallelism:
                self._renew(id, order.epoch)

    def open_without_state(self) -> None:
        """Open functions with operator state as if there were none, to see what they ask for."""
        for id, backend in self.operator_backends.items():
            backend.begin(NoStore(), 0)
            self._renew(id, 1)

    def _prepare(self, operator: Operator) -> None:
        maximum = self.program.max_parallelism
        if operator.key is not None:
            backend = KeyedStateBackend(operator.uid, operator.key.codec(), maximum)
            self.backends[operator.id] = backend
        if operator.has_operator_state:
            own = OperatorStateBackend(operator.uid, operator.parallelism, maximum)
            self.operator_backends[operator.id] = own
        else:
            self._open(operator, 1)

    def _renew(self, id: int, epoch: int) -> None:
        before = self.operators[id].function
        if id in self.runners:
            self.runners.pop(id).close()
        if any(function is before for function in self.opened):
            self.opened = [function for function in self.opened if function is not before]
            before.close()
        operator = self._submitted[id]
        self.operators[id] = replace(operator, function=copy.deepcopy(operator.function))
        self._open(self.operators[id], epoch)
        self.runners[id].begin()

    def _open(self, operator: Operator, epoch: int) -> None:
        backend = self.backends.get(operator.id)
        own = self.operator_backends.get(operator.id)
        maximum = self.program.max_parallelism
        function = operator.function
        context = TaskContext(operator, lambda: self.partition, maximum, backend)
        if backend is not None:
            for attribute, descriptor in declared_states(function).items():
                user_function(function).__dict__[attribute] = context.register(descriptor)
        if own is not None:
            initialize(operator, OperatorStateContext(operator, own, context, epoch))
        if isinstance(function, Function):
            try:
                function.open(context)
            except PlanError:
                raise  # no restart would help
            except Exception as e:
                raise user_error(e, operator.uid, operator.name, where="open()") from e
            self.opened.append(function)
        context.is_open = False
        self.runners[operator.id] = _make_runner(operator, backend, self.time)
        if own is not None and backend is not None:
            check_names(operator.uid, backend.schemas(), own.schemas())


def _make_runner(operator: Operator, backend: KeyedStateBackend | None, time: TaskTime) -> Runner:
    if operator.on_error is not ErrorPolicy.FAIL:
        tolerance = Tolerance(operator, backend, time)
        runner = _make_runner(tolerance.operator(), backend, time)
        assert isinstance(runner, FunctionRunner)
        runner.tolerance = tolerance
        runner.has_sides = True
        return runner
    if operator.kind is NodeKind.TIMESTAMPS:
        if backend is not None:
            return ShuffledTimestampsRunner(operator, backend, time)
        return TimestampsRunner(operator, time)
    if operator.source_order.placed:
        return PlacingRunner(operator, time)
    if operator.kind is NodeKind.NUMBER:
        return NumberRunner(operator, time)
    if operator.kind is NodeKind.ASYNC_WAIT:
        return AsyncWaitRunner(operator, time)
    if operator.kind is NodeKind.BROADCAST_PROCESS:
        main = _make_runner(main_operator(operator), backend, time)
        return BroadcastRunner(operator, main, backend, time)
    if isinstance(operator.function, WindowCombination):
        return WindowCombineRunner(operator, time)
    if backend is None and operator.kind in _WITH_CONTEXT:
        return FlatMapRunner(operator, time)
    if backend is None:
        return _WITHOUT_KEY[operator.kind](operator)
    if operator.kind is NodeKind.REDUCE:
        return ReduceRunner(operator, backend)
    if operator.kind is NodeKind.FILTER:
        return KeyedFilterRunner(operator, backend)
    if isinstance(operator.function, KeyedBatchFunction):
        return KeyedBatchRunner(operator)
    if isinstance(operator.function, WindowAggregation):
        return WindowAggregationRunner(operator, backend, time)
    if isinstance(operator.function, FoldedWindows):
        return FoldedWindowRunner(operator, backend, time)
    if has_timers(operator.function):
        return TimerRunner(operator, backend, time)
    return KeyedProcessRunner(operator, backend, time)


_WITH_CONTEXT = frozenset(
    {
        NodeKind.FLAT_MAP,
        NodeKind.PROCESS,
        NodeKind.CO_MAP,
        NodeKind.CO_FLAT_MAP,
        NodeKind.CO_PROCESS,
    }
)
_WITHOUT_KEY: dict[NodeKind, Callable[[Operator], Runner]] = {
    NodeKind.SOURCE: PassingRunner,
    NodeKind.MAP: MapRunner,
    NodeKind.FILTER: FilterRunner,
    NodeKind.MAP_BATCHES: MapBatchesRunner,
    NodeKind.COMBINE: CombineRunner,
    NodeKind.SIDE_OUTPUT: PassingRunner,
}


def _unshared(operators: Iterable[Operator]) -> list[Operator]:
    """Operators that were given one and the same function object get a copy each."""
    seen: set[int] = set()
    unshared = []
    for op in operators:
        if id(op.function) in seen and isinstance(op.function, Function):
            op = replace(op, function=copy.deepcopy(op.function))
        seen.add(id(op.function))
        unshared.append(op)
    return unshared
