"""Calls to the outside of which many are under way at once, and how they are tried again."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnback.errors import PlanError
from turnback.functions.base import Function, RuntimeContext, declared_states

ResultPredicate = Callable[[list[Any]], bool]
ExceptionPredicate = Callable[[Exception], bool]


class AsyncFunction(Function, ABC):
    """A function that calls an external system, such as a service with more data on an element.

    Its calls run on an event loop in a thread of the worker: create shared objects, such as a
    client, in the first call, because they belong to that loop. It has no state.
    """

    @abstractmethod
    async def async_invoke(self, value: Any) -> list[Any]:
        """Return a list of the new elements for an element.

        All calls of an epoch finish before its barrier. They are repeated when a task or an epoch
        is repeated, so their external effects must allow that.
        """

    def timeout(self, value: Any) -> list[Any]:
        """Return the elements for an element whose call timed out; raises an error by default."""
        raise TimeoutError("the call took longer than its timeout")


class AsyncRetryPredicate(ABC):
    """Which calls are tried again."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """A function that is true for results of which a call is tried again; None for none."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """A function that is true for errors after which a call is tried again; None for none."""


class AsyncRetryStrategy(ABC):
    """How often and when a call is tried again."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Whether there may be another try after so many."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """How long to wait after so many tries, in milliseconds."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Which calls are tried again."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Try nothing again."""
        return BackoffRetries(0, 1, 1, 1)

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> AsyncRetryStrategy:
        """Try up to `max_attempts` times more, after the same time each."""
        _check_positive(max_attempts=max_attempts, backoff_time_millis=backoff_time_millis)
        _check_predicates(result_predicate, exception_predicate)
        delay = backoff_time_millis
        return BackoffRetries(max_attempts, delay, delay, 1, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> AsyncRetryStrategy:
        """Try up to `max_attempts` times more, each after `multiplier` times as long as before."""
        _check_positive(
            max_attempts=max_attempts,
            initial_delay=initial_delay,
            max_retry_delay=max_retry_delay,
            multiplier=multiplier,
        )
        _check_predicates(result_predicate, exception_predicate)
        return BackoffRetries(
            max_attempts,
            initial_delay,
            max_retry_delay,
            multiplier,
            result_predicate,
            exception_predicate,
        )


@dataclass(frozen=True)
class BackoffRetries(AsyncRetryStrategy, AsyncRetryPredicate):
    """Tries again so many times, after a delay that grows by a factor up to a limit."""

    retries: int
    first_ms: int
    longest_ms: int
    multiplier: float
    of_result: ResultPredicate | None = None
    of_exception: ExceptionPredicate | None = None

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self.retries

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        try:
            delay = self.first_ms * self.multiplier ** (current_attempts - 1)
        except OverflowError:
            delay = self.longest_ms
        return int(min(delay, self.longest_ms))

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self

    def result_predicate(self) -> ResultPredicate | None:
        return self.of_result

    def exception_predicate(self) -> ExceptionPredicate | None:
        return self.of_exception


@dataclass(eq=False)
class AsyncWait(Function):
    """An `AsyncFunction` with the way in which it is called.

    Attributes:
        timeout_ms: How long all tries for one element may take; 0 for any time.
        capacity: How many calls may be under way at once in a task.
        ordered: Whether elements come out in the order in which they came in.
    """

    function: AsyncFunction
    timeout_ms: int
    capacity: int
    retries: AsyncRetryStrategy
    ordered: bool

    def open(self, runtime_context: RuntimeContext) -> None:
        self.function.open(runtime_context)

    def close(self) -> None:
        self.function.close()


def check_async_function(function: Any, method: str) -> None:
    """Refuse what is not an `AsyncFunction`, or one that could not run."""
    if isinstance(function, type) and issubclass(function, AsyncFunction):
        raise PlanError(f"{method} takes an instance; write {function.__name__}() with parentheses")
    if not isinstance(function, AsyncFunction):
        raise PlanError(f"{method} takes an AsyncFunction, got {type(function).__name__}")
    name = type(function).__name__
    if not inspect.iscoroutinefunction(function.async_invoke):
        raise PlanError(f"{name}.async_invoke must be declared with `async def`")
    states = [each.name for each in declared_states(function).values()]
    if states:
        raise PlanError(
            f"{name} declares the state {states[0]!r}, but an AsyncFunction has no state: its "
            f"calls overlap. Keep it in a KeyedProcessFunction before or after it"
        )


def check_retries(strategy: Any, timeout_ms: int, method: str) -> None:
    """Refuse what is not an `AsyncRetryStrategy`, and one without an end."""
    if not isinstance(strategy, AsyncRetryStrategy):
        raise PlanError(
            f"{method} takes an AsyncRetryStrategy, such as AsyncRetryStrategy.fixed_delay(...), "
            f"got {type(strategy).__name__}"
        )
    if not isinstance(strategy.get_retry_predicate(), AsyncRetryPredicate):
        raise PlanError(
            f"get_retry_predicate of {type(strategy).__name__} must return an AsyncRetryPredicate"
        )
    if timeout_ms == 0 and strategy.can_retry(1):
        raise PlanError(f"{method} needs a timeout above 0, within which calls are retried")


def _check_positive(**numbers: Any) -> None:
    for name, number in numbers.items():
        whole = isinstance(number, int) or (name == "multiplier" and isinstance(number, float))
        if not whole or isinstance(number, bool) or number <= 0:
            raise PlanError(f"{name} of a retry strategy must be a number above 0, got {number!r}")


def _check_predicates(*predicates: Any) -> None:
    for predicate in predicates:
        if predicate is not None and not callable(predicate):
            raise PlanError(f"a predicate of retries must be a function or None, got {predicate!r}")
    if predicates == (None, None):
        raise PlanError(
            "a retry strategy needs a result_predicate or an exception_predicate: without one, "
            "nothing is ever retried"
        )
