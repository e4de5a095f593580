"""What tasks give to functions and sinks: runtime contexts and sink writers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

from turnback.errors import PlanError, StateError, UnsupportedTypeError
from turnback.functions.base import user_function
from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from turnback.functions.event_time import TimerService
from turnback.plan.plan import Level, Operator
from turnback.sinks.base import SinkWriter, WriterContext
from turnback.state.backend import KeyedStateBackend
from turnback.values.columns import Batch
from turnback.worker.event_time import TaskTime
from turnback.worker.message import EpochCommand, TaskName, naming_operator


class PlainContext:
    """The context of an element without a key."""

    __slots__ = ("_service", "time")

    def __init__(self, service: TimerService) -> None:
        self.time: int | None = None
        self._service = service

    def timestamp(self) -> int | None:
        return self.time

    def timer_service(self) -> TimerService:
        return self._service


class KeyedContext(PlainContext):
    """The context of an element under its key."""

    __slots__ = ("_backend",)

    def __init__(self, backend: KeyedStateBackend, service: TimerService) -> None:
        super().__init__(service)
        self._backend = backend

    def get_current_key(self) -> Any:
        return self._backend.declared_key()


class NoTimers:
    """The `TimerService` of a function that has no `on_timer`."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        self._operator = operator
        self._time = time

    def current_processing_time(self) -> int:
        return self._time.epoch.now_ms

    def current_watermark(self) -> int:
        return self._time.watermark_before(self._operator.strategies, self._operator.uid)

    def register_event_time_timer(self, timestamp: int) -> None:
        op = self._operator
        if op.key is None:
            missing = "its stream has no key; call key_by(...) before it"
        else:
            name = type(user_function(op.function)).__name__
            missing = f"{name} has no on_timer(self, timestamp, ctx); add one, or remove the timer"
        raise PlanError(f"operator {op.uid!r} ({op.name}) registers a timer, but {missing}")

    register_processing_time_timer = register_event_time_timer
    delete_event_time_timer = register_event_time_timer
    delete_processing_time_timer = register_event_time_timer


_LOG = logging.getLogger(__name__)


class TaskContext:
    """The `RuntimeContext` a function is opened with; states are registered while it `is_open`.

    `partition` returns that of the task at hand: without state one instance serves several.
    """

    def __init__(
        self,
        operator: Operator,
        partition: Callable[[], int],
        max_parallelism: int,
        backend: KeyedStateBackend | None,
    ) -> None:
        self._operator = operator
        self._partition = partition
        self._max_parallelism = max_parallelism
        self._backend = backend
        self.is_open = True

    def get_task_name(self) -> str:
        return self._operator.name

    def get_operator_uid(self) -> str:
        return self._operator.uid

    def get_index_of_this_subtask(self) -> int:
        return self._partition()

    def get_number_of_parallel_subtasks(self) -> int:
        return self._operator.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._max_parallelism

    def get_state(self, descriptor: ValueStateDescriptor[Any]) -> Any:
        return self._register(descriptor, ValueStateDescriptor, "get_state")

    def get_list_state(self, descriptor: ListStateDescriptor[Any]) -> Any:
        return self._register(descriptor, ListStateDescriptor, "get_list_state")

    def get_map_state(self, descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._register(descriptor, MapStateDescriptor, "get_map_state")

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[Any]) -> Any:
        return self._register(descriptor, ReducingStateDescriptor, "get_reducing_state")

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Any, Any, Any]) -> Any:
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
                f"operator {uid!r} requests the keyed state {descriptor.name!r}, but its stream "
                "has no key; call key_by(...) before it"
            )
        if not self.is_open:
            raise StateError(
                f"operator {uid!r} requests the state {descriptor.name!r} after open(); get "
                "every state in open()"
            )
        return self.register(descriptor)

    def register(self, descriptor: StateDescriptor) -> Any:
        assert self._backend is not None
        try:
            descriptor.check()
        except UnsupportedTypeError as e:
            raise UnsupportedTypeError(f"operator {self._operator.uid!r}: {e}") from None
        return self._backend.register(descriptor)


class SinkWriters:
    """The sink transactions of one task in one epoch, each begun with its first element."""

    def __init__(self, level: Level, command: EpochCommand, name: TaskName) -> None:
        self._command = command
        self._name = name
        self._writers: dict[str, SinkWriter] = {}
        self._operators = {op.uid: op for op in level.operators}
        self.counts: dict[str, int] = {}
        self.busy_s: dict[str, float] = {}
        """How long each sink has worked, by uid."""

    def write(self, operator: Operator, batch: Batch) -> None:
        uid = operator.uid
        started = perf_counter()
        with naming_operator(uid, operator.name, "sink writer"):
            if uid not in self._writers:
                self._writers[uid] = operator.function.writer(self._context(operator))
            self._writers[uid].write(batch)
        self.counts[uid] = self.counts.get(uid, 0) + len(batch)
        self.busy_s[uid] = self.busy_s.get(uid, 0.0) + perf_counter() - started

    def prepare(self) -> dict[str, tuple[bytes, ...]]:
        """Pre-commit everything; returns the transactions by sink uid."""
        transactions: dict[str, tuple[bytes, ...]] = {}
        for uid, writer in self._writers.items():
            started = perf_counter()
            with naming_operator(uid, self._operators[uid].name, "sink pre-commit"):
                handle = writer.prepare()
            self.busy_s[uid] += perf_counter() - started
            if handle is not None:
                transactions[uid] = (handle,)
        return transactions

    def abort(self) -> None:
        """Roll everything back; what cannot be is left to the next attempt."""
        for uid, writer in self._writers.items():
            try:
                writer.abort()
            except Exception as e:  # noqa: BLE001 - it must not hide why the epoch failed
                _LOG.warning("sink %r cannot roll back: %s", uid, e)

    def _context(self, operator: Operator) -> WriterContext:
        command = self._command
        name = self._name
        assert operator.input_type is not None
        return WriterContext(
            job=command.job,
            job_id=command.job_id,
            uid=operator.uid,
            attempt=command.attempt,
            epoch=command.epoch,
            partition=name.partition,
            task_attempt_id=name.attempt,
            type=operator.input_type,
            storage=command.storage,
            directory_id=command.directory_id,
            nonce=command.nonce,
        )
