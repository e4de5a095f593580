"""Failures of the user's code: restarts, exact output, and what is told at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, Marks, counted
from turnback import KeyedProcessFunction, RestartStrategies, StreamExecutionEnvironment
from turnback.errors import JobFailedError, NullKeyError, UserFunctionError
from turnback.job.directory import JobDirectory
from turnback.job.history import AttemptStarted, JobEnded, Restarting
from turnback.job.status import JobState
from turnback.sinks import TwoPhaseCommitSink

FIXED = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 s"}


class FailsOn(Count):
    """Raises on the given calls, counted over all processes and attempts."""

    def __init__(self, marks: Marks, *calls: int) -> None:
        self.marks, self.calls = marks, calls

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.marks.add("calls")
        if len(self.marks.lines("calls")) in self.calls:
            raise ConnectionError("the service is down")  # this very line
        yield from super().process_element(value, ctx)


def count(jobs: Jobs, env: StreamExecutionEnvironment, *calls: int, **how: Any) -> Any:
    events = jobs.files(env, "events", "k string")
    counts = events.key_by("k").process(FailsOn(jobs.marks, *calls), COUNTED).uid("count")
    counts.sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True, **how)


@pytest.fixture
def fed(jobs: Jobs) -> Jobs:
    for _ in range(4):
        jobs.feed("events", {"k": "a"}, {"k": "a"}, {"k": "b"})
    return jobs


ALL = counted("aab" * 4)


def test_it_is_restarting_until_an_attempt_has_done_something(
    fed: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[tuple[str, int]] = []
    write = JobDirectory.write_status

    def noted(self: JobDirectory, state: JobState, *args: Any) -> Any:
        status = write(self, state, *args)
        states.append((state.value, status.restarts))
        return status

    monkeypatch.setattr(JobDirectory, "write_status", noted)
    env = fed.env(**FIXED, **{"restart-strategy.fixed-delay.attempts": 9})
    count(fed, env, 2, 3, 4)
    assert fed.out() == ALL
    assert [*dict.fromkeys(states)] == [
        ("CREATED", 0),
        ("RUNNING", 0),
        *(("RESTARTING", number) for number in (1, 2, 3)),
        ("RUNNING", 3),
        ("FINISHED", 3),
    ]


class RefusesB(Count):
    """Fails at every b that comes before its number of calls; the messages may differ."""

    def __init__(self, marks: Marks, text: str, upto: int) -> None:
        self.marks, self.text, self.upto = marks, text, upto

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.k == "b":
            self.marks.add("calls")
            calls = len(self.marks.lines("calls"))
            if calls < self.upto:
                raise ValueError(self.text.format(calls))
        yield from super().process_element(value, ctx)


def refusing(jobs: Jobs, limit: str, text: str, upto: int) -> Any:
    env = jobs.env(parallelism=1, **{"execution.same-error-limit": limit})
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(50, 0))
    events = jobs.files(env, "events", "k string")
    counts = events.key_by("k").process(RefusesB(jobs.marks, text, upto), COUNTED).uid("count")
    counts.sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True)


def test_the_same_error_again_and_again_ends_the_job_with_what_to_do(fed: Jobs) -> None:
    with pytest.raises(JobFailedError, match="same error occurred 4 times in a row") as failed:
        refusing(fed, "4", "no b", 1000)
    assert "after 3 restarts" in str(failed.value)
    assert "ValueError: no b" in str(failed.value)
    assert "start the job again" in str(failed.value)
    fed.marks.add("calls")
    assert refusing(fed, "4", "no b", 0).attempts == 1  # mended
    assert fed.out() == ALL


@pytest.mark.parametrize(
    ("limit", "text"), [("3", "another each time: {}"), ("unlimited", "no b"), ("9", "no b")]
)
def test_other_errors_and_fewer_of_them_do_not(fed: Jobs, limit: str, text: str) -> None:
    assert refusing(fed, limit, text, 8).attempts == 8
    assert fed.out() == ALL


def test_the_job_goes_on_from_the_last_checkpoint(fed: Jobs) -> None:
    env = fed.env(parallelism=1)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10))
    report = count(fed, env, 2, 8, 9)  # at once, in the third epoch, and again right after
    assert report.attempts == 4
    assert fed.out() == ALL
    events = [e for e in fed.events() if isinstance(e, AttemptStarted | Restarting | JobEnded)]
    kinds = [type(e).__name__ for e in events]
    assert kinds == ["AttemptStarted", "Restarting"] * 3 + ["AttemptStarted", "JobEnded"]
    causes = [e for e in events if isinstance(e, Restarting)]
    assert all("ConnectionError: the service is down" in e.cause for e in causes)
    assert {e.delay_ms for e in causes} == {10}
    assert events[-1] == JobEnded("FINISHED")
    # Nothing was read that a complete checkpoint had covered.
    starts = [e.epoch for e in events if isinstance(e, AttemptStarted)]
    assert starts[0] is starts[1] is None
    assert starts[2] == starts[3]
    assert len(fed.marks.lines("calls")) <= 12 + 3 * 9


def test_without_a_strategy_left_the_job_fails_in_few_words(fed: Jobs) -> None:
    env = fed.env(parallelism=1, **FIXED, **{"restart-strategy.fixed-delay.attempts": 2})
    with pytest.raises(JobFailedError) as failure:
        count(fed, env, 5, 6, 7, 8, 9, 10)
    text = str(failure.value)
    assert "job 'job' failed after 2 restarts" in text
    assert "operator 'count' (FailsOn) failed: ConnectionError: the service is down" in text
    assert "key: 'a'" in text
    assert 'raise ConnectionError("the service is down")  # this very line' in text
    assert f'File "{__file__}", line ' in text
    assert "at org.apache" not in text
    assert "Py4J" not in text
    assert len(text.splitlines()) <= 12
    assert failure.value.__cause__ is None
    last = fed.events()[-1]
    assert isinstance(last, JobEnded)
    assert last.state == "FAILED"
    assert last.cause is not None
    assert "the service is down" in last.cause
    # The next run goes on from the last checkpoint.
    count(fed, fed.env(parallelism=1))
    assert fed.out() == ALL


def test_the_strategy_of_the_configuration_file(
    fed: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "turnback.yaml"
    file.write_text(
        "restart-strategy:\n  type: failure-rate\n  failure-rate:\n"
        "    max-failures-per-interval: 2\n    failure-rate-interval: 5 min\n    delay: 0 s\n"
    )
    monkeypatch.setenv("TURNBACK_CONF", str(file))

    def configured() -> StreamExecutionEnvironment:
        env = fed.env(parallelism=1)
        return env.set_restart_strategy(RestartStrategies.fall_back_restart())

    assert count(fed, configured(), 2, 5).attempts == 3
    assert fed.out() == ALL
    fed.feed("events", {"k": "a"})
    with pytest.raises(JobFailedError, match="failed after 2 restarts"):
        count(fed, configured(), *range(1_000))
    (fed.marks.directory / "calls").unlink()
    with pytest.raises(JobFailedError, match="failed: operator"):
        count(fed, fed.env(parallelism=1), 1)  # code wins: no restart


def test_a_failure_right_after_turning_back(fed: Jobs) -> None:
    """The restart goes on from what the user chose, not from the newest checkpoint."""

    def env() -> StreamExecutionEnvironment:
        made = fed.env(parallelism=1, **FIXED)
        made.get_checkpoint_config().set_num_retained_checkpoints(10)
        return made

    count(fed, env())
    old = fed.checkpoints()[1]
    (fed.marks.directory / "calls").unlink()
    fed.directory.joinpath("out").rename(fed.directory / "before")
    report = count(fed, env(), 1, start_from=old.number)
    assert report.attempts == 2
    starts = [e for e in fed.events() if isinstance(e, AttemptStarted)]
    assert [e.snapshot for e in starts] == [None, old.name, old.name]
    assert fed.out("before") == ALL
    assert fed.out() == [pair for pair in ALL if pair not in counted("aab" * old.epoch)]


def test_checkpoints_off_means_no_restart(fed: Jobs) -> None:
    env = fed.environment()
    with pytest.raises(JobFailedError, match="job 'job' failed: operator 'count'"):
        count(fed, env.set_parallelism(1), 1)


class Refuses(TwoPhaseCommitSink[str]):
    """Fails in one step, once."""

    transaction_type = str

    def __init__(self, marks: Marks, step: str) -> None:
        self.marks, self.step = marks, step

    def begin(self, ctx: Any) -> str:
        self.fail("begin")
        return f"{ctx.attempt}-{ctx.epoch}-{ctx.partition}-{ctx.task_attempt_id}"

    def write(self, txn: str, element: Any) -> None:
        self.fail("write")
        self.marks.add(f"staged-{txn}", f"{element.key} {element.n}")

    def pre_commit(self, txn: str) -> str:
        self.fail("pre_commit")
        return txn

    def commit(self, txn: str) -> None:
        self.fail("commit")
        if self.marks.first(f"committed-{txn}"):
            for line in self.marks.lines(f"staged-{txn}"):
                self.marks.add("out", line)

    def abort(self, txn: str) -> None:
        self.marks.add("aborted", txn)

    def fail(self, step: str) -> None:
        if step == self.step and self.marks.first(f"failed-{step}"):
            raise OSError(f"no {step} today")


@pytest.mark.parametrize("step", ["begin", "write", "pre_commit", "commit"])
def test_a_sink_that_fails_once(fed: Jobs, step: str) -> None:
    env = fed.env(**FIXED, **{"restart-strategy.fixed-delay.attempts": 1})
    events = fed.files(env, "events", "k string")
    counts = events.key_by("k").process(Count(), COUNTED).uid("count")
    counts.sink_to(Refuses(fed.marks, step)).uid("sink")
    counts.sink_to(fed.sink()).uid("files")
    report = env.execute("job", bounded=True)
    assert report.attempts == 2
    assert sorted(fed.marks.lines("out")) == [f"{k} {n}" for k, n in ALL]
    assert fed.out() == ALL
    cause = next(e.cause for e in fed.events() if isinstance(e, Restarting))
    assert "sink 'sink' of job 'job'" in cause
    assert f"Refuses.{step} failed: OSError: no {step} today" in cause


def raising(row: Any) -> Any:
    raise ZeroDivisionError("mine")


class RaisesInOpen(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        raise ZeroDivisionError("mine")

    def process_element(self, value: Any, ctx: Any) -> Any:
        return []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.map(raising, str), r"operator 'it' \(raising\) failed: ZeroDivisionError"),
        (
            lambda s: s.key_by(raising, key_type=str).process(Count(), COUNTED),
            r"operator 'it' \(key function\) failed: ZeroDivisionError: mine",
        ),
        (
            lambda s: s.key_by("k").process(RaisesInOpen(), COUNTED),
            r"operator 'it' \(RaisesInOpen\) failed: ZeroDivisionError: mine\n  where: 'open\(\)'",
        ),
        (
            lambda s: s.map(lambda row: (row.k, "one"), COUNTED),
            "operator 'it' .*does not match its output type: field 'n': 'one' of class str",
        ),
    ],
    ids=["map", "key function", "open", "output"],
)
def test_what_is_told_survives_spark(fed: Jobs, build: Any, message: str) -> None:
    env = fed.env()
    build(fed.files(env, "events", "k string")).uid("it").sink_to(fed.sink()).uid("out")
    with pytest.raises(JobFailedError, match=message) as failure:
        env.execute("job", bounded=True)
    assert "at org.apache" not in str(failure.value)
    assert fed.out() == []


@pytest.mark.parametrize("by", ["column", "function"])
def test_null_keys(jobs: Jobs, by: str) -> None:
    jobs.feed("events", {"k": "a"}, {"k": None})
    env = jobs.env()
    events = jobs.files(env, "events", "k string")
    keyed = events.key_by("k") if by == "column" else events.key_by(lambda r: r.k, key_type=str)
    keyed.process(Count(), COUNTED).uid("it").sink_to(jobs.sink()).uid("out")
    with pytest.raises(
        JobFailedError, match=r"operator 'it': the key .* is null for an element; filter such"
    ):
        env.execute("job", bounded=True)
    assert jobs.out() == []
    assert issubclass(NullKeyError, TypeError)
    assert not issubclass(NullKeyError, UserFunctionError)


def test_half_written_files_of_a_killed_driver_are_cleared(fed: Jobs) -> None:
    count(fed, fed.env())
    left = [fed.path() / "state" / ".turnback-tmp-a", fed.path() / ".turnback-tmp-b"]
    for path in left:
        path.write_bytes(b"half")
    count(fed, fed.env())
    assert not any(path.exists() for path in left)
    assert fed.out() == ALL
