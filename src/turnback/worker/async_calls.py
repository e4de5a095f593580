"""Runs the calls of an `AsyncFunction`: many at once, all over before the barrier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from itertools import groupby, repeat
from typing import Any, NamedTuple

import numpy as np

from turnback.core.errors import ElementTypeError
from turnback.functions.async_io import AsyncWait
from turnback.plan.plan import Operator
from turnback.values.columns import Batch
from turnback.worker.event_time import TaskTime
from turnback.worker.message import user_error
from turnback.worker.runners import FunctionRunner
from turnback.worker.stamps import Part, Stamps

_CANCEL_S = 5.0
"""How long calls that are given up may take to end."""


class _Call(NamedTuple):
    """A call for one element.

    Attributes:
        stamps: Those of the element, if it has any.
        part: The part of the source that it comes from.
    """

    value: Any
    future: Future[list[Any]]
    stamps: tuple[int, ...] | None
    part: Part


class _CallsOfEpoch:
    """The calls of one epoch; those it has given up may end later, and concern no other epoch.

    Attributes:
        calls: Those whose results were not given out yet, in the order of their elements.
        tasks: What runs them.
        room: Lets only so many run at once.
        failed: The first error, and the element.
    """

    def __init__(self, capacity: int) -> None:
        self.calls: list[_Call] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.room = asyncio.Semaphore(capacity)
        self.failed: tuple[BaseException, Any] | None = None


class EventLoop:
    """An event loop in a thread of its own, so that calls go on whatever the task is at."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="turnback-calls", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Begin some work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


class AsyncWaitRunner(FunctionRunner):
    """Begins a call for every element as soon as there is room for it.

    Results that are there come out with each batch, the rest at the end of the epoch, each as part
    of the source that its element comes from. The first call that fails ends the epoch, whatever
    else is under way.
    """

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self._time = time
        self._wait: AsyncWait = operator.function
        predicate = self._wait.retries.get_retry_predicate()
        self._try_result_again = predicate.result_predicate() or _never
        self._try_error_again = predicate.exception_predicate() or _never
        self._loop: EventLoop | None = None
        self._epoch = _CallsOfEpoch(self._wait.capacity)

    def begin(self) -> None:
        super().begin()
        self._cancel()

    def close(self) -> None:
        self._cancel()
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def process(self, batch: Batch) -> Batch | None:
        if self._loop is None:
            self._loop = EventLoop()
        stamps: Iterable[Any] = repeat(None)
        if batch.stamps is not None:
            stamps = zip(*(column.tolist() for column in batch.stamps), strict=True)
        part = self._time.part
        calls = [
            _Call(row, Future(), each, part) for row, each in zip(batch.rows, stamps, strict=False)
        ]
        self._epoch.calls += calls
        self._loop.submit(self._begin_calls(self._epoch, calls)).result()
        self._give_out()
        return None

    def process_rest(self) -> Batch | None:
        if self._epoch.calls:
            wait([call.future for call in self._epoch.calls], return_when=FIRST_EXCEPTION)
            self._give_out()
        return None

    def _give_out(self) -> None:
        """Give out the results that are there, and, if order matters, whose turn it is."""
        if self._epoch.failed is not None:
            error, value = self._epoch.failed
            raise self.failed(error, value) from error
        # A strategy that follows must not find an element late because its call took longer.
        ordered = self._wait.ordered or self._time.order_matters
        done: list[_Call] = []
        waiting: list[_Call] = []
        for call in self._epoch.calls:
            is_its_turn = call.future.done() and not (waiting and ordered)
            (done if is_its_turn else waiting).append(call)
        self._epoch.calls = waiting
        # Whether elements have stamps is the same for all of a batch, which is of one part.
        for (part, stamped), calls in groupby(done, lambda c: (c.part, c.stamps is not None)):
            batch = self._results(list(calls), stamped=stamped)
            if batch is not None:
                self.parts.append((part, batch))

    def _results(self, calls: Sequence[_Call], *, stamped: bool) -> Batch | None:
        results = [call.future.result() for call in calls]
        rows = [row for some in results for row in some]
        if not stamped or not rows:
            return self.output(rows)
        columns = np.array([call.stamps for call in calls], np.int64).T
        return self.output(rows, Stamps(*columns).repeat([len(some) for some in results]))

    def failed(self, error: BaseException, element: Any) -> Exception:
        if not isinstance(error, asyncio.CancelledError):
            return super().failed(error, element)
        op = self.operator
        advice = "what it waited for was cancelled, such as a request of a client that was closed"
        return user_error(error, op.uid, op.name, advice, element=element)

    def _cancel(self) -> None:
        """Give up what an epoch that failed has left under way."""
        if self._loop is not None and self._epoch.tasks:
            self._loop.submit(self._cancel_calls(self._epoch)).result()
        self._epoch = _CallsOfEpoch(self._wait.capacity)

    # -- in the thread of the event loop

    async def _begin_calls(self, epoch: _CallsOfEpoch, calls: list[_Call]) -> None:
        for call in calls:
            await epoch.room.acquire()
            if epoch.failed is not None:
                return
            task = asyncio.create_task(self._run(call, epoch))
            epoch.tasks.add(task)
            task.add_done_callback(epoch.tasks.discard)

    async def _cancel_calls(self, epoch: _CallsOfEpoch) -> None:
        tasks = list(epoch.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)

    async def _run(self, call: _Call, epoch: _CallsOfEpoch) -> None:
        try:
            results = await self._invoke(call.value)
            call.future.set_result([self.freezer.freeze(each) for each in results])
        except BaseException as e:  # noqa: BLE001 - raised again by who takes the result
            # However a call ends, somebody waits for it; sys.exit() would end the event loop.
            epoch.failed = epoch.failed or (e, call.value)
            call.future.set_exception(e)
        finally:
            epoch.room.release()

    async def _invoke(self, value: Any) -> list[Any]:
        limit = asyncio.timeout(self._wait.timeout_ms / 1000 or None)
        try:
            async with limit:
                return self._checked(await self._with_retries(value), "async_invoke")
        except TimeoutError:
            if not limit.expired():
                raise
            return self._checked(self._wait.function.timeout(value), "timeout")

    async def _with_retries(self, value: Any) -> Any:
        retries = self._wait.retries
        attempt = 1
        while True:
            try:
                results = await self._wait.function.async_invoke(value)
                if not retries.can_retry(attempt) or not self._try_result_again(results):
                    return results
            except (Exception, asyncio.CancelledError) as e:
                if _is_given_up():
                    raise
                if not retries.can_retry(attempt) or not self._try_error_again(e):
                    raise
            await asyncio.sleep(retries.get_backoff_time_millis(attempt) / 1000)
            attempt += 1

    def _checked(self, results: Any, method: str) -> list[Any]:
        if isinstance(results, list):
            return results
        name = type(self._wait.function).__name__
        raise ElementTypeError(
            f"{name}.{method} must return a list of elements, got {results!r:.80}"
        )


def _is_given_up() -> bool:
    """Whether it is this very call that is cancelled, and not something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _never(_: Any) -> bool:
    return False
