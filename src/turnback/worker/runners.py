"""How each kind of operator turns elements into new ones, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import compress
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from turnback.functions.descriptors import ValueStateDescriptor
from turnback.functions.event_time import MIN_TIME
from turnback.plan.graph import REDUCED, NodeKind
from turnback.plan.plan import Operator
from turnback.plan.user_code import return_advice
from turnback.state.backend import KeyedStateBackend
from turnback.values.columns import Batch
from turnback.values.frozen import Freezer, is_mutable
from turnback.values.row import row_converter
from turnback.worker.element_context import KeyedContext, NoTimers, PlainContext
from turnback.worker.elements import ElementFunction, element_functions
from turnback.worker.event_time import TaskTime
from turnback.worker.keys import key_reader
from turnback.worker.message import user_error
from turnback.worker.output import Collected, FunctionOutput, may_send_aside
from turnback.worker.stamps import Part, Stamps

if TYPE_CHECKING:
    from turnback.worker.tolerance import Tolerance


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
        self.busy_s = 0.0
        """How long it has worked in this epoch; measured once a batch."""
        self.sides: list[tuple[int, Batch]] = []
        """Side outputs that nobody has fetched yet, for the operators that stand for them."""
        self.parts: list[tuple[Part, Batch]] = []
        """Output that nobody has fetched yet, of who gives it later than what it is made from: with
        the part of the source that it belongs to."""
        self.tolerance: Tolerance | None = None
        """What lets it go on without elements at which its function fails, if it may."""

    def begin(self) -> None:
        """Start an epoch; the one before may have failed at any point."""
        self.read = self.written = 0
        self.busy_s = 0.0
        self.sides = []
        self.parts = []
        if self.tolerance is not None:
            self.tolerance.begin()

    def run(self, batch: Batch, input: int = 0) -> Batch | None:
        """Process a batch from one of the inputs; None when nothing comes out."""
        started = perf_counter()
        self.read += len(batch)
        out = self._counted(self.process(batch) if input == 0 else self.process_second(batch))
        self.busy_s += perf_counter() - started
        return out

    def finish(self) -> Batch | None:
        """End the input of an epoch; None when nothing more comes out."""
        started = perf_counter()
        out = self._counted(self.process_rest())
        self.busy_s += perf_counter() - started
        return out

    def close(self) -> None:
        """Give up what it holds."""
        self.sides = []
        self.parts = []

    @abstractmethod
    def process(self, batch: Batch) -> Batch | None:
        """Do the operator's work on elements of its first input."""

    def process_second(self, batch: Batch) -> Batch | None:
        """Do the operator's work on elements of its second input, if it has one."""
        raise AssertionError(f"operator {self.operator.uid!r} has one input only")

    def process_rest(self) -> Batch | None:
        """Do what was put off until the input of the epoch has ended."""
        return None

    def next_timer(self) -> int | None:
        """When the next timer by the clock is due; None without one."""
        return None

    def _counted(self, out: Batch | None) -> Batch | None:
        self.written += 0 if out is None else len(out)
        self.written += sum(len(batch) for _, batch in self.parts)
        return out

    def failed(self, error: BaseException, element: Any) -> Exception:
        """The error to raise when the user's function raised on an element."""
        op = self.operator
        advice = return_advice(error, self.operator)
        return user_error(error, op.uid, op.name, advice, element=element)


class PassingRunner(Runner):
    """Passes elements on as they come."""

    def process(self, batch: Batch) -> Batch | None:
        return batch


class PlacingRunner(Runner):
    """Notes where the elements of a source are in it, for a strategy behind a shuffle."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self._time = time

    def process(self, batch: Batch) -> Batch | None:
        batch.stamps = self._time.place(self.operator.id, len(batch))
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
        batch = FunctionOutput(op.type, rows, f"operator {op.uid!r} ({op.name})", op)
        batch.stamps = stamps
        return batch


class MapRunner(FunctionRunner):
    """One element in, one out."""

    def process(self, batch: Batch) -> Batch | None:
        function = self.operator.function.map
        rows = batch.rows
        row = None
        admit = self.freezer.admit
        usual = None
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
    """One element in, any number out; with or without a context, from one input or two."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self.context = PlainContext(NoTimers(operator, time))

    def process(self, batch: Batch) -> Batch | None:
        return self._process(batch, 0)

    def process_second(self, batch: Batch) -> Batch | None:
        return self._process(batch, 1)

    def _process(self, batch: Batch, input: int) -> Batch | None:
        function = self._function(input)
        if batch.stamps is not None or self.has_sides:
            return self._process_by_origin(batch, function)
        rows = batch.rows
        row = None
        admit = self.freezer.admit
        usual = None
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

    def _process_by_origin(self, batch: Batch, function: Callable[[Any], Any]) -> Batch | None:
        context = self.context
        out = self.collect()
        row = None
        try:
            for i, (context.time, row) in enumerate(zip(times_of(batch), batch.rows, strict=True)):
                result = function(row)
                if result is not None:
                    out.add(result, i)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.collected(out, batch.stamps)

    def _function(self, input: int) -> Callable[[Any], Any]:
        if self.operator.kind is NodeKind.FLAT_MAP:
            return self.operator.function.flat_map  # type: ignore[no-any-return]
        function = element_functions(self.operator)[input]
        context = self.context
        return lambda row: function(row, context)


class KeyedRunner(FunctionRunner):
    """Base of the operators with state per key.

    Attributes:
        key_readers: What reads the keys of each input that has them.
    """

    def __init__(self, operator: Operator, backend: KeyedStateBackend) -> None:
        super().__init__(operator)
        self.backend = backend
        self.key_readers = [
            key_reader(each.key, each.type, operator.uid)
            for each in operator.inputs
            if each.key is not None
        ]

    def failed(self, error: BaseException, element: Any) -> Exception:
        op = self.operator
        advice = return_advice(error, op)
        return user_error(error, op.uid, op.name, advice, key=self.backend.key, element=element)


class KeyedProcessRunner(KeyedRunner):
    """A function per element without timers, such as a `KeyedProcessFunction`, of all inputs."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend)
        self.context = KeyedContext(backend, NoTimers(operator, time))
        self._functions = element_functions(operator)

    def process(self, batch: Batch) -> Batch | None:
        return self._process(batch, 0)

    def process_second(self, batch: Batch) -> Batch | None:
        return self._process(batch, 1)

    def _process(self, batch: Batch, input: int) -> Batch | None:
        keys = self.key_readers[input](batch)
        function = self._functions[input]
        if batch.stamps is not None or self.has_sides:
            return self._process_by_origin(batch, keys, function)
        backend = self.backend
        rows = batch.rows
        row = None
        context = self.context
        admit = self.freezer.admit
        usual = None
        out: list[Any] = []
        append = out.append
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

    def _process_by_origin(
        self, batch: Batch, keys: list[Any], function: ElementFunction
    ) -> Batch | None:
        backend = self.backend
        context = self.context
        out = self.collect()
        row = None
        elements = zip(keys, times_of(batch), batch.rows, strict=True)
        try:
            for i, (backend.key, context.time, row) in enumerate(elements):
                result = function(row, context)
                if result is not None:
                    out.add(result, i)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.collected(out, batch.stamps)


class ReduceRunner(KeyedRunner):
    """A rolling reduce: gives the reduced value after every element."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend) -> None:
        super().__init__(operator, backend)
        assert operator.type is not None
        self.state = backend.register(ValueStateDescriptor(REDUCED, operator.type))
        self.form = row_converter(operator.type)

    def process(self, batch: Batch) -> Batch | None:
        backend = self.backend
        state = self.state
        form = self.form
        rows = batch.rows
        row = None
        function = self.operator.function.reduce
        freeze = self.freezer.freeze
        out: list[Any] = []
        keys = self.key_readers[0](batch)
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
        function = self.operator.function.filter
        rows = batch.rows
        row = None
        mask: list[bool] = []
        try:
            for row in rows:
                mask.append(bool(function(row)))
        except Exception as e:
            raise self.failed(e, row) from e
        return _passed(batch, mask)


class KeyedFilterRunner(KeyedRunner):
    """Keeps some elements, as they came, by a function with state per key."""

    def process(self, batch: Batch) -> Batch | None:
        backend = self.backend
        function = self.operator.function.filter
        row = None
        keys = self.key_readers[0](batch)
        mask: list[bool] = []
        try:
            for backend.key, row in zip(keys, batch.rows, strict=True):
                mask.append(bool(function(row)))
        except Exception as e:
            raise self.failed(e, row) from e
        return _passed(batch, mask)


def _passed(batch: Batch, mask: list[bool]) -> Batch | None:
    """Those elements of a batch that passed a filter."""
    if is_mutable(batch.type):
        passed = Batch(batch.type, batch.arrow.filter(pa.array(mask, pa.bool_())))
    else:
        passed = Batch(batch.type, list(compress(batch.rows, mask)))
    if batch.stamps is not None:
        passed.stamps = batch.stamps.take(np.array(mask, np.bool_))
    return passed if len(passed) else None
