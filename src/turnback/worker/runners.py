"""How each kind of operator turns elements into new ones, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from turnback.errors import ElementTypeError, StateError, TooLargeError
from turnback.functions.aggregates import GroupError
from turnback.functions.base import KeyedColumns
from turnback.functions.descriptors import ValueStateDescriptor
from turnback.functions.event_time import MIN_TIME
from turnback.functions.partitioning import KeySpec
from turnback.plan.graph import REDUCED, NodeKind
from turnback.plan.plan import Operator
from turnback.plan.user_code import return_advice
from turnback.state.backend import KeyedStateBackend
from turnback.state.values import SingleState
from turnback.values.coerce import in_field, short_repr
from turnback.values.columns import Batch, from_column, stream_schema, to_column
from turnback.values.freeze import Freezer, is_mutable
from turnback.values.row import row_converter
from turnback.values.typeinfo import BasicTypeInfo, ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInfo
from turnback.worker.context import KeyedContext, NoTimers, PlainContext
from turnback.worker.event_time import Part, Stamps, TaskTime
from turnback.worker.keys import DistinctKeys, distinct_key_reader, key_reader
from turnback.worker.message import user_error
from turnback.worker.output import Collected, FunctionOutput, may_emit_side_outputs
from turnback.worker.tolerance import ElementFunction, element_functions

if TYPE_CHECKING:
    from turnback.worker.tolerance import ElementGuard


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
        self.side_outputs: list[tuple[int, Batch]] = []
        """Side outputs that nobody has fetched yet, for the operators that stand for them."""
        self.parts: list[tuple[Part, Batch]] = []
        """Output that nobody has fetched yet, of who gives it later than what it is made from: with
        the part of the source that it belongs to."""
        self.tolerance: ElementGuard | None = None
        """What lets it go on without elements at which its function fails, if it may."""

    def begin(self) -> None:
        """Start an epoch; the one before may have failed at any point."""
        self.read = self.written = 0
        self.busy_s = 0.0
        self.side_outputs = []
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
        self.side_outputs = []
        self.parts = []

    @abstractmethod
    def process(self, batch: Batch) -> Batch | None:
        """Do the operator's work on elements of its first input."""

    def process_second(self, batch: Batch) -> Batch | None:
        """Do the operator's work on elements of its second input, if it has one."""
        raise AssertionError(f"operator {self.operator.uid!r} has only one input")

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

    def failed(self, error: BaseException, element: Any, **about: Any) -> Exception:
        """The error to raise when the user's function raised on an element."""
        op = self.operator
        return user_error(
            error, op.uid, op.name, return_advice(error, op), **about, element=element
        )


class ForwardRunner(Runner):
    """Passes elements on as they come."""

    def process(self, batch: Batch) -> Batch | None:
        return batch


class SourceOrderRunner(Runner):
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
        self._freezers.update({tag: Freezer(type) for tag, _, type in operator.side_outputs})
        self.has_side_outputs = bool(operator.side_outputs) or may_emit_side_outputs(
            operator.function
        )

    def collect(self) -> Collected:
        """Collect what the function gives, if it matters from which element it came."""
        return Collected(self.operator, self._freezers)

    def collected(self, out: Collected, stamps: Stamps | None) -> Batch | None:
        """The main output of a batch whose elements had these stamps; side outputs are kept."""
        self.side_outputs += out.sides(stamps)
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
        if batch.stamps is not None or self.has_side_outputs:
            return self._process_indexed(batch, function)
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

    def _process_indexed(self, batch: Batch, function: Callable[[Any], Any]) -> Batch | None:
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
    """Base of the operators with state per key."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend) -> None:
        super().__init__(operator)
        self.backend = backend
        self.key_readers = [
            key_reader(each.key, each.type, operator.uid)
            for each in operator.inputs
            if each.key is not None
        ]

    def failed(self, error: BaseException, element: Any, **about: Any) -> Exception:
        return super().failed(error, element, key=self.backend.key, **about)


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
        if batch.stamps is not None or self.has_side_outputs:
            return self._process_indexed(batch, keys, function)
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

    def _process_indexed(
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
    if is_mutable(batch.type):
        passed = Batch(batch.type, batch.arrow.filter(pa.array(mask, pa.bool_())))
    else:
        passed = Batch(batch.type, list(compress(batch.rows, mask)))
    if batch.stamps is not None:
        passed.stamps = batch.stamps.take(np.array(mask, np.bool_))
    return passed if len(passed) else None


MOST_ROWS = 1 << 20
MOST_BYTES = 64 << 20
"""What is gathered for one call; a single piece from Spark may be larger."""


class BatchRunner(Runner):
    """Base of the operators that call a function for a batch, and check what it gives."""

    method: ClassVar[str]

    def call(self, elements: int, function: Callable[..., Any], *arguments: Any) -> Batch | None:
        """What the function makes of a batch; errors name the operator."""
        op = self.operator
        assert op.type is not None
        schema = stream_schema(op.type)

        def conformed() -> list[pa.Table]:
            result = function(*arguments)
            whole = result is None or isinstance(result, pa.RecordBatch | pa.Table)
            parts = [result] if whole else result
            return [self._conform(part, schema) for part in parts if part is not None]

        tables: list[pa.Table] = self.attempt(elements, conformed)
        if not sum(t.num_rows for t in tables):
            return None
        batches = pa.concat_tables(tables).combine_chunks().to_batches()
        if len(batches) > 1:
            raise TooLargeError(
                f"operator {op.uid!r} ({op.name}): {self.method} returned more than 2 GiB for "
                "one column of an Arrow batch, which is the limit; return fewer or smaller rows"
            )
        return Batch(op.type, batches[0])

    def attempt(self, elements: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function that may be the user's gives; errors name the operator."""
        try:
            return function(*arguments)
        except GroupError as e:
            op = self.operator
            raise ElementTypeError(f"operator {op.uid!r} ({op.name}): {e}") from None
        except ElementTypeError:
            raise
        except Exception as e:
            op = self.operator
            raise user_error(e, op.uid, op.name, batch_of=f"{elements} elements") from e

    def _conform(self, part: Any, schema: pa.Schema) -> pa.Table:
        table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        if not isinstance(table, pa.Table) or set(table.column_names) != set(schema.names):
            got = table.column_names if isinstance(table, pa.Table) else repr(table)[:80]
            raise self._mismatch(f"got {got}, expected the columns {schema.names}")
        try:
            table = table.select(schema.names).cast(schema)
        except (pa.ArrowException, ValueError) as e:
            raise self._mismatch(str(e)) from None
        # Its memory may be a NumPy array that the function fills again; the empty part makes
        # Arrow copy it.
        return pa.concat_tables([table, schema.empty_table()]).combine_chunks()

    def _mismatch(self, problem: str) -> ElementTypeError:
        op = self.operator
        return ElementTypeError(
            f"operator {op.uid!r} ({op.name}): {self.method} must return Arrow batches or tables "
            f"of {op.type}: {problem}"
        )


class MapBatchesRunner(BatchRunner):
    """Arrow in, Arrow out."""

    method = "map_batches"

    def process(self, batch: Batch) -> Batch | None:
        return self.call(len(batch), self.operator.function, batch.arrow)


class BufferingRunner(BatchRunner):
    """Base of the operators that gather elements before they process them.

    Spark hands them over in pieces of some thousand rows, too few to make up for what a call
    costs.
    """

    def __init__(self, operator: Operator, key: KeySpec) -> None:
        super().__init__(operator)
        assert operator.input_type is not None
        self.keys = distinct_key_reader(key, operator.input_type, operator.uid)
        self._gathered: list[tuple[pa.RecordBatch, Stamps | None]] = []
        self.rows = self.bytes = 0
        """How much has been gathered."""

    def begin(self) -> None:
        super().begin()
        self._drop()

    def process(self, batch: Batch) -> Batch | None:
        data = batch.arrow
        self._gathered.append((data, batch.stamps))
        self.rows += data.num_rows
        self.bytes += data.nbytes
        return None

    def gathered(self) -> Batch | None:
        """Take all elements so far; None if there are none."""
        parts = self._gathered[:]
        rows = self.rows
        self._drop()
        if not rows:
            return None
        (data,) = pa.Table.from_batches([part for part, _ in parts]).combine_chunks().to_batches()
        assert self.operator.input_type is not None
        batch = Batch(self.operator.input_type, data)
        stamps = [each for part, each in parts if part.num_rows]
        known = [each for each in stamps if each is not None]
        if len(known) == len(stamps):
            batch.stamps = Stamps.join(known)
        return batch

    def _drop(self) -> None:
        self._gathered.clear()
        self.rows = self.bytes = 0


class ChunkedRunner(BufferingRunner):
    """Base of those that process an epoch in large portions: all of it, unless that is too much."""

    def process(self, batch: Batch) -> Batch | None:
        data = batch.arrow
        out = None
        if self.rows + data.num_rows > MOST_ROWS or self.bytes + data.nbytes > MOST_BYTES:
            out = self.process_rest()
        super().process(batch)
        return out

    def process_rest(self) -> Batch | None:
        batch = self.gathered()
        return None if batch is None else self.process_gathered(batch, self.keys(batch))

    @abstractmethod
    def process_gathered(self, batch: Batch, keys: DistinctKeys) -> Batch | None:
        """Do the operator's work on all elements so far, which have these keys."""


class KeyedBatchRunner(ChunkedRunner):
    """A `KeyedBatchFunction`."""

    method = "process_batch"

    def __init__(self, operator: Operator) -> None:
        assert operator.key is not None
        super().__init__(operator, operator.key)

    def process_gathered(self, batch: Batch, keys: DistinctKeys) -> Batch | None:
        op = self.operator
        state: KeyedColumns = BatchState(op.uid, keys)
        return self.call(len(batch), op.function.process_batch, batch.arrow, state)


class CombineRunner(ChunkedRunner):
    """The part of an aggregation that comes before the shuffle."""

    method = "combine"

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator, operator.function.key)

    def process_gathered(self, batch: Batch, keys: DistinctKeys) -> Batch | None:
        combine = self.operator.function.combine
        return self.call(len(batch), combine, batch.arrow, keys.column, keys.index)


_UNFIT = (ElementTypeError, pa.ArrowException, ValueError, TypeError, OverflowError)


class BatchState:
    """The `KeyedColumns` of one batch."""

    def __init__(self, uid: str, keys: DistinctKeys) -> None:
        self.keys: pa.Array = keys.column
        self.index = keys.index
        self._uid = uid
        self._keys = keys.keys

    def read(self, state: Any) -> pa.Array:
        handle, kind = self._handle(state)
        try:
            return to_column(handle.read_many(self._keys), kind)
        except ElementTypeError as e:
            raise StateError(f"{_name(handle)}: a value has no column: {e}") from e

    def write(self, state: Any, values: Any, where: Any = None) -> None:
        handle, kind = self._handle(state)
        keys = self._keys
        try:
            column = _as_column(values, kind)
            _check_length(column, len(keys), "values")
            if where is not None:
                chosen = _as_mask(where, len(keys))
                column = column.filter(pa.array(chosen))
                keys = [keys[i] for i in np.flatnonzero(chosen).tolist()]
            objects = from_column(column, kind)
        except _UNFIT as e:
            raise StateError(
                f"{_name(handle)}: the values do not match the declared type {kind}: {e}"
            ) from None
        handle.write_many(keys, objects)

    def _handle(self, state: Any) -> tuple[SingleState, TypeInfo]:
        if not isinstance(state, SingleState):
            raise StateError(
                f"operator {self._uid!r}: process_batch reads and writes value, reducing and "
                f"aggregating state that its function has declared, got {short_repr(state)}"
            )
        if _holds_pickled(state.type):
            raise StateError(
                f"{_name(state)}: pickled objects have no column; declare a type, or use a "
                f"KeyedProcessFunction"
            )
        return state, state.type


def _name(handle: SingleState) -> str:
    return f"state {handle.schema.name!r} of operator {handle.schema.uid!r}"


def _holds_pickled(kind: TypeInfo) -> bool:
    match kind:
        case RowTypeInfo():
            return any(map(_holds_pickled, kind.types))
        case ListTypeInfo():
            return _holds_pickled(kind.element)
        case MapTypeInfo():
            return _holds_pickled(kind.key) or _holds_pickled(kind.value)
    return kind == BasicTypeInfo("pickled")


def _check_length(column: Any, wanted: int, what: str) -> None:
    if len(column) != wanted:
        raise ElementTypeError(
            f"got {len(column)} {what} for {wanted} keys; return one for each key"
        )


def _as_mask(where: Any, wanted: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask = np.asarray(where)
    if mask.dtype != np.bool_ or mask.ndim != 1:
        raise ElementTypeError(f"where takes one truth value per key, got {short_repr(where)}")
    _check_length(mask, wanted, "truth values")
    return mask


def _as_column(values: Any, kind: TypeInfo) -> pa.Array:
    """What a user gives as the values of a state, as a column of its type."""
    if isinstance(values, list | tuple):
        return to_column(list(values), kind)
    if isinstance(values, Mapping) and isinstance(kind, RowTypeInfo):
        return _structs(dict(values), kind, None)
    array = _as_array(values)
    if is_.is_null(array.type):
        return pa.nulls(len(array), kind.arrow())
    if isinstance(kind, RowTypeInfo) and is_.is_struct(array.type):
        fields = dict(zip([f.name for f in array.type], array.flatten(), strict=True))
        return _structs(fields, kind, array.is_null() if array.null_count else None)
    return _cast(array, kind)


def _as_array(values: Any) -> pa.Array:
    if isinstance(values, pa.RecordBatch | pa.Table):
        values = values.to_struct_array()
    elif hasattr(values, "__arrow_c_stream__"):  # Polars, data frames, chunked arrays
        values = pa.chunked_array(values)
    elif hasattr(values, "__array__"):  # Arrow's own, NumPy, pandas
        values = pa.array(values)
    else:
        raise ElementTypeError(f"expected a column, got {short_repr(values)}")
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not is_.is_dictionary(array.type):
        return array
    entries = array.dictionary
    if is_.is_string_view(entries.type):  # Polars' categories, from which Arrow cannot take
        entries = entries.cast(pa.string())
    return entries.take(array.indices)


def _structs(fields: Mapping[str, Any], kind: RowTypeInfo, nulls: pa.Array | None) -> pa.Array:
    if set(fields) != set(kind.names):
        raise ElementTypeError(f"got the fields {list(fields)}, expected {list(kind.names)}")
    columns = []
    for name, type_ in kind.fields():
        try:
            columns.append(_as_column(fields[name], type_))
        except _UNFIT as e:
            raise in_field(name, ElementTypeError(str(e))) from None
    if len(set(map(len, columns))) > 1:
        lengths = {name: len(c) for name, c in zip(kind.names, columns, strict=True)}
        raise ElementTypeError(f"the fields have different lengths: {lengths}")
    return pa.StructArray.from_arrays(columns, fields=list(kind.arrow()), mask=nulls)


def _cast(array: pa.Array, kind: TypeInfo) -> pa.Array:
    """Widen and narrow where nothing is lost; Arrow alone would also read numbers out of text."""
    wanted = kind.arrow()
    if not _is_like(array.type, wanted):
        raise ElementTypeError(f"got a column of {array.type}, expected {wanted}")
    column = array.cast(wanted)
    if kind == BasicTypeInfo("float"):
        became_infinite = pc.and_(pc.is_inf(column), pc.is_finite(array))
        if pc.any(became_infinite).as_py():
            raise ElementTypeError("a value is too large for 32 bits")
    return column


def _is_like(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether one type holds the same kind of values as the other, in whatever width."""
    if is_.is_null(given):
        return True
    if _is_list(given) and _is_list(wanted):
        return _is_like(given.value_type, wanted.value_type)
    if is_.is_map(given) and is_.is_map(wanted):
        same_keys = _is_like(given.key_type, wanted.key_type)
        return same_keys and _is_like(given.item_type, wanted.item_type)
    if is_.is_struct(given) and is_.is_struct(wanted):
        fields = {field.name: field.type for field in given}
        return fields.keys() == {field.name for field in wanted} and all(
            _is_like(fields[field.name], field.type) for field in wanted
        )
    if is_.is_integer(given) and is_.is_decimal(wanted):
        return True
    if is_.is_timestamp(given) and is_.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    return any(test(given) and test(wanted) for test in _ALIKE)


def _is_list(arrow: pa.DataType) -> bool:
    return bool(is_.is_list(arrow) or is_.is_large_list(arrow))


_ALIKE: tuple[Callable[[pa.DataType], bool], ...] = (
    lambda t: is_.is_integer(t) or is_.is_floating(t),
    lambda t: is_.is_string(t) or is_.is_large_string(t) or is_.is_string_view(t),
    lambda t: is_.is_binary(t) or is_.is_large_binary(t) or is_.is_binary_view(t),
    is_.is_boolean,
    is_.is_decimal,
    is_.is_date,
    is_.is_time,
)
