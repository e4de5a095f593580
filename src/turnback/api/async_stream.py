"""Calls to the outside for every element, many at a time."""

from __future__ import annotations

from typing import Any

from turnback.api.functions import name_of
from turnback.api.stream import DataStream
from turnback.core.errors import PlanError
from turnback.functions.async_io import (
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncWait,
    check_async_function,
    check_retries,
)
from turnback.functions.event_time import Duration, as_milliseconds
from turnback.plan.graph import NodeKind
from turnback.values.hints import as_type


class AsyncDataStream:
    """Applies an `AsyncFunction` to a stream."""

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Give out the results of calls as they come.

        Where a strategy may yet give them timestamps, they come in the order of their elements.

        Args:
            data_stream: The stream.
            async_function: What to call for each element.
            timeout: How long a call may take; 0 for any time.
            capacity: How many calls may be under way at once in a task.
            output_type: Type of the elements that calls give.
        """
        no_retries = AsyncRetryStrategy.no_restart()
        return AsyncDataStream.unordered_wait_with_retry(
            data_stream, async_function, timeout, no_retries, capacity, output_type
        )

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Give out the results of calls as they come, and try some again.

        Args:
            data_stream: The stream.
            async_function: What to call for each element.
            timeout: How long all tries of a call may take.
            async_retry_strategy: Which calls are tried again, and when.
            capacity: How many calls may be under way at once in a task.
            output_type: Type of the elements that calls give.
        """
        return _wait(
            data_stream,
            async_function,
            timeout,
            async_retry_strategy,
            capacity,
            output_type,
            ordered=False,
        )

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Give out the results of calls in the order of the elements; see `unordered_wait`."""
        no_retries = AsyncRetryStrategy.no_restart()
        return AsyncDataStream.ordered_wait_with_retry(
            data_stream, async_function, timeout, no_retries, capacity, output_type
        )

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: Duration,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Give out the results in the order of the elements; see `unordered_wait_with_retry`."""
        return _wait(
            data_stream,
            async_function,
            timeout,
            async_retry_strategy,
            capacity,
            output_type,
            ordered=True,
        )


def _wait(
    stream: DataStream,
    function: AsyncFunction,
    timeout: Duration,
    retries: AsyncRetryStrategy,
    capacity: int,
    output_type: Any,
    *,
    ordered: bool,
) -> DataStream:
    method = "ordered_wait" if ordered else "unordered_wait"
    if not isinstance(stream, DataStream):
        raise PlanError(f"{method} takes a stream, got {type(stream).__name__}")
    check_async_function(function, method)
    timeout_ms = as_milliseconds(timeout, f"the timeout of {method}")
    check_retries(retries, timeout_ms, method)
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise PlanError(f"the capacity of {method} must be a whole number above 0: {capacity!r}")
    if output_type is None:
        raise PlanError(f"{method} needs output_type, the type of the elements that calls give")
    wait = AsyncWait(function, timeout_ms, capacity, retries, ordered)
    node = stream._graph.add(
        NodeKind.ASYNC_WAIT, name_of(function), as_type(output_type), (stream._node,), function=wait
    )
    return DataStream(stream._graph, node)
