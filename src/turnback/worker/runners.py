"""How each kind of operator reads the keys of a batch and turns its elements into new ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import compress
from operator import attrgetter
from typing import Any

import pyarrow as pa

from turnback.core.errors import ElementTypeError, NullKeyError
from turnback.program.descriptors import ValueStateDescriptor
from turnback.program.graph import REDUCED, KeySpec, NodeKind
from turnback.program.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.types.columns import Batch, stream_columns, stream_schema, transpose
from turnback.types.frozen import Freezer, is_mutable
from turnback.types.keys import KeyNormalizer
from turnback.types.row import build_rows, row_class, row_converter
from turnback.types.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import user_error

KeyReader = Callable[[Batch], list[Any]]


def key_reader(key: KeySpec, type: TypeInfo, uid: str) -> KeyReader:
    """A function that reads the keys of a batch, normalized, and refuses null ones."""
    normalizer = key.codec().normalizer
    if key.function is not None:
        return _function_reader(key.function, normalizer, uid)
    what = f"({', '.join(key.columns)})"
    readers = [_column_reader(column, type) for column in key.columns]

    def read(batch: Batch) -> list[Any]:
        columns = [_not_null(reader(batch), uid, what) for reader in readers]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return list(map(normalizer.normalize, keys)) if normalizer.changes_class else keys

    return read


def _column_reader(column: str, type: TypeInfo) -> KeyReader:
    if not isinstance(type, RowTypeInfo):
        return lambda batch: batch.rows
    if type.python_class is tuple or not column.isidentifier():
        index = [name for name, _ in stream_columns(type)].index(column)
        return lambda batch: [row[index] for row in batch.rows]
    get = attrgetter(column)  # faster than by index: rows take names there as well
    return lambda batch: list(map(get, batch.rows))


def _function_reader(
    function: Callable[[Any], Any], normalizer: KeyNormalizer, uid: str
) -> KeyReader:
    def read(batch: Batch) -> list[Any]:
        rows, row, keys = batch.rows, None, []
        try:
            for row in rows:
                keys.append(function(row))
        except Exception as e:
            raise user_error(e, uid, "key function", element=row) from e
        if normalizer.are_normal(keys):
            return keys
        _not_null(keys, uid, "that the key function gives")
        try:
            return list(map(normalizer.normalize, keys))
        except ElementTypeError as e:
            raise e.__class__(f"operator {uid!r}: {e}") from None

    return read


def _not_null(values: list[Any], uid: str, what: str) -> list[Any]:
    if None in values:
        raise NullKeyError(
            f"operator {uid!r}: the key {what} of an element is null; filter such elements out or "
            f"give them a key before key_by"
        )
    return values


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

    def _mismatch(self, error: ElementTypeError) -> ElementTypeError:
        return ElementTypeError(
            f"{self._operator} gave an element that does not fit its output type: {error}"
        )


class PlainContext:
    """The context of an element without a key."""

    __slots__ = ()

    def timestamp(self) -> int | None:
        return None


class KeyedContext(PlainContext):
    """The context of an element under its key."""

    __slots__ = ("_backend",)

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend

    def get_current_key(self) -> Any:
        return self._backend.declared_key()


class Runner(ABC):
    """Runs one operator in one worker."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.read = 0
        self.written = 0

    def run(self, batch: Batch) -> Batch | None:
        """Process a batch; None when nothing comes out."""
        self.read += len(batch)
        out = self.process(batch)
        if out is not None:
            self.written += len(out)
        return out

    @abstractmethod
    def process(self, batch: Batch) -> Batch | None:
        """Do the operator's work."""

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

    def output(self, rows: list[Any]) -> Batch | None:
        op = self.operator
        if not rows or op.type is None:
            return None
        return FunctionOutput(op.type, rows, f"operator {op.uid!r} ({op.name})")


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
        return self.output(out)


class FlatMapRunner(FunctionRunner):
    """One element in, any number out; with or without a context."""

    def process(self, batch: Batch) -> Batch | None:
        function, rows, row = self._function(), batch.rows, None
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

    def _function(self) -> Callable[[Any], Any]:
        if self.operator.kind is NodeKind.FLAT_MAP:
            return self.operator.function.flat_map  # type: ignore[no-any-return]
        process_element, context = self.operator.function.process_element, PlainContext()
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
    """A `KeyedProcessFunction`."""

    def process(self, batch: Batch) -> Batch | None:
        backend, rows, row = self.backend, batch.rows, None
        function, context = self.operator.function.process_element, KeyedContext(backend)
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
        return self.output(out)


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
        return passed if len(passed) else None


class MapBatchesRunner(Runner):
    """Arrow in, Arrow out, without a Python object per element."""

    def process(self, batch: Batch) -> Batch | None:
        data, kind = batch.arrow, self.operator.type
        assert kind is not None
        schema = stream_schema(kind)
        tables: list[pa.Table] = []
        try:
            result = self.operator.function(data)
            whole = result is None or isinstance(result, pa.RecordBatch | pa.Table)
            for part in [result] if whole else result:
                if part is not None:
                    tables.append(self._conform(part, schema))
        except ElementTypeError:
            raise
        except Exception as e:
            op = self.operator
            raise user_error(e, op.uid, op.name, batch_of=f"{len(batch)} elements") from e
        if not sum(t.num_rows for t in tables):
            return None
        (combined,) = pa.concat_tables(tables).combine_chunks().to_batches()
        return Batch(kind, combined)

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
            f"operator {op.uid!r} ({op.name}): map_batches must give Arrow batches or tables of "
            f"{op.type}: {problem}"
        )


def make_runner(operator: Operator, backend: KeyedStateBackend | None) -> Runner:
    """The runner for an operator other than a sink."""
    if backend is None:
        return _PLAIN[operator.kind](operator)
    if operator.kind is NodeKind.REDUCE:
        return ReduceRunner(operator, backend)
    return KeyedProcessRunner(operator, backend)


_PLAIN: dict[NodeKind, Callable[[Operator], Runner]] = {
    NodeKind.SOURCE: SourceRunner,
    NodeKind.MAP: MapRunner,
    NodeKind.FLAT_MAP: FlatMapRunner,
    NodeKind.FILTER: FilterRunner,
    NodeKind.MAP_BATCHES: MapBatchesRunner,
    NodeKind.PROCESS: FlatMapRunner,
}
