"""Functions that raise, jobs that restart, and what is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from job_support import COUNTED, Count, Jobs, counted, eventually

from turnback import (
    KeyedProcessFunction,
    MapFunction,
    RestartStrategies,
    ValueStateDescriptor,
)
from turnback.coordinator import JobEnded, Restarting
from turnback.core.errors import (
    ConfigurationError,
    CorruptFileError,
    IncompatibleStateError,
    JobFailedError,
    JobInUseError,
    NullKeyError,
    PlanError,
    UnsupportedTypeError,
)

KEYS = ["a", "b", "a", "c"]


def feed(jobs: Jobs, keys: Any = KEYS) -> None:
    jobs.feed("in", *({"key": k} for k in keys))


def build(jobs: Jobs, function: Any, **how: Any) -> Any:
    env = jobs.env(**how)
    stream = jobs.files(env, "in", "key string").key_by("key").process(function, COUNTED)
    stream.uid("count").sink_to(jobs.sink()).uid("out")
    return env


class FailsOnce(Count):
    """Raises on the first element with key c, among all attempts."""

    def __init__(self, marks: Any, times: int = 1) -> None:
        self.marks, self.times = marks, times

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.key == "c" and any(self.marks.first(f"failed{i}") for i in range(self.times)):
            raise RuntimeError("out of luck")
        yield from super().process_element(value, ctx)


@pytest.mark.parametrize("configured", [False, True], ids=["in code", "in the configuration"])
def test_a_failed_job_is_restarted_and_says_why(jobs, configured):
    for _ in range(3):
        feed(jobs)
    how: dict[str, Any] = {"restart-strategy.type": "fixed-delay"} if configured else {}
    how |= {"restart-strategy.fixed-delay.attempts": 3} if configured else {}
    how |= {"restart-strategy.fixed-delay.delay": "10 ms"} if configured else {}
    env = build(jobs, FailsOnce(jobs.marks, times=2), **how)
    if not configured:
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10))
    report = env.execute("job", bounded=True)
    assert report.attempts == 3
    assert jobs.out() == counted(KEYS * 3)
    causes = [e.cause for e in jobs.events() if isinstance(e, Restarting)]
    assert len(causes) == 2
    assert all("out of luck" in cause and "'count'" in cause for cause in causes)


def test_the_error_names_line_operator_and_key_and_is_short(jobs):
    feed(jobs)
    with pytest.raises(JobFailedError) as caught:
        build(jobs, FailsOnce(jobs.marks)).execute("job", bounded=True)
    told = str(caught.value)
    assert "RuntimeError: out of luck" in told
    assert 'raise RuntimeError("out of luck")' in told
    assert "test_failures.py" in told
    assert "operator 'count'" in told
    assert "key: 'c'" in told
    assert len(told.splitlines()) < 15
    assert "org.apache" not in told
    assert jobs.out() == []
    (ended,) = [e for e in jobs.events() if isinstance(e, JobEnded)]
    assert ended.state == "FAILED"


def test_a_strategy_is_exhausted(jobs):
    feed(jobs)
    env = build(jobs, FailsOnce(jobs.marks, times=9))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 0))
    with pytest.raises(JobFailedError, match=r"failed after 2 restarts: operator 'count'"):
        env.execute("job", bounded=True)


class Broken(MapFunction):
    def map(self, value: Any) -> Any:
        return value.nothing


class BrokenOpen(Count):
    def open(self, runtime_context: Any) -> None:
        raise OSError("no such model")


def test_functions_that_raise_elsewhere(jobs):
    feed(jobs)
    env = jobs.env()
    jobs.files(env, "in", "key string").map(Broken(), "string").uid("m").sink_to(jobs.sink())
    with pytest.raises(JobFailedError, match=r"operator 'm'.*AttributeError"):
        env.execute("map", bounded=True)
    with pytest.raises(JobFailedError, match=r"(?s)operator 'count'.*no such model.*open\(\)"):
        build(jobs, BrokenOpen()).execute("open", bounded=True)
    env = jobs.env()
    stream = jobs.files(env, "in", "key string").key_by(lambda v: v.missing, key_type="string")
    stream.process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    with pytest.raises(JobFailedError, match="AttributeError"):
        env.execute("key", bounded=True)


@pytest.mark.parametrize("by", ["column", "function"])
def test_null_keys_are_refused(jobs, by):
    feed(jobs, ["a", None])
    env = jobs.env()
    stream = jobs.files(env, "in", "key string")
    keyed = stream.key_by("key") if by == "column" else stream.key_by(lambda v: v.key, str)
    keyed.process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    with pytest.raises((JobFailedError, NullKeyError), match="null"):
        env.execute("job", bounded=True)
    assert jobs.out() == []


def test_float_keys_are_refused_at_plan_time(jobs):
    env = jobs.env()
    stream = jobs.files(env, "in", "key double").key_by("key").process(Count(), COUNTED)
    stream.uid("count").sink_to(jobs.sink()).uid("out")
    with pytest.raises(PlanError, match=r"'count'.*cast"):
        env.plan()


class Other(KeyedProcessFunction):
    count = ValueStateDescriptor("count", str)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update("x")
        yield value.key, 1


class Renamed(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update(1)
        yield value.key, 1


def test_state_that_does_not_fit_is_refused_before_anything_is_written(jobs):
    feed(jobs)
    build(jobs, Count()).execute("job", bounded=True)
    before = jobs.out()
    feed(jobs)
    with pytest.raises(IncompatibleStateError, match=r"'count' of operator 'count'.*long.*string"):
        build(jobs, Other()).execute("job", bounded=True)
    with pytest.raises(IncompatibleStateError, match=r"nothing.*claims: state 'count'.*'count'"):
        build(jobs, Renamed()).execute("job", bounded=True)
    assert jobs.out() == before
    build(jobs, Renamed()).execute("job", bounded=True, allow_non_restored_state=True)
    assert len(jobs.out()) == 2 * len(KEYS)


class Odd(KeyedProcessFunction):
    odd = ValueStateDescriptor("odd", object)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def test_a_type_without_serializer_is_refused_at_plan_time(jobs):
    env = build(jobs, Odd())
    with pytest.raises(UnsupportedTypeError, match=r"(?s)(?=.*'count')(?=.*'odd')"):
        env.plan()


@pytest.mark.parametrize("what", ["manifest", "delta"])
def test_a_flipped_bit_is_named_and_nothing_is_served(jobs, what):
    feed(jobs)
    build(jobs, Count()).execute("job", bounded=True)
    before = jobs.out()
    (latest,) = jobs.checkpoints()
    name = f"checkpoints/chk-{latest.number}.json" if what == "manifest" else latest.state[0].path
    path = jobs.path() / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    feed(jobs)
    with pytest.raises(CorruptFileError, match=name):
        build(jobs, Count()).execute("job", bounded=True)
    assert jobs.out() == before


def test_a_job_that_runs_already_is_refused(jobs):
    feed(jobs)
    client = jobs.start(build(jobs, Count()))
    eventually(lambda: jobs.out() == counted(KEYS))
    with pytest.raises(JobInUseError, match="job 'job' is already RUNNING as pid"):
        build(jobs, Count()).execute("job", bounded=True)
    client.cancel()
    client.result(60)


def test_a_root_that_is_a_file(jobs):
    feed(jobs)
    jobs.root.write_text("not a directory")
    with pytest.raises(ConfigurationError, match="jobs"):
        build(jobs, Count()).execute("job", bounded=True)


@pytest.mark.parametrize("interval", [0, -5, "ten seconds", "10 parsecs", None, 3.5])
def test_intervals_that_make_no_sense(jobs, interval):
    with pytest.raises(ConfigurationError):
        jobs.env().enable_checkpointing(interval)


def test_two_operators_with_one_uid(jobs):
    env = jobs.env()
    stream = jobs.files(env, "in", "key string").key_by("key").process(Count(), COUNTED)
    stream.uid("same").sink_to(jobs.sink()).uid("same")
    with pytest.raises(PlanError, match="two operators have the uid 'same'"):
        env.plan()
