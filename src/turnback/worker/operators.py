"""The operators of one partition of a level: their functions, opened, and the state they have."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import replace
from itertools import groupby, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from turnback.core.event_loop import EventLoop
from turnback.errors import ElementTypeError, PlanError, StateError
from turnback.functions.async_io import AsyncWait
from turnback.functions.base import Function, KeyedBatchFunction, declared_states, user_function
from turnback.functions.broadcast import BroadcastOperator, named_state
from turnback.functions.descriptors import StateDescriptor
from turnback.functions.event_time import (
    FURTHEST_TIME,
    MAX_TIME,
    MIN_TIME,
    TimeDomain,
    TimestampAssigner,
)
from turnback.plan.bad_records import ErrorPolicy
from turnback.plan.graph import NodeKind
from turnback.plan.plan import EVENT_TIMERS, PROCESSING_TIMERS, Operator, has_timers
from turnback.plan.sources import WHOLE
from turnback.state.backend import KeyedStateBackend
from turnback.state.list_and_map import ListState, MapState
from turnback.state.subtasks import NoStore, OperatorStateBackend
from turnback.state.time_order import TimeOrderedState
from turnback.timing.folded_windows import PaneWindows, WindowAggregation, WindowCombination
from turnback.timing.windows import GLOBAL_WINDOW
from turnback.values.columns import Batch, stream_columns
from turnback.worker.context import KeyedContext, TaskContext
from turnback.worker.event_time import (
    ASIDE,
    FED_BACK,
    NOWHERE,
    UNPLACED,
    Part,
    Stamps,
    TaskTime,
    Times,
)
from turnback.worker.local_state import (
    Confirmed,
    OperatorStateContext,
    check_names,
    confirmed_before,
    initialize,
)
from turnback.worker.message import EpochCommand, user_error
from turnback.worker.ordering import OrderedRunner, OutputPosition, TimedOutput
from turnback.worker.output import FunctionOutput
from turnback.worker.program import LevelProgram
from turnback.worker.runners import (
    CombineRunner,
    FilterRunner,
    FlatMapRunner,
    ForwardRunner,
    FunctionRunner,
    KeyedBatchRunner,
    KeyedFilterRunner,
    KeyedProcessRunner,
    MapBatchesRunner,
    MapRunner,
    ReduceRunner,
    Runner,
    SourceOrderRunner,
    times_of,
)
from turnback.worker.tolerance import ElementGuard, element_functions
from turnback.worker.windows import FoldedWindowRunner, WindowAggregationRunner, WindowCombineRunner


class _Timestamps:
    """Reads the timestamps of elements, as a strategy says."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        assert operator.input_type is not None
        assigner = operator.function.assigner
        if isinstance(assigner, TimestampAssigner):
            self.read: Callable[[Batch], Times] = self._by_function
        else:
            names = [name for name, _ in stream_columns(operator.input_type)]
            self._column = names.index(assigner)
            self.read = self._by_column
        assert operator.type is not None
        self._kept = [name for name, _ in stream_columns(operator.type)]
        self._keeps_all = len(self._kept) == len(stream_columns(operator.input_type))

    def bare(self, batch: Batch) -> Batch:
        """The elements as the strategy gives them on, not yet stamped."""
        if self._keeps_all:
            return batch.copy() if batch.stamps is not None else batch
        assert self._operator.type is not None
        return Batch(self._operator.type, batch.arrow.select(self._kept))

    def _by_column(self, batch: Batch) -> Times:
        column = batch.arrow.column(self._column)
        if column.null_count:
            name = self._operator.function.assigner
            row = batch.rows[column.is_null().index(True).as_py()]
            raise self._without(f"null in the column {name} of", row)
        if not pa.types.is_timestamp(column.type):
            numbers: Times = column.to_numpy().astype(np.int64)
            outside = np.flatnonzero((numbers < -FURTHEST_TIME) | (numbers > FURTHEST_TIME))
            for i in outside[:1].tolist():
                name = self._operator.function.assigner
                raise self._without(f"{numbers[i]} in the column {name} of", batch.rows[i])
            return numbers
        micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
        times: Times = micros.to_numpy() // 1000
        return times

    def _by_function(self, batch: Batch) -> Times:
        op = self._operator
        row = None
        times = []
        extract = op.function.assigner.extract_timestamp
        stamps = batch.stamps
        before = [MIN_TIME] * len(batch) if stamps is None else stamps.time.tolist()
        try:
            for row, known in zip(batch.rows, before, strict=True):
                times.append(extract(row, known))
        except Exception as e:
            raise user_error(e, op.uid, "extract_timestamp", element=row) from e
        for row, time in zip(batch.rows, times, strict=True):
            if type(time) is not int or not -FURTHEST_TIME <= time <= FURTHEST_TIME:
                raise self._without(f"{time!r:.40} from extract_timestamp for", row)
        return np.array(times, np.int64)

    def _without(self, what: str, row: object) -> ElementTypeError:
        op = self._operator
        return ElementTypeError(
            f"operator {op.uid!r} ({op.name}): an element has no timestamp: {what} {row!r:.80}. "
            f"Timestamps must be whole milliseconds since 1970, at most {FURTHEST_TIME} before "
            "or after; filter such elements out first"
        )


class TimestampsRunner(Runner):
    """Gives elements their timestamps where they are read."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self._time = time
        self._timestamps = _Timestamps(operator)

    def process(self, batch: Batch) -> Batch | None:
        if not len(batch):
            return None
        times = self._timestamps.read(batch)
        stamped = self._timestamps.bare(batch)
        stamped.stamps = self._time.stamp(self.operator.uid, times)
        return stamped


class ShuffledTimestampsRunner(OrderedRunner):
    """Gives elements their timestamps behind a shuffle.

    One task gets all of them. If they have watermarks already, they come in the order of these.
    Else every partition of their sources has an order for itself, and a watermark.
    """

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend, time, [None])
        self._timestamps = _Timestamps(operator)
        known = "" not in operator.strategies
        self._by_watermarks = known and time.has_watermarks(operator.strategies)

    def process_rest(self) -> Batch | None:
        parts = self._in_order_of_watermarks() if self._by_watermarks else self._by_partitions()
        stamped = [self._stamped(part, partition) for part, partition in parts]
        return _joined(stamped) if stamped else None

    def _stamped(self, batch: Batch, partition: int) -> Batch:
        uid = self.operator.uid
        times = self._timestamps.read(batch)
        stamped = self._timestamps.bare(batch)
        if partition == UNPLACED:
            stamped.stamps = self.time.stamp_unplaced(uid, times)
        elif partition == ASIDE[0]:
            stamped.stamps = self.time.stamp_fed_back(uid, times)
        else:
            stamped.stamps = self.time.stamp_in_order(uid, times, partition)
        return stamped

    def _in_order_of_watermarks(self) -> list[tuple[Batch, int]]:
        """All elements whose time has come, which is as good as one partition.

        Those that were fed back are none of it: event time does not go by them.
        """
        _, after = self.watermarks()
        whole = self.whole_batches(after)
        if whole is not None:
            return [part for batch, _ in whole for part in _fed_back_aside(batch)]
        elements = list(self.in_order(after))
        if not elements:
            return []
        batch = Batch(self.operator.inputs[0].type, [element for _, _, _, element, *_ in elements])
        known = (MIN_TIME if time is None else time for _, time, *_ in elements)
        times = np.fromiter(known, np.int64, len(elements))
        batch.stamps = Stamps.of(times, np.full(len(times), MIN_TIME, np.int64))
        batch.stamps.segment[:] = [segment for *_, (segment, _) in elements]
        return _fed_back_aside(batch)

    def _by_partitions(self) -> list[tuple[Batch, int]]:
        """All elements, each partition in its order."""
        batches = [batch for batch in self.take_gathered() if len(batch)]
        if not batches:
            return []
        batch = _joined(batches)
        partitions = self.time.partitions(batch.stamps, self.operator.uid)
        order = self.time.order(batch.stamps, self.time.marks(batch.stamps))
        parts = []
        for number in np.unique(partitions).tolist():
            mine = order[partitions[order] == number]
            part = Batch(batch.type, batch.arrow.take(pa.array(mine)))
            part.stamps = batch.stamps.take(mine)
            parts.append((part, number))
        return parts


def _fed_back_aside(batch: Batch) -> list[tuple[Batch, int]]:
    """The elements of a batch, those that were fed back as a partition of their own."""
    assert batch.stamps is not None
    fed_back = batch.stamps.segment == FED_BACK
    if not fed_back.any():
        return [(batch, WHOLE)]
    parts = []
    for mine, number in ((~fed_back, WHOLE), (fed_back, ASIDE[0])):
        if mine.any():
            part = Batch(batch.type, batch.arrow.filter(pa.array(mine)))
            part.stamps = batch.stamps.take(mine)
            parts.append((part, number))
    return parts


def _joined(batches: Sequence[Batch]) -> Batch:
    """One batch of several, all of whose elements have stamps."""
    if len(batches) == 1 and batches[0].stamps is not None:
        return batches[0]
    tables = [pa.Table.from_batches([batch.arrow]) for batch in batches]
    (data,) = pa.concat_tables(tables).combine_chunks().to_batches()
    joined = Batch(batches[0].type, data)
    joined.stamps = Stamps.join([batch.stamps or _unknown(len(batch)) for batch in batches])
    return joined


class TimerContext(KeyedContext):
    """The context of an element or a timer, and the `TimerService` of a function with timers.

    Attributes:
        watermark: How far event time has come.
        last_timers: While event time runs to its end, the last timer that each key had before;
            None at other times.
        clock_timer: The time of the timer by the clock that fires; None at other times.
    """

    __slots__ = (
        "_clock", "_domain", "_event", "_names", "_processing",
        "clock_timer", "last_timers", "watermark",
    )  # fmt: skip

    def __init__(
        self,
        backend: KeyedStateBackend,
        time: TaskTime,
        event: TimeOrderedState,
        processing: TimeOrderedState,
    ) -> None:
        super().__init__(backend, self)
        self.watermark = MIN_TIME
        self.last_timers: dict[Any, int] | None = None
        self.clock_timer: int | None = None
        self._clock = time
        self._event = event
        self._processing = processing
        self._domain: TimeDomain | None = None
        self._names: Any = None

    def during(self, domain: TimeDomain, time: int, names: Any) -> None:
        self._domain = domain
        self.time = time
        self._names = names

    def time_domain(self) -> TimeDomain:
        assert self._domain is not None, "only on_timer has a time domain"
        return self._domain

    def timer_names(self) -> Sequence[Name]:
        """What the timer is for, if it was registered with `register_named`."""
        return self._names  # type: ignore[no-any-return]

    def current_processing_time(self) -> int:
        return self._clock.epoch.now_ms

    def current_watermark(self) -> int:
        return self.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._register(TimeDomain.EVENT_TIME, _checked(timestamp))

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._register(TimeDomain.PROCESSING_TIME, _checked(timestamp))

    def _register(self, domain: TimeDomain, time: int) -> None:
        if self._has_to_wait(domain, time):
            self._timers(domain).put_aside(time, True)
        else:
            self._timers(domain).put(time, True)

    def _has_to_wait(self, domain: TimeDomain, time: int) -> bool:
        """Whether a timer does not fire in this epoch, although it is due.

        One that registers itself again and again would never end.
        """
        if domain is TimeDomain.PROCESSING_TIME:
            return self.clock_timer is not None and time <= self.clock_timer
        return self.last_timers is not None and time > self._end_of_time(self.last_timers)

    def _end_of_time(self, last_timers: dict[Any, int]) -> int:
        """Up to when timers of the current key fire while event time runs to its end."""
        last = last_timers.get(self._backend.key, MIN_TIME)
        if self.time is not None and self.time <= last:
            return MAX_TIME  # it has waited, and may have one to follow it
        return max(last, self.watermark) if self.watermark < MAX_TIME else last

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._event.remove(_checked(timestamp))

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._processing.remove(_checked(timestamp))

    def register_named(self, domain: TimeDomain, timestamp: int, name: Name) -> None:
        """Register a timer that holds what it is for; for the timers of windows."""
        time = _checked(timestamp)
        self._timers(domain).add(time, name, aside=self._has_to_wait(domain, time))

    def delete_named(self, domain: TimeDomain, timestamp: int, name: Name) -> None:
        """Delete a timer as far as it is for this; nothing happens if it is not."""
        timers = self._timers(domain)
        time = _checked(timestamp)
        names = timers.get(time) or []
        if name not in names:
            return
        others = [each for each in names if each != name]
        if others:
            timers.put(time, others)
        else:
            timers.remove(time)

    def _timers(self, domain: TimeDomain) -> TimeOrderedState:
        return self._event if domain is TimeDomain.EVENT_TIME else self._processing


Name = tuple[int, ...]
"""What a timer is for."""


def _checked(timestamp: Any) -> int:
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise StateError(
            f"a timer needs whole milliseconds since 1970, got {timestamp!r:.40}; for a "
            "datetime, use int(time.timestamp() * 1000)"
        )
    return min(max(timestamp, MIN_TIME + 1), MAX_TIME)


class TimerRunner(OrderedRunner):
    """A function with timers: those that are due fire before each element."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend, time, element_functions(operator))
        self._event: TimeOrderedState = self.states[EVENT_TIMERS]
        self._processing: TimeOrderedState = self.states[PROCESSING_TIMERS]
        self.context = TimerContext(backend, time, self._event, self._processing)
        self._element_watermark = self._mark = MIN_TIME
        """The watermark at the last element, and at what was given last."""
        self._position: OutputPosition = (NOWHERE, 0)

    def begin(self) -> None:
        super().begin()
        self.context.last_timers = self.context.clock_timer = None

    def process_rest(self) -> Batch | None:
        context = self.context
        context.watermark, after = self.watermarks()
        self._element_watermark = self._mark = context.watermark
        out = self.timed_output()
        self._position = (NOWHERE, 0)
        now = self.time.epoch.now_ms
        self._processing.open(now)
        self._event.open(after)
        self._fire_processing(now, out)
        elements = self.in_order(after)
        row = None
        due = self._event.due
        try:
            for mark, moment, key, row, function, position in elements:
                if due and due[0][0] <= mark:
                    self._fire_event(mark, out)
                if mark > context.watermark:
                    context.watermark = mark
                self._element_watermark = self._mark = context.watermark
                self.backend.key = key
                context.time = moment
                self._position = position
                out.add(function(row, context), moment, context.watermark, position)
        except Exception as e:
            raise self.failed(e, row) from e
        if self.time.epoch.ended:
            self._drain(out)
        else:
            self._fire_event(after, out)
        context.watermark = max(context.watermark, after)
        self._fire_processing(now, out)
        return self.collected(out.collected, out.stamps())

    def _drain(self, out: TimedOutput) -> None:
        """Let event time run to its end, which is where the last timer of each key was."""
        if self._has_event_time:
            self._fire_event(self.time.reached(self.operator.strategies, self.operator.uid), out)
        # Global windows end with time itself, which is no time that others could go on until.
        self.context.last_timers = self._event.last_due(GLOBAL_WINDOW.max_timestamp())
        self._fire_event(MAX_TIME, out)
        self.context.last_timers = None

    def next_timer(self) -> int | None:
        return self._processing.earliest()

    def _fire_event(self, upto: int, out: TimedOutput) -> None:
        while (due := self._event.take(upto)) is not None:
            time, key, names = due
            self.context.watermark = max(self.context.watermark, time)
            # What it gives comes right before the watermark at which it is due. If it was due
            # when it was set, it comes after what set it: the last element, or another timer.
            if time > self._element_watermark or self._mark > self._element_watermark:
                self._mark = max(self._mark, time - 1)
                self._position = out.end_of_watermark(key)
            self._fire(TimeDomain.EVENT_TIME, time, names, out, time, self._mark, self._position)

    def _fire_processing(self, now: int, out: TimedOutput) -> None:
        while (due := self._processing.take(now)) is not None:
            time, _, names = due
            self.context.clock_timer = time
            mark = self.context.watermark
            self._fire(TimeDomain.PROCESSING_TIME, time, names, out, None, mark, (NOWHERE, 0))
        self.context.clock_timer = None

    def _fire(
        self,
        domain: TimeDomain,
        time: int,
        names: Any,
        out: TimedOutput,
        stamp: int | None,
        mark: int,
        position: OutputPosition,
    ) -> None:
        op = self.operator
        context = self.context
        context.during(domain, time, names)
        try:
            out.add(op.function.on_timer(time, context), stamp, mark, position)
        except Exception as e:
            name = f"{op.name}, on_timer"
            key = self.backend.key
            raise user_error(e, op.uid, name, key=key, timer=time) from e


_CANCEL_S = 5.0
"""How long calls that are given up may take to end."""


class _Call(NamedTuple):
    """A call for one element."""

    value: Any
    future: Future[list[Any]]
    stamps: tuple[int, ...] | None
    part: Part


class _CallsOfEpoch:
    """The calls of one epoch; those it has given up may end later, and concern no other epoch.

    Attributes:
        calls: Those whose results were not given out yet, in the order of their elements.
        room: Lets only so many run at once.
        failed: The first error, and the element.
    """

    def __init__(self, capacity: int) -> None:
        self.calls: list[_Call] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.room = asyncio.Semaphore(capacity)
        self.failed: tuple[BaseException, Any] | None = None


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
            self._loop = EventLoop("turnback-calls")
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

    def failed(self, error: BaseException, element: Any, **about: Any) -> Exception:
        if not isinstance(error, asyncio.CancelledError):
            return super().failed(error, element, **about)
        op = self.operator
        advice = (
            "it was waiting for something that was cancelled, such as a request of a closed client"
        )
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


class NumberRunner(Runner):
    """Gives elements that are broadcast the number of their task, and one of their own."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self._time = time
        self._count = 0

    def begin(self) -> None:
        super().begin()
        self._count = 0

    def process(self, batch: Batch) -> Batch | None:
        op = self.operator
        task = self._time.task
        first = self._count
        assert op.type is not None
        self._count += len(batch)
        rows = [(task, first + i, element) for i, element in enumerate(batch.rows)]
        numbered = FunctionOutput(op.type, rows, f"operator {op.uid!r} ({op.name})")
        numbered.stamps = batch.stamps
        return numbered


def main_operator(operator: Operator) -> Operator:
    """What an operator does with the stream that is not broadcast, as an operator of its own."""
    kind = NodeKind.PROCESS if operator.key is None else NodeKind.KEYED_PROCESS
    return replace(operator, kind=kind, inputs=operator.inputs[:1])


class BroadcastRunner(FunctionRunner):
    """A broadcast process function; `main` runs it for the stream that is not broadcast.

    The elements of an epoch are processed at its end: first the broadcast ones, in the order of
    their source if it is known, else in that of the tasks they come from, and of their numbers.
    That is the same in all subtasks.
    """

    def __init__(
        self, operator: Operator, main: Runner, backend: KeyedStateBackend | None, time: TaskTime
    ) -> None:
        super().__init__(operator)
        self._main = main
        self._time = time
        self._context = BroadcastContext(operator, backend, time)
        self._gathered: list[Batch] = []
        self._broadcast: list[Batch] = []

    def begin(self) -> None:
        super().begin()
        self._main.begin()
        self._gathered = []
        self._broadcast = []

    def next_timer(self) -> int | None:
        return self._main.next_timer()

    def process(self, batch: Batch) -> Batch | None:
        self._gathered.append(batch)
        return None

    def process_second(self, batch: Batch) -> Batch | None:
        self._broadcast.append(batch)
        return None

    def process_rest(self) -> Batch | None:
        gathered = self._gathered
        self._gathered = []
        parts = [self._process_broadcast()]
        parts += map(self._main.process, gathered)
        parts.append(self._main.process_rest())
        self.side_outputs += self._main.side_outputs
        self._main.side_outputs = []
        return self._joined([part for part in parts if part is not None])

    def _process_broadcast(self) -> Batch | None:
        batches = self._broadcast
        self._broadcast = []
        rows = [row for batch in batches for row in batch.rows]
        times = [time for batch in batches for time in times_of(batch)]
        places = self._places(batches)
        order = sorted(range(len(rows)), key=lambda i: (places[i], rows[i].task, rows[i].number))
        function = self.operator.function.wrapped
        context = self._context
        context.states = self.operator.function.states
        out = self.collect()
        element = None
        try:
            for i in order:
                element = rows[i].element
                context.time = times[i]
                result = function.process_broadcast_element(element, context)
                if result is not None:
                    out.add(result, i)
        except Exception as e:
            op = self.operator
            name = f"{op.name}, process_broadcast_element"
            raise user_error(e, op.uid, name, element=element) from e
        return self.collected(out, _stamps(batches))

    def _places(self, batches: list[Batch]) -> list[int]:
        """Where elements are in their source; 0 for all if that is not known."""
        stamps = _stamps(batches)
        if stamps is None:
            return [0] * sum(map(len, batches))
        places: list[int] = self._time.places(stamps).tolist()
        return places

    def _joined(self, parts: list[Batch]) -> Batch | None:
        """One batch of several; if any of them has stamps, all elements need them."""
        if len(parts) < 2:
            return parts[0] if parts else None
        joined = self.output([row for part in parts for row in part.rows])
        assert joined is not None
        if any(part.stamps is not None for part in parts):
            mark = self._time.watermark_before(self.operator.strategies, self.operator.uid)
            joined.stamps = Stamps.join(
                [_unknown(len(p), mark) if p.stamps is None else p.stamps for p in parts]
            )
        return joined


def _stamps(batches: list[Batch]) -> Stamps | None:
    known = [batch.stamps for batch in batches if batch.stamps is not None]
    return Stamps.join(known) if known and len(known) == len(batches) else None


def _unknown(count: int, mark: int = MIN_TIME) -> Stamps:
    """Stamps of elements without a time."""
    return Stamps.of(np.full(count, MIN_TIME, np.int64), np.full(count, mark, np.int64))


class BroadcastContext:
    """The context of a broadcast element."""

    def __init__(
        self, operator: Operator, backend: KeyedStateBackend | None, time: TaskTime
    ) -> None:
        assert isinstance(operator.function, BroadcastOperator)
        self.time: int | None = None
        self.states: Mapping[str, Any] = {}
        self._operator = operator
        self._backend = backend
        self._clock = time

    def timestamp(self) -> int | None:
        return self.time

    def current_processing_time(self) -> int:
        return self._clock.epoch.now_ms

    def current_watermark(self) -> int:
        return self._clock.watermark_before(self._operator.strategies, self._operator.uid)

    def get_broadcast_state(self, state_descriptor: Any) -> Any:
        return named_state(self.states, state_descriptor)

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Any) -> None:
        """Call a function with each key of the subtask that has something in a state."""
        backend = self._backend
        name = str(getattr(state_descriptor, "name", state_descriptor))
        handle = None if backend is None else backend.handle(name)
        if backend is None or handle is None:
            raise StateError(
                f"operator {self._operator.uid!r} has no keyed state {name!r}; declare it in the "
                "function, or request it in open()"
            )
        process = getattr(function, "process", function)
        try:
            for key in backend.stored_keys(name):
                backend.key = key
                if not _is_empty(handle):
                    process(backend.declared_key(), handle)
        finally:
            backend.key = None


def _is_empty(handle: Any) -> bool:
    if isinstance(handle, MapState):
        return handle.is_empty()
    if isinstance(handle, ListState):
        return not handle.get()
    value = handle.value() if hasattr(handle, "value") else handle.get()
    return value is None


class OpenOperators:
    """The operators of one partition of a level.

    Functions are opened at once, those with operator state when that can be read.

    Attributes:
        operators: By node id, in the order data flows through them.
        runners: What runs them; none for sinks, nor where an operator has no subtask.
        ran: What its functions have run last, if they have run it to its end.
    """

    def __init__(self, program: LevelProgram, partition: int) -> None:
        self.program = program
        self.partition = partition
        self.operators = {op.id: op for op in _unshared(program.level.operators)}
        self.time = TaskTime(program.strategies)
        self.backends: dict[int, KeyedStateBackend] = {}
        self.operator_backends: dict[int, OperatorStateBackend] = {}
        self.runners: dict[int, Runner] = {}
        self.opened: list[Function] = []
        self.ran: Confirmed | None = None
        self._submitted = dict(self.operators)
        for operator in self._submitted.values():
            if operator.kind is not NodeKind.SINK:
                self._prepare(operator)

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()
        while self.opened:
            self.opened.pop().close()

    def backends_of(self, partition: int) -> list[KeyedStateBackend]:
        """Whose state is read and written in a partition."""
        own = [b for b in self.operator_backends.values() if partition < b.parallelism]
        for backend in own:
            backend.run_as(partition)
        return [*self.backends.values(), *own]

    def restore(self, command: EpochCommand) -> None:
        """Make functions with operator state anew, unless they have run the last epoch.

        The state is open already. They would otherwise hold what an epoch that does not count has
        left in them, or lack what another worker has done.
        """
        ran = self.ran
        self.ran = None
        if ran == confirmed_before(command, self.partition):
            return
        for id, backend in self.operator_backends.items():
            if self.partition < backend.parallelism:
                self._renew(id, command.epoch)

    def open_without_state(self) -> None:
        """Open functions with operator state as if there were none, to see what they ask for."""
        for id, backend in self.operator_backends.items():
            backend.begin(NoStore(), 0)
            self._renew(id, 1)

    def _prepare(self, operator: Operator) -> None:
        maximum = self.program.max_parallelism
        if operator.key is not None:
            backend = KeyedStateBackend(operator.uid, operator.key.codec(), maximum)
            self.backends[operator.id] = backend
        if operator.has_operator_state:
            own = OperatorStateBackend(operator.uid, operator.parallelism, maximum)
            self.operator_backends[operator.id] = own
        else:
            self._open(operator, 1)

    def _renew(self, id: int, epoch: int) -> None:
        before = self.operators[id].function
        if id in self.runners:
            self.runners.pop(id).close()
        if any(function is before for function in self.opened):
            self.opened = [function for function in self.opened if function is not before]
            before.close()
        operator = self._submitted[id]
        self.operators[id] = replace(operator, function=copy.deepcopy(operator.function))
        self._open(self.operators[id], epoch)
        self.runners[id].begin()

    def _open(self, operator: Operator, epoch: int) -> None:
        backend = self.backends.get(operator.id)
        own = self.operator_backends.get(operator.id)
        maximum = self.program.max_parallelism
        function = operator.function
        context = TaskContext(operator, lambda: self.partition, maximum, backend)
        if backend is not None:
            for attribute, descriptor in declared_states(function).items():
                user_function(function).__dict__[attribute] = context.register(descriptor)
        if own is not None:
            initialize(operator, OperatorStateContext(operator, own, context, epoch))
        if isinstance(function, Function):
            try:
                function.open(context)
            except PlanError:
                raise  # no restart would help
            except Exception as e:
                raise user_error(e, operator.uid, operator.name, where="open()") from e
            self.opened.append(function)
        context.is_open = False
        self.runners[operator.id] = _make_runner(operator, backend, self.time)
        if own is not None and backend is not None:
            check_names(operator.uid, backend.schemas(), own.schemas())


def _make_runner(operator: Operator, backend: KeyedStateBackend | None, time: TaskTime) -> Runner:
    if operator.on_error is not ErrorPolicy.FAIL:
        tolerance = ElementGuard(operator, backend, time)
        runner = _make_runner(tolerance.operator(), backend, time)
        assert isinstance(runner, FunctionRunner)
        runner.tolerance = tolerance
        runner.has_side_outputs = True
        return runner
    if operator.kind is NodeKind.TIMESTAMPS:
        if backend is not None:
            return ShuffledTimestampsRunner(operator, backend, time)
        return TimestampsRunner(operator, time)
    if operator.source_order.placed:
        return SourceOrderRunner(operator, time)
    if operator.kind is NodeKind.NUMBER:
        return NumberRunner(operator, time)
    if operator.kind is NodeKind.ASYNC_WAIT:
        return AsyncWaitRunner(operator, time)
    if operator.kind is NodeKind.BROADCAST_PROCESS:
        main = _make_runner(main_operator(operator), backend, time)
        return BroadcastRunner(operator, main, backend, time)
    if isinstance(operator.function, WindowCombination):
        return WindowCombineRunner(operator, time)
    if backend is None and operator.kind in _WITH_CONTEXT:
        return FlatMapRunner(operator, time)
    if backend is None:
        return _WITHOUT_KEY[operator.kind](operator)
    if operator.kind is NodeKind.REDUCE:
        return ReduceRunner(operator, backend)
    if operator.kind is NodeKind.FILTER:
        return KeyedFilterRunner(operator, backend)
    if isinstance(operator.function, KeyedBatchFunction):
        return KeyedBatchRunner(operator)
    if isinstance(operator.function, WindowAggregation):
        return WindowAggregationRunner(operator, backend, time)
    if isinstance(operator.function, PaneWindows):
        return FoldedWindowRunner(operator, backend, time)
    if has_timers(operator.function):
        return TimerRunner(operator, backend, time)
    return KeyedProcessRunner(operator, backend, time)


_WITH_CONTEXT = frozenset(
    {
        NodeKind.FLAT_MAP,
        NodeKind.PROCESS,
        NodeKind.CO_MAP,
        NodeKind.CO_FLAT_MAP,
        NodeKind.CO_PROCESS,
    }
)
_WITHOUT_KEY: dict[NodeKind, Callable[[Operator], Runner]] = {
    NodeKind.SOURCE: ForwardRunner,
    NodeKind.MAP: MapRunner,
    NodeKind.FILTER: FilterRunner,
    NodeKind.MAP_BATCHES: MapBatchesRunner,
    NodeKind.COMBINE: CombineRunner,
    NodeKind.SIDE_OUTPUT: ForwardRunner,
}


def _unshared(operators: Iterable[Operator]) -> list[Operator]:
    """Operators that were given one and the same function object get a copy each."""
    seen: set[int] = set()
    unshared = []
    for op in operators:
        if id(op.function) in seen and isinstance(op.function, Function):
            op = replace(op, function=copy.deepcopy(op.function))
        seen.add(id(op.function))
        unshared.append(op)
    return unshared
