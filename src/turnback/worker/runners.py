"""How each kind of operator turns elements into new ones, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.core.errors import ElementTypeError, PlanError, TooLargeError
from turnback.program.descriptors import ValueStateDescriptor
from turnback.program.graph import REDUCED, NodeKind
from turnback.program.plan import Operator
from turnback.program.time import TimerService
from turnback.state.backend import KeyedStateBackend
from turnback.types.columns import Batch, transpose
from turnback.types.frozen import Freezer, is_mutable
from turnback.types.row import build_rows, row_class, row_converter
from turnback.types.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.keys import key_reader
from turnback.worker.message import user_error
from turnback.worker.time import Stamps, TaskTime


class FunctionOutput(Batch):
    """Elements as a user's function gave them: tuples, dicts, rows without names; frozen.

    Whoever reads them one by one gets them as declared, whether or not there is a shuffle in
    between; a reader of columns does not pay for that.
    """

    __slots__ = ("_declared", "_operator")

    def __init__(self, type: TypeInfo, rows: list[Any], operator: str) -> None:
        super().__init__(type, rows)
        self._operator = operator
        self._declared: list[Any] | None = None

    @property
    def rows(self) -> list[Any]:
        if self._declared is None:
            try:
                self._declared = self._as_declared()
            except ElementTypeError as e:
                raise self._mismatch(e) from None
        return self._declared

    @property
    def arrow(self) -> pa.RecordBatch:
        try:
            return super().arrow
        except ElementTypeError as e:
            raise self._mismatch(e) from None

    def _as_declared(self) -> list[Any]:
        kind, rows = self.type, self._rows or []
        parts = kind.types if isinstance(kind, RowTypeInfo) else (kind,)
        if any(isinstance(t, RowTypeInfo) or is_mutable(t) for t in parts):
            return Batch(kind, super().arrow).rows  # nested values are converted as well
        if not isinstance(kind, RowTypeInfo):
            return rows
        declared = kind.python_class or row_class(kind.names)
        if set(map(type, rows)) == {declared}:
            return rows
        return build_rows(kind, transpose(rows, kind))

    def _part(self, rows: list[Any]) -> Batch:
        return FunctionOutput(self.type, rows, self._operator)

    def _mismatch(self, error: ElementTypeError) -> ElementTypeError:
        if isinstance(error, TooLargeError):
            return TooLargeError(f"what {self._operator} gave is too large: {error}")
        return ElementTypeError(
            f"{self._operator} gave an element that does not fit its output type: {error}"
        )


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


class Runner(ABC):
    """Runs one operator in one worker."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.read = 0
        self.written = 0

    def begin(self) -> None:
        """Start an epoch; the one before may have failed at any point."""
        self.read = self.written = 0

    def run(self, batch: Batch) -> Batch | None:
        """Process a batch; None when nothing comes out."""
        self.read += len(batch)
        return self._counted(self.process(batch))

    def finish(self) -> Batch | None:
        """End the input of an epoch; None when nothing more comes out."""
        return self._counted(self.process_rest())

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
        if batch.stamps is not None:
            return self._process_timed(batch)
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

    def _process_timed(self, batch: Batch) -> Batch | None:
        context = PlainContext()
        function, row, freeze = self._function(context), None, self.freezer.freeze
        out: list[Any] = []
        ends = [0]
        times = batch.stamps.time.tolist()
        try:
            for context.time, row in zip(times, batch.rows, strict=True):
                result = function(row)
                if result is not None:
                    for element in result:
                        out.append(freeze(element))
                ends.append(len(out))
        except Exception as e:
            raise self.failed(e, row) from e
        return self.output(out, batch.stamps.repeat(np.diff(ends)))

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
        if batch.stamps is not None:
            return self._process_timed(batch)
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

    def _process_timed(self, batch: Batch) -> Batch | None:
        backend, context, freeze = self.backend, self.context, self.freezer.freeze
        function, row = self.operator.function.process_element, None
        out: list[Any] = []
        ends = [0]
        keys, times = self.keys(batch), batch.stamps.time.tolist()
        try:
            for backend.key, context.time, row in zip(keys, times, batch.rows, strict=True):
                result = function(row, context)
                if result is not None:
                    for element in result:
                        out.append(freeze(element))
                ends.append(len(out))
        except Exception as e:
            raise self.failed(e, row) from e
        return self.output(out, batch.stamps.repeat(np.diff(ends)))


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
