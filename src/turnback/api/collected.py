"""The elements of a stream, in the hands of the program that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from turnback.api.client import JobClient
from turnback.core.errors import TurnbackError
from turnback.sinks.memory import CollectSink

_POLL_S = 0.02


class CloseableIterator(Iterator[Any]):
    """The elements of a stream as they are committed; ends with the job, and closing it ends it.

    Attributes:
        job: The job that runs.
    """

    def __init__(self, sink: CollectSink, job: JobClient) -> None:
        self.job = job
        self._sink = sink
        self._given = 0
        self._waiting: Iterator[Any] = iter(())
        self._is_closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next element; waits for it.

        Raises:
            JobFailedError: The job has failed for good.
        """
        while True:
            for element in self._waiting:
                return element
            if self._is_closed:
                raise StopIteration
            has_ended = self.job.done()
            self._waiting = iter(new := self._sink.results[self._given :])
            self._given += len(new)
            if not new and has_ended:
                self._is_closed = True
                self.job.result()
            elif not new:
                with suppress(TimeoutError, TurnbackError):  # raised once all elements are out
                    self.job.result(_POLL_S)

    def next(self) -> Any:
        """The next element; PyFlink's name."""
        return next(self)

    def close(self) -> None:
        """End the job if it still runs; what was not given out is dropped."""
        self._is_closed = True
        self._waiting = iter(())
        if not self.job.done():
            self.job.cancel()
            self.job.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
