from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa

from turnback.core.errors import ElementTypeError, StateError, TurnbackError, UnsupportedTypeError
from turnback.program.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from turnback.program.plan import Level, Operator
from turnback.sinks.base import SinkWriter, WriterContext
from turnback.state.backend import KeyedStateBackend
from turnback.types.columns import Batch, transpose
from turnback.types.frozen import is_mutable
from turnback.types.row import build_rows, row_class
from turnback.types.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import Order, TaskName, user_error


class Produced(Batch):
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
        """The elements, each of the declared class."""
        if self._formed is None:
            try:
                self._formed = self._in_form()
            except ElementTypeError as e:
                raise self._misfit(e) from None
        return self._formed

    @property
    def arrow(self) -> pa.RecordBatch:
        """The columns."""
        try:
            return super().arrow
        except ElementTypeError as e:
            raise self._misfit(e) from None

    def _in_form(self) -> list[Any]:
        kind, rows = self.type, self._rows or []
        parts = kind.types if isinstance(kind, RowTypeInfo) else (kind,)
        if any(isinstance(t, RowTypeInfo) or is_mutable(t) for t in parts):
            return Batch(kind, arrow=super().arrow).rows  # what is inside has a form as well
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
        """The key of the element."""
        return self._backend.declared_key()


class TaskContext:
    """The `RuntimeContext` a function is opened with."""

    def __init__(
        self,
        operator: Operator,
        partition: int,
        max_parallelism: int,
        backend: KeyedStateBackend | None,
    ) -> None:
        self._operator = operator
        self._partition = partition
        self._max_parallelism = max_parallelism
        self._backend = backend
        self._open = True

    def seal(self) -> None:
        """`open` is over: from now on the set of states is known."""
        self._open = False

    def get_task_name(self) -> str:
        """The operator's name."""
        return self._operator.name

    def get_operator_uid(self) -> str:
        """The operator's uid."""
        return self._operator.uid

    def get_index_of_this_subtask(self) -> int:
        """This instance's number, from 0."""
        return self._partition

    def get_number_of_parallel_subtasks(self) -> int:
        """How many instances the operator has."""
        return self._operator.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups."""
        return self._max_parallelism

    def get_state(self, descriptor: ValueStateDescriptor[Any]) -> Any:
        """The handle of a value state."""
        return self._register(descriptor, ValueStateDescriptor, "get_state")

    def get_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        """The handle of a list state."""
        return self._register(descriptor, ListStateDescriptor, "get_list_state")

    def get_map_state(self, descriptor: MapStateDescriptor[Any, Any]) -> Any:
        """The handle of a map state."""
        return self._register(descriptor, MapStateDescriptor, "get_map_state")

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[Any]) -> Any:
        """The handle of a reducing state."""
        return self._register(descriptor, ReducingStateDescriptor, "get_reducing_state")

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Any, Any, Any]) -> Any:
        """The handle of an aggregating state."""
        return self._register(descriptor, AggregatingStateDescriptor, "get_aggregating_state")

    def _register(
        self, descriptor: StateDescriptor, wanted: type[StateDescriptor], method: str
    ) -> Any:
        uid = self._operator.uid
        if not isinstance(descriptor, wanted):
            raise StateError(
                f"operator {uid!r}: {method} takes a {wanted.__name__}, "
                f"got {type(descriptor).__name__}"
            )
        if self._backend is None:
            raise StateError(
                f"operator {uid!r} asks for the keyed state {descriptor.name!r}, but its stream "
                f"has no key; put key_by(...) before it"
            )
        if not self._open:
            raise StateError(
                f"operator {uid!r} asks for the state {descriptor.name!r} after open(); "
                f"get every state in open()"
            )
        return self.register(descriptor)

    def register(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state of any kind."""
        assert self._backend is not None
        try:
            descriptor.check()
        except UnsupportedTypeError as e:
            raise UnsupportedTypeError(f"operator {self._operator.uid!r}: {e}") from None
        return self._backend.register(descriptor)


_LOG = logging.getLogger(__name__)


class SinkWriters:
    """The sink transactions of one task in one epoch, each begun with its first element."""

    def __init__(self, level: Level, order: Order, name: TaskName) -> None:
        self._order = order
        self._name = name
        self._writers: dict[str, SinkWriter] = {}
        self._operators = {op.uid: op for op in level.operators}
        self.counts: dict[str, int] = {}

    def write(self, operator: Operator, batch: Batch) -> None:
        """Write elements to a sink."""
        uid = operator.uid
        try:
            if uid not in self._writers:
                self._writers[uid] = operator.function.writer(self._context(operator))
            self._writers[uid].write(batch)
        except TurnbackError:
            raise
        except Exception as e:
            raise user_error(e, uid, operator.name, where="sink writer") from e
        self.counts[uid] = self.counts.get(uid, 0) + len(batch)

    def prepare(self) -> dict[str, tuple[bytes, ...]]:
        """Pre-commit everything; returns the transactions by sink uid."""
        transactions: dict[str, tuple[bytes, ...]] = {}
        for uid, writer in self._writers.items():
            try:
                handle = writer.prepare()
            except TurnbackError:
                raise
            except Exception as e:
                name = self._operators[uid].name
                raise user_error(e, uid, name, where="sink pre-commit") from e
            if handle is not None:
                transactions[uid] = (handle,)
        return transactions

    def abort(self) -> None:
        """Roll everything back; what cannot be is left to the next attempt."""
        for uid, writer in self._writers.items():
            try:
                writer.abort()
            except Exception as e:  # noqa: BLE001 - it must not hide why the epoch failed
                _LOG.warning("sink %r could not roll back: %s", uid, e)

    def _context(self, operator: Operator) -> WriterContext:
        order, name = self._order, self._name
        assert operator.input_type is not None
        return WriterContext(
            job=order.job,
            job_id=order.job_id,
            uid=operator.uid,
            attempt=order.attempt,
            epoch=order.epoch,
            partition=name.partition,
            task_attempt_id=name.attempt,
            type=operator.input_type,
        )
