"""What functions are told about the element they process."""

from __future__ import annotations

from typing import Any

from turnback.core.errors import PlanError
from turnback.functions.base import user_function
from turnback.functions.event_time import TimerService
from turnback.plan.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.worker.event_time import TaskTime


class PlainContext:
    """The context of an element without a key.

    Attributes:
        time: Its event time, None if it has none.
    """

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
            missing = "its stream has no key; put key_by(...) before it"
        else:
            name = type(user_function(op.function)).__name__
            missing = (
                f"{name} has no on_timer(self, timestamp, ctx); write one, or take the timer out"
            )
        raise PlanError(f"operator {op.uid!r} ({op.name}) registers a timer, but {missing}")

    register_processing_time_timer = register_event_time_timer
    delete_event_time_timer = register_event_time_timer
    delete_processing_time_timer = register_event_time_timer
