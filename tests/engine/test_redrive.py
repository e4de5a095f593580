"""Poison: bad records among many, and dead letters that are fed back, with drivers that die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from turnback import FileSink, KeyedProcessFunction, StreamExecutionEnvironment, WatermarkStrategy
from turnback import ValueStateDescriptor as Value
from turnback.errors import TurnbackError
from turnback.job.directory import JobDirectory
from turnback.operations.dead_letters import Redrive, RedriveRow, read_letters
from turnback.plan.bad_records import DEAD_LETTER, decode_letter
from turnback.testing import DriverCrash, JobHarness, source
from turnback.views.job import Job

EVENT = "key string, n bigint"
SEEN = "key string, n bigint, times bigint"
MANY = 10_000
"""One of so many is bad."""
POINTS = (
    "before-state-file",
    "before-manifest",
    "after-manifest",
    "between-sink-commits",
    "after-sink-commit",
    "during-cleanup",
)


class Times(KeyedProcessFunction):
    """Gives each element with how often its key has come; bad ones have done half of it."""

    times = Value("times", int)

    def __init__(self, bad: Callable[[int], bool]) -> None:
        self.bad = bad

    def process_element(self, value: Any, ctx: Any) -> Any:
        times = (self.times.value() or 0) + 1
        self.times.update(times)
        yield value.key, value.n, times
        if self.bad(value.n):
            raise ValueError(f"{value.n} is bad")


def is_bad(n: int) -> bool:
    return n % MANY == MANY // 2


def program(
    policy: str, bad: Callable[[int], bool] = is_bad
) -> Callable[[StreamExecutionEnvironment], None]:
    def build(env: StreamExecutionEnvironment) -> None:
        events = source(env, "events", EVENT)
        seen = events.key_by("key").process(Times(bad), SEEN).uid("times").on_error(policy)
        seen.sink_to(_sink()).uid("out")
        if policy == "dead_letter":
            seen.dead_letters().sink_to(_sink()).uid("letters")

    return build


def _sink() -> Any:
    return FileSink("/nowhere", "json")  # replaced by the harness


def mended(env: StreamExecutionEnvironment) -> None:
    program("dead_letter", lambda n: False)(env)


def events(first: int, count: int) -> list[tuple[str, int]]:
    return [(f"k{n % 7}", n) for n in range(first, first + count)]


def push(job: JobHarness, some: list[tuple[str, int]]) -> None:
    """Push elements; whenever the driver dies, start another one."""
    try:
        job.push("events", *some)
        return
    except DriverCrash:
        pass
    while True:
        try:
            job.start()
            job.push("events")
            return
        except DriverCrash:
            continue


def redrive(job: JobHarness, letters: list[Any]) -> RedriveRow:
    return taken(job, given(job, letters))


def taken(job: JobHarness, work: Redrive) -> RedriveRow:
    """Wait until the job has taken what it was given; whenever the driver dies, start another."""
    until(job, lambda: work.look().done)
    return work.look()


def until(job: JobHarness, is_so: Callable[[], bool]) -> None:
    """Take checkpoints until something is so, for half a minute at most."""
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, "it does not come"
        try:
            job.checkpoint()
        except DriverCrash:
            job.start()
        time.sleep(0.02)


def given(job: JobHarness, letters: list[Any]) -> Redrive:
    directory = JobDirectory.locate(str(job.directory / "jobs"), "job")
    work = Redrive(Job(directory), [row.data for row in letters])
    work.give()
    return work


def by_key(rows: list[Any]) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    for row in rows:
        counts.setdefault(row.key, []).append(row.times)
    return {key: sorted(times) for key, times in counts.items()}


def complete(some: list[tuple[str, int]]) -> dict[str, list[int]]:
    """What `Times` gives for elements that are all good, whatever their order."""
    return {k: list(range(1, n + 1)) for k, n in Counter(key for key, _ in some).items()}


@pytest.mark.parametrize("point", POINTS)
def test_one_bad_record_in_many_and_a_driver_that_dies(tmp_path: Path, point: str) -> None:
    """Real processes that are killed are in tests/crash."""
    with JobHarness(program("dead_letter"), tmp_path) as job:
        job.crash_at(point, 3)
        for first in range(0, 2 * MANY, MANY // 2):
            push(job, events(first, MANY // 2))
        every = events(0, 2 * MANY)
        good = [each for each in every if not is_bad(each[1])]
        assert sorted((row.key, row.n) for row in job.output("out")) == sorted(good)
        assert by_key(job.output("out")) == complete(good)
        letters = job.output("letters")
        assert sorted(decode_letter(row.data).operator for row in letters) == ["times"] * 2
        assert sorted(row.error for row in letters) == [
            f"ValueError: {n} is bad" for n in (MANY + MANY // 2, MANY // 2)
        ]
        job.restart(mended)
        job.crash_at(point)
        assert redrive(job, letters).fed == 2
        push(job, [])  # the driver may still die
        assert sorted((row.key, row.n) for row in job.output("out")) == sorted(every)
        assert by_key(job.output("out")) == complete(every)
        assert len(job.output("letters")) == 2


def test_without_a_policy_the_record_ends_the_job(tmp_path: Path) -> None:
    with JobHarness(program("fail"), tmp_path) as job:
        push(job, events(0, 10))
        with pytest.raises(Exception, match="ValueError: 5000 is bad"):
            job.push("events", *events(MANY // 2, 1))
        assert len(job.output("out")) == 10


SMALL = [("a", 1), ("a", -1), ("b", -2), ("a", 2)]


def negative(n: int) -> bool:
    return n < 0


@pytest.fixture
def job(tmp_path: Path) -> Any:
    with JobHarness(program("dead_letter", negative), tmp_path) as harness:
        harness.push("events", *SMALL)
        yield harness


def numbers(job: JobHarness) -> list[int]:
    return sorted(row.n for row in job.output("out"))


def test_however_often_they_are_given_they_are_fed_once(job: JobHarness) -> None:
    letters = job.output("letters")
    job.restart(mended)
    assert redrive(job, letters).fed == 2
    assert redrive(job, letters) == RedriveRow(job="job", letters=2, before=2, done=True)
    job.restart()
    job.push("events", ("a", 3))
    assert numbers(job) == [-2, -1, 1, 2, 3]
    assert job.state("times", "times") == {"a": 4, "b": 1}


def test_what_fails_again_is_a_dead_letter_again(job: JobHarness) -> None:
    letters = job.output("letters")
    assert redrive(job, letters).fed == 2
    again = [row for row in job.output("letters") if row not in letters]
    assert sorted(row.element for row in again) == sorted(row.element for row in letters)
    job.restart(mended)
    assert redrive(job, again).fed == 2
    assert numbers(job) == [-2, -1, 1, 2]


def test_a_job_that_does_not_run_takes_them_when_it_does(job: JobHarness) -> None:
    letters = job.output("letters")
    job.stop()
    work = given(job, letters)
    assert not work.look().done
    job.start(mended, parallelism=3)
    assert taken(job, work).fed == 2
    assert numbers(job) == [-2, -1, 1, 2]


def test_a_job_that_is_turned_back_gets_them_as_its_past_has_them(job: JobHarness) -> None:
    letters = job.output("letters")
    before = job.savepoint()
    job.push("events", ("c", -3))
    later = [row for row in job.output("letters") if row not in letters]
    job.restart(mended)
    assert redrive(job, [*letters, *later]).fed == 3
    job.stop()
    # Its state has none of them any more; the sink keeps what it has.
    job.start(start_from=before)
    job.push("events")
    until(job, lambda: job.state("times", "times")["a"] >= 3)
    assert job.state("times", "times") == {"a": 3, "b": 1, "c": 1}
    assert Counter(row.n for row in job.output("out")) == {1: 1, 2: 1, -1: 2, -2: 2, -3: 2}
    work = given(job, later)
    assert work.look().before == 1


def test_those_of_a_future_that_was_given_up_come_from_the_source(job: JobHarness) -> None:
    before = job.savepoint()
    job.push("events", ("c", -3))
    gone = [row for row in job.output("letters") if "-3" in row.element]
    job.stop()
    job.start(mended, start_from=before)
    job.push("events")
    assert job.state("times", "times")["c"] == 1
    row = redrive(job, gone)
    assert (row.fed, row.coming) == (0, 1)
    assert job.state("times", "times")["c"] == 1


def test_what_the_program_cannot_take_is_refused_and_can_be_given_again(job: JobHarness) -> None:
    letters, before = job.output("letters"), job.savepoint()

    def renamed(env: StreamExecutionEnvironment) -> None:
        seen = source(env, "events", EVENT).key_by("key").process(Times(negative), SEEN)
        seen.uid("other").on_error("dead_letter").sink_to(_sink()).uid("out")
        seen.dead_letters().sink_to(_sink()).uid("letters")

    job.restart(renamed, renames={"times": "other"})
    row = redrive(job, letters)
    assert (row.fed, row.refused) == (0, {"the program has no operator 'times'": 2})
    job.restart(mended, renames={"other": "times"})
    assert redrive(job, letters).fed == 2
    assert numbers(job) == [-2, -1, 1, 2]
    job.stop()
    job.start(start_from=before)  # both times they were given lie ahead again
    job.push("events", ("b", 7))
    until(job, lambda: job.state("times", "times")["a"] >= 3)
    assert job.state("times", "times") == {"a": 3, "b": 2}


def test_an_operator_that_reads_something_else_now(job: JobHarness) -> None:
    letters = job.output("letters")

    def other(env: StreamExecutionEnvironment) -> None:
        events = source(env, "events", EVENT).map(
            lambda e: (e.key, str(e.n)), "key string, n string"
        )
        seen = (
            events.uid("text")
            .key_by("key")
            .process(Times(lambda n: False), "key string, n string, times bigint")
        )
        seen.uid("times").sink_to(_sink()).uid("out")

    job.stop()
    work = given(job, letters)
    job.start(other)
    row = taken(job, work)
    (why,) = row.refused
    assert "operator 'times' now reads" in why
    job.push("events", ("d", 1))  # it goes on


def test_letters_have_their_fields(job: JobHarness) -> None:
    row = next(each for each in job.output("letters") if "-1" in each.element)
    assert list(DEAD_LETTER.names) == [
        "operator", "key", "element", "error", "epoch", "task", "position", "data",
    ]  # fmt: skip
    assert (row.operator, row.key, row.epoch) == ("times", "'a'", 1)
    assert row.position == 1


def test_they_keep_their_event_time(tmp_path: Path) -> None:
    """Those that are late by now are late, as any others; a timer tells how far time has come."""

    def timed(bad: Callable[[int], bool]) -> Callable[[StreamExecutionEnvironment], None]:
        def build(env: StreamExecutionEnvironment) -> None:
            strategy = WatermarkStrategy.for_monotonous_timestamps()
            strategy = strategy.with_timestamp_assigner("n")
            events = source(env, "events", EVENT).assign_timestamps_and_watermarks(strategy)
            told = events.uid("time").key_by("key").process(TellsTime(bad), "n bigint, t bigint")
            told.uid("told").on_error("dead_letter").sink_to(_sink()).uid("out")
            told.dead_letters().sink_to(_sink()).uid("letters")

        return build

    with JobHarness(timed(lambda n: n == 50), tmp_path) as job:
        job.push("events", ("a", 10), ("a", 50), ("a", 90))
        assert sorted(job.output("out")) == [(10, 10), (90, 90)]
        job.restart(timed(lambda n: False))
        assert redrive(job, job.output("letters")).fed == 1
        job.push("events", ("b", 200))
        assert sorted(job.output("out")) == [(10, 10), (50, 50), (90, 90), (200, 200)]


class TellsTime(KeyedProcessFunction):
    """Gives each element with its event time."""

    def __init__(self, bad: Callable[[int], bool]) -> None:
        self.bad = bad

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.bad(value.n):
            raise ValueError(f"{value.n} is bad")
        yield value.n, ctx.timestamp()


def test_a_sink_of_dead_letters_that_fails(tmp_path: Path) -> None:
    """It ends the attempt as any sink does: no letter is lost, and none is there twice."""
    with JobHarness(program("dead_letter", negative), tmp_path) as job:
        job.fail_task("letters", OSError("the disk is full"))
        job.push("events", *SMALL)
        assert job.report.attempts == 2
        assert sorted(row.element for row in job.output("letters")) == [
            "Row(key='a', n=-1)", "Row(key='b', n=-2)",
        ]  # fmt: skip
        assert numbers(job) == [1, 2]


def test_a_sink_of_dead_letters_that_keeps_failing_ends_the_job_and_is_named(
    tmp_path: Path,
) -> None:
    target = tmp_path / "letters"

    def build(env: StreamExecutionEnvironment) -> None:
        seen = source(env, "events", EVENT).key_by("key").process(Times(negative), SEEN)
        seen.uid("times").on_error("dead_letter").sink_to(_sink()).uid("out")
        seen.dead_letters().sink_to(FileSink(target, "json")).uid("letters")

    with JobHarness(build, tmp_path, real_sinks=["letters"]) as job:
        job.push("events", ("a", 1))
        staged = next(target.glob(".turnback*"), None)
        assert staged is not None, list(target.iterdir())
        away = tmp_path / "away"
        target.rename(away)
        target.write_text("no directory")
        with pytest.raises(TurnbackError, match="letters is a file"):
            job.push("events", *SMALL)
        target.unlink()
        away.rename(target)
        job.start()
        job.push("events")
        assert numbers(job) == [1, 1, 2]
        assert len(read_letters([str(target)], StringIO())) == 2


def test_letters_that_cannot_be_read_do_not_stop_the_job(job: JobHarness) -> None:
    work = given(job, job.output("letters"))
    (batch,) = (job.directory / "jobs").glob("*/redrive/*/1.json")
    whole = batch.read_bytes()
    batch.write_bytes(whole[:-3])
    job.push("events", ("a", 3))
    assert numbers(job) == [1, 2, 3]
    batch.write_bytes(whole)
    assert taken(job, work).fed == 2
