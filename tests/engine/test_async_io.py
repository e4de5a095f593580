"""Calls to the outside: many at once, in order or not, with timeouts and retries."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import AsyncDataStream, Duration, Time, Types, ValueStateDescriptor, WatermarkStrategy
from turnback.errors import ElementTypeError, PlanError, UserFunctionError
from turnback.functions import AsyncFunction, AsyncRetryStrategy, ProcessWindowFunction
from turnback.windows import TumblingEventTimeWindows

SECOND = Duration.of_seconds(1)
LONG_ENOUGH = Duration.of_seconds(60)


class Meter:
    """How many calls are under way, over all tasks of this process."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.tries: Counter[int] = Counter()
        self.closed = 0


METER = Meter()


@pytest.fixture(autouse=True)
def meter() -> Meter:
    METER.__init__()  # type: ignore[misc]
    return METER


class Slow(AsyncFunction):
    """Later elements are faster."""

    async def async_invoke(self, value: int) -> list[int]:
        METER.now += 1
        METER.most = max(METER.most, METER.now)
        await asyncio.sleep(0.05 if value % 2 == 0 else 0.001)
        METER.now -= 1
        return [value] * (value % 3)

    def close(self) -> None:
        METER.closed += 1


def given(values: Any) -> list[tuple[int]]:
    return [(value,) for value in values]


def run(
    tmp_path: Path, function: AsyncFunction, values: range | list[int], **how: Any
) -> list[Any]:
    """What comes out of one epoch in one task."""
    env = environment(1)
    method = how.pop("method", AsyncDataStream.ordered_wait)
    stream = source(env, "s", "n bigint").map(lambda row: row.n, Types.LONG()).uid("n")
    calls = method(stream, function, **{"timeout": LONG_ENOUGH, "output_type": "int"} | how)
    sink = collected(calls.uid("calls"), "out")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=1)
    try:
        engine.epoch({"s": given(values)})
    finally:
        engine.levels.close()
    return sink.results


def test_many_calls_are_under_way_and_come_out_in_order(tmp_path: Path, meter: Meter) -> None:
    results = run(tmp_path, Slow(), range(60), capacity=10)
    assert results == [n for n in range(60) for _ in range(n % 3)]
    assert 1 < meter.most <= 10
    assert meter.now == 0
    assert meter.closed == 1
    assert not [t for t in threading.enumerate() if t.name == "turnback-calls"]


def test_unordered_gives_the_same_elements(tmp_path: Path, meter: Meter) -> None:
    results = run(tmp_path, Slow(), range(60), method=AsyncDataStream.unordered_wait)
    assert sorted(results) == [n for n in range(60) for _ in range(n % 3)]


class Hangs(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        if value == 3:
            await asyncio.sleep(3600)
        return [value]


class HangsWithAnswer(Hangs):
    def timeout(self, value: int) -> list[int]:
        return [-value]


def test_a_call_that_takes_too_long(tmp_path: Path) -> None:
    short = Duration.of_millis(50)
    assert run(tmp_path, HangsWithAnswer(), range(5), timeout=short) == [0, 1, 2, -3, 4]
    with pytest.raises(UserFunctionError, match=r"(?s)longer than its timeout.*element: 3"):
        run(tmp_path, Hangs(), range(5), timeout=short)


class OwnTimeout(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        raise TimeoutError("the service says so")

    def timeout(self, value: int) -> list[int]:
        return [value]


def test_a_timeout_of_the_function_is_an_error_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionError, match="TimeoutError: the service says so"):
        run(tmp_path, OwnTimeout(), range(5))


class Fails(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        if value == 2:
            await asyncio.sleep(0.01)
            raise ValueError("two")
        await asyncio.sleep(0 if value < 2 else 3600)
        return [value]


@pytest.mark.parametrize("method", [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait])
def test_an_error_ends_the_epoch_whatever_else_is_under_way(tmp_path: Path, method: Any) -> None:
    for capacity in (3, 100):
        with pytest.raises(UserFunctionError, match=r"(?s)ValueError: two.*element: 2"):
            run(tmp_path, Fails(), range(50), capacity=capacity, method=method)
    assert not [t for t in threading.enumerate() if t.name == "turnback-calls"]


class LosesItsClient(AsyncFunction):
    """What it waits for is cancelled the first time, as by a shared client that is closed."""

    async def async_invoke(self, value: int) -> list[int]:
        METER.tries[value] += 1
        if value == 2 and METER.tries[value] == 1:
            request = asyncio.ensure_future(asyncio.sleep(3600))
            request.cancel()
            await request
        return [value]


class CancelsItself(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return [value]


class Exits(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        raise SystemExit("enough")


@pytest.mark.parametrize("method", [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            LosesItsClient(),
            r"(?s)CancelledError: it was waiting for something that was cancelled.*element: 2",
        ),
        (CancelsItself(), "CancelledError"),
        (Exits(), "SystemExit: enough"),
    ],
    ids=["awaited", "itself", "exit"],
)
def test_no_call_ends_without_a_word(
    tmp_path: Path, method: Any, function: AsyncFunction, message: str
) -> None:
    with pytest.raises(UserFunctionError, match=message):
        run(tmp_path, function, range(5), method=method)


def test_a_call_whose_request_was_cancelled_is_tried_again(tmp_path: Path, meter: Meter) -> None:
    def is_passing(error: BaseException) -> bool:
        return isinstance(error, asyncio.CancelledError)

    method = AsyncDataStream.ordered_wait_with_retry
    strategy = AsyncRetryStrategy.fixed_delay(3, 1, lambda found: not found, is_passing)
    found = run(tmp_path, LosesItsClient(), range(4), method=method, async_retry_strategy=strategy)
    assert found == [0, 1, 2, 3]
    assert meter.tries == {0: 1, 1: 1, 2: 2, 3: 1}


class Recovers(AsyncFunction):
    """Fails the first two times, then finds nothing, then something."""

    async def async_invoke(self, value: int) -> list[int]:
        METER.tries[value] += 1
        if METER.tries[value] <= 2:
            raise ConnectionError("not now")
        return [value] if METER.tries[value] > 3 else []


def tried(tmp_path: Path, strategy: AsyncRetryStrategy) -> list[Any]:
    method = AsyncDataStream.ordered_wait_with_retry
    return run(tmp_path, Recovers(), [1, 2], method=method, async_retry_strategy=strategy)


def test_calls_are_tried_again(tmp_path: Path, meter: Meter) -> None:
    def is_passing(error: Exception) -> bool:
        return isinstance(error, ConnectionError)

    enough = AsyncRetryStrategy.fixed_delay(3, 1, lambda found: not found, is_passing)
    assert tried(tmp_path, enough) == [1, 2]
    assert meter.tries == {1: 4, 2: 4}

    meter.tries.clear()
    growing = AsyncRetryStrategy.exponential_backoff(2, 1, 4, 2.0, None, is_passing)
    assert tried(tmp_path, growing) == []
    assert meter.tries == {1: 3, 2: 3}

    meter.tries.clear()
    too_few = AsyncRetryStrategy.fixed_delay(1, 1, None, is_passing)
    with pytest.raises(UserFunctionError, match="ConnectionError: not now"):
        tried(tmp_path, too_few)

    meter.tries.clear()
    others = AsyncRetryStrategy.fixed_delay(5, 1, None, lambda error: isinstance(error, OSError))
    assert tried(tmp_path, others) == []

    meter.tries.clear()
    with pytest.raises(UserFunctionError, match="ConnectionError: not now"):
        tried(tmp_path, AsyncRetryStrategy.no_restart())


def test_delays_of_retries() -> None:
    growing = AsyncRetryStrategy.exponential_backoff(9, 10, 50, 2.0, None, bool)
    assert [growing.get_backoff_time_millis(n) for n in (1, 2, 3, 4, 9, 9999)] == [
        10, 20, 40, 50, 50, 50,
    ]  # fmt: skip
    assert [growing.can_retry(n) for n in (1, 9, 10)] == [True, True, False]


class NoList(AsyncFunction):
    async def async_invoke(self, value: int) -> Any:
        return value


def test_what_is_no_list_of_elements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionError, match=r"NoList\.async_invoke must return a list"):
        run(tmp_path, NoList(), [1])
    with pytest.raises(ElementTypeError, match=r"'calls'.*does not match its output type"):
        run(tmp_path, Slow(), [1], output_type="string")


class Rows(AsyncFunction):
    async def async_invoke(self, value: int) -> list[Any]:
        answer = [value]
        asyncio.get_running_loop().call_soon(answer.append, -1)  # what was given stays as it was
        await asyncio.sleep(0.001)
        again = [value]
        asyncio.get_running_loop().call_soon(again.append, -1)
        return [{"n": value, "values": again}]


def test_rows_are_as_they_were_when_they_were_given(tmp_path: Path) -> None:
    rows = run(tmp_path, Rows(), [1, 2], output_type="n bigint, values array<bigint>")
    assert [(row.n, row["values"]) for row in rows] == [(1, [1]), (2, [2])]


class Sync(AsyncFunction):
    def async_invoke(self, value: int) -> Any:
        return [value]


class Counting(AsyncFunction):
    seen = ValueStateDescriptor("seen", int)

    async def async_invoke(self, value: int) -> list[int]:
        return [value]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": Slow}, "takes an instance; write Slow()"),
        ({"function": len}, "ordered_wait takes an AsyncFunction, got builtin_function"),
        ({"function": Sync()}, "Sync.async_invoke must be declared with `async def`"),
        ({"function": Counting()}, "declares the state 'seen', but an AsyncFunction has no state"),
        ({"timeout": 5}, "the timeout of ordered_wait must be a Duration"),
        ({"capacity": 0}, "capacity of ordered_wait must be a whole number above 0"),
        ({"capacity": True}, "capacity of ordered_wait must be a whole number above 0"),
        ({"output_type": None}, "ordered_wait needs output_type"),
        ({"retries": None}, "takes an AsyncRetryStrategy"),
        (
            {"timeout": Duration(0), "retries": AsyncRetryStrategy.fixed_delay(1, 1, None, bool)},
            "needs a timeout above 0",
        ),
    ],
)
def test_misuse(changes: dict[str, Any], message: str) -> None:
    stream = source(environment(), "s", "n bigint")
    how = {
        "function": Slow(), "timeout": SECOND, "retries": AsyncRetryStrategy.no_restart(),
        "capacity": 1, "output_type": "int",
    } | changes  # fmt: skip
    with pytest.raises(PlanError, match=message.replace("(", r"\(").replace(")", r"\)")):
        AsyncDataStream.ordered_wait_with_retry(
            stream, how["function"], how["timeout"], how["retries"], how["capacity"],
            how["output_type"],
        )  # fmt: skip


def test_misuse_of_streams_and_retries() -> None:
    with pytest.raises(PlanError, match="unordered_wait takes a stream, got list"):
        AsyncDataStream.unordered_wait([1], Slow(), SECOND, 1, "int")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="max_attempts of a retry strategy must be"):
        AsyncRetryStrategy.fixed_delay(0, 1, None, bool)
    with pytest.raises(PlanError, match="multiplier of a retry strategy must be"):
        AsyncRetryStrategy.exponential_backoff(1, 1, 1, "2", None, bool)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="must be a function or None, got 'x'"):
        AsyncRetryStrategy.fixed_delay(1, 1, "x", None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="needs a result_predicate or an exception_predicate"):
        AsyncRetryStrategy.fixed_delay(1, 1, None, None)


class Echo(AsyncFunction):
    """Later elements are faster; some are dropped, some doubled."""

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(0.01 if value.at % 2 else 0)
        return [value] * (value.at % 3)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_event_time_goes_with_the_elements(tmp_path: Path, ordered: bool, size: int) -> None:
    env = environment(2)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration(3))
    stream = source(env, "s", "k string, at bigint")
    stream = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    calls = wait(stream, Echo(), LONG_ENOUGH, 5, "k string, at bigint").uid("calls")
    windows = calls.key_by("k").window(TumblingEventTimeWindows.of(Time(10)))
    results = windows.process(Listed(), "k string, ats string").uid("windows")
    sink = collected(results, "out")
    engine = LocalEngine(env.plan(), tmp_path)
    elements = [("ab"[n % 2], n - n % 4 * 2) for n in range(40)]
    for start in range(0, 40, size):
        engine.epoch({"s": elements[start : start + size]})
    engine.epoch({}, ended=True)
    engine.levels.close()
    assert sorted(sink.results) == expected_windows(elements)


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, " ".join(str(at) for at in sorted(each.at for each in elements))


def expected_windows(elements: list[tuple[str, int]]) -> list[tuple[str, str]]:
    windows: dict[tuple[str, int], list[int]] = {}
    watermark = -(2**63)
    for key, at in elements:
        if at - at % 10 + 9 > watermark:
            windows.setdefault((key, at - at % 10), []).extend([at] * (at % 3))
        watermark = max(watermark, at - 4)
    return sorted(
        (key, " ".join(map(str, sorted(ats)))) for (key, _), ats in windows.items() if ats
    )


class Capricious(AsyncFunction):
    """Calls for what comes from `slow` take longest, then those for odd times."""

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(0.02 if value.k == "slow" else 0.005 * (value.at % 2))
        return [value]


@pytest.mark.parametrize("batches", [False, True], ids=["calls", "calls-and-batches"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("partitions", [0, 2], ids=["files", "partitions"])
@pytest.mark.parametrize("readers", [1, None], ids=["one-task", "a-task-each"])
def test_results_belong_to_the_file_or_partition_of_their_element(
    tmp_path: Path, readers: int | None, partitions: int, ordered: bool, batches: bool
) -> None:
    """However long calls take, and whatever else their task reads before they end."""
    env = environment(2)
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    events = source(env, "s", "k string, at bigint", partitions)
    calls = wait(events, Capricious(), LONG_ENOUGH, 5, "k string, at bigint").uid("calls")
    if batches:
        calls = calls.map_batches(lambda batch: batch).uid("batches")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    timed = calls.assign_timestamps_and_watermarks(strategy).uid("time")
    windows = timed.key_by("k").window(TumblingEventTimeWindows.of(Time(10)))
    found = collected(windows.process(Listed(), "k string, ats string").uid("windows"), "out")
    engine = LocalEngine(env.plan(), tmp_path, readers=readers)
    slow = [("slow", at) for at in (1, 100, 2, 105)]
    fast = [("k", at) for at in (2, 103, 3, 110, 4)]
    engine.epoch({"s-0": slow, "s-1": fast} if partitions else {"s": [*slow, *fast]})
    assert engine.acks is not None
    assert engine.acks.records()["calls"] == (9, 9)
    engine.epoch({}, ended=True)
    engine.levels.close()
    kept = [("k", "103"), ("k", "110"), ("slow", "1"), ("slow", "100 105")]
    if partitions:
        kept.append(("k", "2"))  # the first of its partition
    # At 103, event time is where the whole file before has brought it.
    assert sorted(found.results) == sorted(kept)
