"""How each kind of operator turns a batch of elements into the next one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from turnback.core.errors import ElementTypeError
from turnback.program.descriptors import ValueStateDescriptor
from turnback.program.graph import REDUCED, NodeKind
from turnback.program.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.types.columns import Batch, stream_schema, transpose
from turnback.types.frozen import Freezer, is_mutable
from turnback.types.row import build_rows, row_class, row_converter
from turnback.types.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import user_error
from turnback.worker.routing import key_reader


class FunctionOutput(Batch):
    """Elements as a user's function gave them: tuples, dicts, rows without names; frozen.

    Whoever reads them one by one gets them as declared, whether or not there is a shuffle in
    between; a reader of columns does not pay for that.
    """

    __slots__ = ("_formed", "_operator")

    def __init__(self, type: TypeInfo, rows: list[Any], operator: str) -> None:
        super().__init__(type, rows)
        self._operator = operator
        self._formed: list[Any] | None = None

    @property
    def rows(self) -> list[Any]:
        if self._formed is None:
            try:
                self._formed = self._in_form()
            except ElementTypeError as e:
                raise self._misfit(e) from None
        return self._formed

    @property
    def arrow(self) -> pa.RecordBatch:
        try:
            return super().arrow
        except ElementTypeError as e:
            raise self._misfit(e) from None

    def _in_form(self) -> list[Any]:
        kind, rows = self.type, self._rows or []
        parts = kind.types if isinstance(kind, RowTypeInfo) else (kind,)
        if any(isinstance(t, RowTypeInfo) or is_mutable(t) for t in parts):
            return Batch(kind, super().arrow).rows  # what is inside has a form as well
        if not isinstance(kind, RowTypeInfo):
            return rows
        wanted = kind.python_class or row_class(kind.names)
        if set(map(type, rows)) == {wanted}:
            return rows
        return build_rows(kind, transpose(rows, kind))

    def _misfit(self, error: ElementTypeError) -> ElementTypeError:
        return ElementTypeError(
            f"{self._operator} gave an element that does not fit its output type: {error}"
        )


class PlainContext:
    """The context of an element without a key."""

    __slots__ = ()

    def timestamp(self) -> int | None:
        """The element's event time in milliseconds, if it has one."""
        return None


class KeyedContext(PlainContext):
    """The context of an element under its key."""

    __slots__ = ("_backend",)

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend

    def get_current_key(self) -> Any:
        return self._backend.declared_key()


class Runner(ABC):
    """Runs one operator in one worker.

    Elements are frozen as they come out, since the function may go on changing them. The loops
    below remember a class whose elements cannot change: a call for each would cost too much.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.freezer = Freezer(operator.type)
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

    def output(self, rows: list[Any]) -> Batch | None:
        """The batch of what came out."""
        op = self.operator
        if not rows or op.type is None:
            return None
        return FunctionOutput(op.type, rows, f"operator {op.uid!r} ({op.name})")

    def failed(self, error: Exception, element: Any, **about: Any) -> Exception:
        """The error to raise when the user's function raised on an element."""
        op = self.operator
        return user_error(error, op.uid, op.name, **about, element=element)


class SourceRunner(Runner):
    """Passes elements on as they come from Spark."""

    def process(self, batch: Batch) -> Batch | None:
        return batch


class MapRunner(Runner):
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


class FlatMapRunner(Runner):
    """One element in, any number out."""

    def process(self, batch: Batch) -> Batch | None:
        function, rows, row = self.operator.function.flat_map, batch.rows, None
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


class FilterRunner(Runner):
    """Keeps some elements, as they came: what the function may do to them is not passed on."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self.by_columns = is_mutable(operator.type)

    def process(self, batch: Batch) -> Batch | None:
        function, rows, row = self.operator.function.filter, batch.rows, None
        out: list[Any] = []
        append = out.append
        try:
            if self.by_columns:
                for row in rows:
                    append(bool(function(row)))
            else:
                for row in rows:
                    if function(row):
                        append(row)
        except Exception as e:
            raise self.failed(e, row) from e
        if self.by_columns:
            kept = batch.arrow.filter(pa.array(out, pa.bool_()))
            return Batch(batch.type, kept) if kept.num_rows else None
        return Batch(batch.type, out) if out else None


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
            raise self._misfit(f"got {got}, wanted the columns {schema.names}")
        try:
            table = table.select(schema.names).cast(schema)
        except (pa.ArrowException, ValueError) as e:
            raise self._misfit(str(e)) from None
        # Its memory may be a NumPy array that the function fills again; the empty part makes
        # Arrow copy it.
        return pa.concat_tables([table, schema.empty_table()]).combine_chunks()

    def _misfit(self, problem: str) -> ElementTypeError:
        op = self.operator
        return ElementTypeError(
            f"operator {op.uid!r} ({op.name}): map_batches must give Arrow batches or tables of "
            f"{op.type}: {problem}"
        )


class ProcessRunner(FlatMapRunner):
    """Any number out, with a context."""

    def process(self, batch: Batch) -> Batch | None:
        function, ctx = self.operator.function.process_element, PlainContext()
        rows, row = batch.rows, None
        admit, usual = self.freezer.admit, None
        out: list[Any] = []
        append = out.append
        try:
            for row in rows:
                result = function(row, ctx)
                if result is not None:
                    for element in result:
                        if type(element) is not usual:
                            element, usual = admit(element)
                        append(element)
        except Exception as e:
            raise self.failed(e, row) from e
        return self.output(out)


class KeyedRunner(Runner):
    """Base of the operators with state per key."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend) -> None:
        super().__init__(operator)
        assert operator.key is not None
        assert operator.input_type is not None
        self.backend = backend
        self.keys = key_reader(operator.key, operator.input_type, operator.uid)


class KeyedProcessRunner(KeyedRunner):
    """A `KeyedProcessFunction`."""

    def process(self, batch: Batch) -> Batch | None:
        backend, row = self.backend, None
        function, ctx = self.operator.function.process_element, KeyedContext(backend)
        admit, usual = self.freezer.admit, None
        out: list[Any] = []
        append = out.append
        keys = self.keys(batch)
        try:
            for backend.key, row in zip(keys, batch.rows, strict=True):
                result = function(row, ctx)
                if result is not None:
                    for element in result:
                        if type(element) is not usual:
                            element, usual = admit(element)
                        append(element)
        except Exception as e:
            raise self.failed(e, row, key=backend.key) from e
        return self.output(out)


class ReduceRunner(KeyedRunner):
    """A rolling reduce: gives the reduced value after every element."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend) -> None:
        super().__init__(operator, backend)
        assert operator.type is not None
        self.state = backend.register(ValueStateDescriptor(REDUCED, operator.type))
        self.form = row_converter(operator.type)

    def process(self, batch: Batch) -> Batch | None:
        backend, state, form, row = self.backend, self.state, self.form, None
        function, freeze = self.operator.function.reduce, self.freezer.freeze
        out: list[Any] = []
        append = out.append
        keys = self.keys(batch)
        try:
            for backend.key, row in zip(keys, batch.rows, strict=True):
                before = state.value()
                after = row if before is None else form(function(before, row))
                state.update(after)
                append(freeze(after))
        except Exception as e:
            raise self.failed(e, row, key=backend.key) from e
        return self.output(out)


def make_runner(operator: Operator, backend: KeyedStateBackend | None) -> Runner:
    """The runner for an operator other than a sink."""
    if backend is not None:
        return (ReduceRunner if operator.kind is NodeKind.REDUCE else KeyedProcessRunner)(
            operator, backend
        )
    return _PLAIN[operator.kind](operator)


_PLAIN: dict[NodeKind, Callable[[Operator], Runner]] = {
    NodeKind.SOURCE: SourceRunner,
    NodeKind.MAP: MapRunner,
    NodeKind.FLAT_MAP: FlatMapRunner,
    NodeKind.FILTER: FilterRunner,
    NodeKind.MAP_BATCHES: MapBatchesRunner,
    NodeKind.PROCESS: ProcessRunner,
}
