"""Operators that read a broadcast stream: in one order, whatever order shuffles deliver it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from turnback.core.errors import StateError
from turnback.functions.broadcast import BroadcastOperator, named_state
from turnback.functions.descriptors import StateDescriptor
from turnback.functions.event_time import MIN_TIME
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.state.list_and_map import ListState, MapState
from turnback.values.columns import Batch
from turnback.worker.event_time import TaskTime
from turnback.worker.message import user_error
from turnback.worker.output import FunctionOutput
from turnback.worker.runners import FunctionRunner, Runner, times_of
from turnback.worker.stamps import Stamps


class NumberRunner(Runner):
    """Gives elements that are broadcast the number of their task, and one of their own."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self._time = time
        self._count = 0

    def begin(self) -> None:
        super().begin()
        self._count = 0

    def process(self, batch: Batch) -> Batch | None:
        op = self.operator
        task = self._time.task
        first = self._count
        assert op.type is not None
        self._count += len(batch)
        rows = [(task, first + i, element) for i, element in enumerate(batch.rows)]
        numbered = FunctionOutput(op.type, rows, f"operator {op.uid!r} ({op.name})")
        numbered.stamps = batch.stamps
        return numbered


def main_operator(operator: Operator) -> Operator:
    """What an operator does with the stream that is not broadcast, as an operator of its own."""
    kind = NodeKind.PROCESS if operator.key is None else NodeKind.KEYED_PROCESS
    return replace(operator, kind=kind, inputs=operator.inputs[:1])


class BroadcastRunner(FunctionRunner):
    """A broadcast process function; `main` runs it for the stream that is not broadcast.

    The elements of an epoch are processed at its end: first the broadcast ones, in the order of
    their source if it is known, else in that of the tasks they come from, and of their numbers.
    That is the same in all subtasks.
    """

    def __init__(
        self, operator: Operator, main: Runner, backend: KeyedStateBackend | None, time: TaskTime
    ) -> None:
        super().__init__(operator)
        self._main = main
        self._time = time
        self._context = BroadcastContext(operator, backend, time)
        self._gathered: list[Batch] = []
        self._broadcast: list[Batch] = []

    def begin(self) -> None:
        super().begin()
        self._main.begin()
        self._gathered = []
        self._broadcast = []

    def next_timer(self) -> int | None:
        return self._main.next_timer()

    def process(self, batch: Batch) -> Batch | None:
        self._gathered.append(batch)
        return None

    def process_second(self, batch: Batch) -> Batch | None:
        self._broadcast.append(batch)
        return None

    def process_rest(self) -> Batch | None:
        gathered = self._gathered
        self._gathered = []
        parts = [self._process_broadcast()]
        parts += map(self._main.process, gathered)
        parts.append(self._main.process_rest())
        self.sides += self._main.sides
        self._main.sides = []
        return self._joined([part for part in parts if part is not None])

    def _process_broadcast(self) -> Batch | None:
        batches = self._broadcast
        self._broadcast = []
        rows = [row for batch in batches for row in batch.rows]
        times = [time for batch in batches for time in times_of(batch)]
        places = self._places(batches)
        order = sorted(range(len(rows)), key=lambda i: (places[i], rows[i].task, rows[i].number))
        function = self.operator.function.wrapped
        context = self._context
        context.states = self.operator.function.states
        out = self.collect()
        element = None
        try:
            for i in order:
                element = rows[i].element
                context.time = times[i]
                result = function.process_broadcast_element(element, context)
                if result is not None:
                    out.add(result, i)
        except Exception as e:
            op = self.operator
            name = f"{op.name}, process_broadcast_element"
            raise user_error(e, op.uid, name, element=element) from e
        return self.collected(out, _stamps(batches))

    def _places(self, batches: list[Batch]) -> list[int]:
        """Where elements are in their source; 0 for all if that is not known."""
        stamps = _stamps(batches)
        if stamps is None:
            return [0] * sum(map(len, batches))
        places: list[int] = self._time.places(stamps).tolist()
        return places

    def _joined(self, parts: list[Batch]) -> Batch | None:
        """One batch of several; if any of them has stamps, all elements need them."""
        if len(parts) < 2:
            return parts[0] if parts else None
        joined = self.output([row for part in parts for row in part.rows])
        assert joined is not None
        if any(part.stamps is not None for part in parts):
            mark = self._time.watermark_before(self.operator.strategies, self.operator.uid)
            joined.stamps = Stamps.join(
                [_unknown(len(p), mark) if p.stamps is None else p.stamps for p in parts]
            )
        return joined


def _stamps(batches: list[Batch]) -> Stamps | None:
    known = [batch.stamps for batch in batches if batch.stamps is not None]
    return Stamps.join(known) if known and len(known) == len(batches) else None


def _unknown(count: int, mark: int) -> Stamps:
    """Stamps of elements without a time."""
    return Stamps.of(np.full(count, MIN_TIME, np.int64), np.full(count, mark, np.int64))


class BroadcastContext:
    """The context of a broadcast element.

    Attributes:
        time: Its event time, None if it has none.
        states: The broadcast states, by name.
    """

    def __init__(
        self, operator: Operator, backend: KeyedStateBackend | None, time: TaskTime
    ) -> None:
        assert isinstance(operator.function, BroadcastOperator)
        self.time: int | None = None
        self.states: Mapping[str, Any] = {}
        self._operator = operator
        self._backend = backend
        self._clock = time

    def timestamp(self) -> int | None:
        return self.time

    def current_processing_time(self) -> int:
        return self._clock.epoch.now_ms

    def current_watermark(self) -> int:
        return self._clock.watermark_before(self._operator.strategies, self._operator.uid)

    def get_broadcast_state(self, state_descriptor: Any) -> Any:
        return named_state(self.states, state_descriptor)

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Any) -> None:
        """Call a function with each key of the subtask that has something in a state."""
        backend = self._backend
        name = str(getattr(state_descriptor, "name", state_descriptor))
        handle = None if backend is None else backend.handle(name)
        if backend is None or handle is None:
            raise StateError(
                f"operator {self._operator.uid!r} has no keyed state {name!r}; declare it in the "
                f"function, or ask for it in open()"
            )
        process = getattr(function, "process", function)
        try:
            for key in backend.stored_keys(name):
                backend.key = key
                if not _is_empty(handle):
                    process(backend.declared_key(), handle)
        finally:
            backend.key = None


def _is_empty(handle: Any) -> bool:
    if isinstance(handle, MapState):
        return handle.is_empty()
    if isinstance(handle, ListState):
        return not handle.get()
    value = handle.value() if hasattr(handle, "value") else handle.get()
    return value is None
