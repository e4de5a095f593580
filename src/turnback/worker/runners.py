"""How each kind of operator turns elements into new ones, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.core.errors import PlanError
from turnback.program.descriptors import ValueStateDescriptor
from turnback.program.graph import REDUCED, NodeKind
from turnback.program.plan import Operator
from turnback.program.time import MIN_TIME, TimerService
from turnback.state.backend import KeyedStateBackend
from turnback.types.columns import Batch
from turnback.types.frozen import Freezer, is_mutable
from turnback.types.row import row_converter
from turnback.worker.keys import key_reader
from turnback.worker.message import user_error
from turnback.worker.output import Collected, FunctionOutput, may_send_aside
from turnback.worker.time import Stamps, TaskTime


class PlainContext:
    """The context of an element without a key.

    Attributes:
        time: Its event time, None if it has none.
    """

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time: int | None = None

    def timestamp(self) -> int | None:
        return self.time


class KeyedContext(PlainContext):
    """The context of an element under its key."""

    __slots__ = ("_backend", "_service")

    def __init__(self, backend: KeyedStateBackend, service: TimerService) -> None:
        super().__init__()
        self._backend = backend
        self._service = service

    def timer_service(self) -> TimerService:
        return self._service

    def get_current_key(self) -> Any:
        return self._backend.declared_key()


def times_of(batch: Batch) -> Sequence[int | None]:
    """The event time of each element, None where it has none."""
    if batch.stamps is None:
        return [None] * len(batch)
    return [None if time == MIN_TIME else time for time in batch.stamps.time.tolist()]


class Runner(ABC):
    """Runs one operator in one worker."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.read = 0
        self.written = 0
        self.sides: list[tuple[int, Batch]] = []
        """Side outputs that nobody has fetched yet, for the operators that stand for them."""

    def begin(self) -> None:
        """Start an epoch; the one before may have failed at any point."""
        self.read = self.written = 0
        self.sides = []

    def run(self, batch: Batch) -> Batch | None:
        """Process a batch; None when nothing comes out."""
        self.read += len(batch)
        return self._counted(self.process(batch))

    def finish(self) -> Batch | None:
        """End the input of an epoch; None when nothing more comes out."""
        return self._counted(self.process_rest())

    def close(self) -> None:
        """Give up what it holds."""
        self.sides = []

    @abstractmethod
    def process(self, batch: Batch) -> Batch | None:
        """Do the operator's work."""

    def process_rest(self) -> Batch | None:
        """Do what was put off until the input of the epoch has ended."""
        return None

    def _counted(self, out: Batch | None) -> Batch | None:
        self.written += 0 if out is None else len(out)
        return out

    def failed(self, error: Exception, element: Any) -> Exception:
        """The error to raise when the user's function raised on an element."""
        return user_error(error, self.operator.uid, self.operator.name, element=element)


class SourceRunner(Runner):
    """Passes elements on as they come from Spark."""

    def process(self, batch: Batch) -> Batch | None:
        return batch


class FunctionRunner(Runner):
    """Base of the operators that call a function for one element after the other.

    Elements are frozen as they come out, since the function may go on changing them. The loops
    below remember a class whose elements cannot change: a call for each would cost too much.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self.freezer = Freezer(operator.type)
        self._freezers: dict[str | None, Freezer] = {None: self.freezer}
        self._freezers.update({tag: Freezer(type) for tag, _, type in operator.sides})
        self.has_sides = bool(operator.sides) or may_send_aside(operator.function)

    def collect(self) -> Collected:
        """Collect what the function gives, if it matters from which element it came."""
        return Collected(self.operator, self._freezers)

    def collected(self, out: Collected, stamps: Stamps | None) -> Batch | None:
        """The main output of a batch whose elements had these stamps; side outputs are kept."""
        self.sides += out.sides(stamps)
        return out.main(stamps)

    def output(self, rows: list[Any], stamps: Stamps | None = None) -> Batch | None:
        op = self.operator
        if not rows or op.type is None:
            return None
        batch = FunctionOutput(op.type, rows, f"operator {op.uid!r} ({op.name})")
        batch.stamps = stamps
        return batch


class MapRunner(FunctionRunner):
    """One element in, one out."""

    def process(self, batch: Batch) -> Batch | None:
        function, rows, row = self.operator.function.map, batch.rows, None
        admit, usual = self.freezer.admit, None
        out: list[Any] = []
        append = out.append
        try:
            for row in rows:
                element = function(row)
                if type(element) is not usual:
                    element, usual = admit(element)
                append(element)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.output(out, batch.stamps)


class FlatMapRunner(FunctionRunner):
    """One element in, any number out; with or without a context."""

    def process(self, batch: Batch) -> Batch | None:
        if batch.stamps is not None or self.has_sides:
            return self._process_by_origin(batch)
        function, rows, row = self._function(PlainContext()), batch.rows, None
        admit, usual = self.freezer.admit, None
        out: list[Any] = []
        append = out.append
        try:
            for row in rows:
                result = function(row)
                if result is not None:
                    for element in result:
                        if type(element) is not usual:
                            element, usual = admit(element)
                        append(element)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.output(out)

    def _process_by_origin(self, batch: Batch) -> Batch | None:
        context, out = PlainContext(), self.collect()
        function, row = self._function(context), None
        try:
            for i, (context.time, row) in enumerate(zip(times_of(batch), batch.rows, strict=True)):
                result = function(row)
                if result is not None:
                    out.add(result, i)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.collected(out, batch.stamps)

    def _function(self, context: PlainContext) -> Callable[[Any], Any]:
        if self.operator.kind is NodeKind.FLAT_MAP:
            return self.operator.function.flat_map  # type: ignore[no-any-return]
        process_element = self.operator.function.process_element
        return lambda row: process_element(row, context)


class KeyedRunner(FunctionRunner):
    """Base of the operators with state per key."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend) -> None:
        super().__init__(operator)
        assert operator.key is not None
        assert operator.input_type is not None
        self.backend = backend
        self.keys = key_reader(operator.key, operator.input_type, operator.uid)

    def failed(self, error: Exception, element: Any) -> Exception:
        op = self.operator
        return user_error(error, op.uid, op.name, key=self.backend.key, element=element)


class KeyedProcessRunner(KeyedRunner):
    """A `KeyedProcessFunction` without timers."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend)
        self.context = KeyedContext(backend, NoTimers(operator, time))

    def process(self, batch: Batch) -> Batch | None:
        if batch.stamps is not None or self.has_sides:
            return self._process_by_origin(batch)
        backend, rows, row = self.backend, batch.rows, None
        function, context = self.operator.function.process_element, self.context
        admit, usual = self.freezer.admit, None
        out: list[Any] = []
        append = out.append
        keys = self.keys(batch)
        try:
            for backend.key, row in zip(keys, rows, strict=True):
                result = function(row, context)
                if result is not None:
                    for element in result:
                        if type(element) is not usual:
                            element, usual = admit(element)
                        append(element)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.output(out)

    def _process_by_origin(self, batch: Batch) -> Batch | None:
        backend, context, out = self.backend, self.context, self.collect()
        function, row = self.operator.function.process_element, None
        elements = zip(self.keys(batch), times_of(batch), batch.rows, strict=True)
        try:
            for i, (backend.key, context.time, row) in enumerate(elements):
                result = function(row, context)
                if result is not None:
                    out.add(result, i)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.collected(out, batch.stamps)


class NoTimers:
    """The `TimerService` of a function that has no `on_timer`."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        self._operator = operator
        self._time = time

    def current_processing_time(self) -> int:
        return self._time.epoch.now_ms

    def current_watermark(self) -> int:
        return self._time.watermark_before(self._operator.strategies)

    def register_event_time_timer(self, timestamp: int) -> None:
        op = self._operator
        raise PlanError(
            f"operator {op.uid!r} ({op.name}) registers a timer, but {type(op.function).__name__} "
            f"has no on_timer(self, timestamp, ctx); write one, or take the timer out"
        )

    register_processing_time_timer = register_event_time_timer
    delete_event_time_timer = register_event_time_timer
    delete_processing_time_timer = register_event_time_timer


class ReduceRunner(KeyedRunner):
    """A rolling reduce: gives the reduced value after every element."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend) -> None:
        super().__init__(operator, backend)
        assert operator.type is not None
        self.state = backend.register(ValueStateDescriptor(REDUCED, operator.type))
        self.form = row_converter(operator.type)

    def process(self, batch: Batch) -> Batch | None:
        backend, state, form = self.backend, self.state, self.form
        rows, row = batch.rows, None
        function, freeze = self.operator.function.reduce, self.freezer.freeze
        out: list[Any] = []
        keys = self.keys(batch)
        try:
            for backend.key, row in zip(keys, rows, strict=True):
                before = state.value()
                after = row if before is None else form(function(before, row))
                state.update(after)
                out.append(freeze(after))
        except Exception as e:
            raise self.failed(e, row) from e
        return self.output(out, batch.stamps)


class FilterRunner(Runner):
    """Keeps some elements, as they came: what the function may do to them is not passed on."""

    def process(self, batch: Batch) -> Batch | None:
        function, rows, row = self.operator.function.filter, batch.rows, None
        mask: list[bool] = []
        try:
            for row in rows:
                mask.append(bool(function(row)))
        except Exception as e:
            raise self.failed(e, row) from e
        if is_mutable(self.operator.type):
            passed = Batch(batch.type, batch.arrow.filter(pa.array(mask, pa.bool_())))
        else:
            passed = Batch(batch.type, list(compress(rows, mask)))
        if batch.stamps is not None:
            passed.stamps = batch.stamps.take(np.array(mask, np.bool_))
        return passed if len(passed) else None
