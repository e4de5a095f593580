"""Elements that hurt: a job goes on, and has each once as a dead letter, come what may."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from engine.test_restarts import FailsOn
from job_support import COUNTED, Count, Jobs, counted
from turnback import (
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.functions import ReducingStateDescriptor
from turnback.job.directory import JobDirectory
from turnback.operations.dead_letters import Redrive, RedriveRow, read_letters
from turnback.testing import JobHarness, source
from turnback.views.job import Job

EVENT = "k string, n bigint"


class RefusesB(Count):
    """Fails at b, after it has counted it."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield from super().process_element(value, ctx)
        if value.k == "b":
            raise ValueError("no b, please")


def run(jobs: Jobs, policy: str, *failing_calls: int) -> Any:
    """Count keys of positive numbers; whatever fails at other calls is a failure of the job."""
    env = jobs.env(parallelism=2)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(9, 0))
    events = jobs.files(env, "events", EVENT)
    checked = events.map(lambda e: (e.k, 1 // max(e.n, 0)), "k string, n bigint").uid("checked")
    checked.on_error(policy)
    if policy == "dead_letter":
        letters = checked.dead_letters().map(lambda d: (d.element, d.error), "e string, w string")
        letters.uid("told").sink_to(jobs.sink("letters")).uid("letters")
    function = FailsOn(jobs.marks, *failing_calls) if failing_calls else Count()
    counts = checked.key_by("k").process(function, COUNTED).uid("count")
    counts.sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True)


@pytest.fixture
def hurt(jobs: Jobs) -> Jobs:
    for number in range(4):
        jobs.feed("events", {"k": "a", "n": 1}, {"k": "b", "n": -number}, {"k": "b", "n": 1})
    return jobs


LETTERS = [(f"Row(k='b', n={-n})", "ZeroDivisionError") for n in range(4)]


def told(jobs: Jobs) -> list[tuple[str, str]]:
    return sorted((element, why.partition(":")[0]) for element, why in jobs.out("letters"))


@pytest.mark.parametrize("failing", [(), (2, 5, 6, 11)])
def test_each_of_them_once_however_often_it_fails(hurt: Jobs, failing: tuple[int, ...]) -> None:
    report = run(hurt, "dead_letter", *failing)
    assert report.attempts == 1 + len(failing)
    assert hurt.out() == counted("ab" * 4)
    assert told(hurt) == sorted(LETTERS)
    if not failing:
        status = JobDirectory.locate(hurt.root, "job").status()
        assert status is not None
        assert status.metrics.left_out == {"checked": 4}


def test_they_are_fed_back_from_what_a_sink_has_written(hurt: Jobs) -> None:
    """To a function without a key and to one with a key, before and behind a shuffle."""

    def version(least: int) -> None:
        env = hurt.env(parallelism=2)
        events = hurt.files(env, "events", EVENT)
        checked = events.map(lambda e: (e.k, 1 // max(e.n, least)), EVENT).uid("checked")
        checked.on_error("dead_letter")
        counts = checked.key_by("k").process(Count() if least else RefusesB(), COUNTED)
        counts.uid("count").on_error("dead_letter").sink_to(hurt.sink()).uid("out")
        for name, stream in (("checked", checked), ("count", counts)):
            stream.dead_letters().sink_to(hurt.sink(f"{name}-letters")).uid(f"{name}-letters")
        env.execute("job", bounded=True)

    version(0)
    assert hurt.out() == counted("a" * 4)
    job = Job(JobDirectory.locate(hurt.root, "job"))
    places = [str(hurt.directory / f"{name}-letters") for name in ("checked", "count")]
    letters = read_letters(places, StringIO())
    assert len(letters) == 8
    work = Redrive(job, letters)
    work.give()
    version(1)
    assert work.look() == RedriveRow(job="job", letters=8, given=8, fed=8, done=True)
    assert hurt.out() == counted("ab" * 4 + "b" * 4)
    version(1)
    assert hurt.out() == counted("ab" * 4 + "b" * 4)


def test_a_mended_version_goes_on_after_them(hurt: Jobs) -> None:
    run(hurt, "dead_letter")
    hurt.feed("events", {"k": "a", "n": 1})
    run(hurt, "skip")
    assert hurt.out() == counted("ab" * 4 + "a")
    assert told(hurt) == sorted(LETTERS)


# -- without Spark

NOTED = OutputTag("noted", "n bigint")


class Keeps(KeyedProcessFunction):
    """Keeps whatever an element has, in all kinds of state, and notes it aside."""

    whole = ValueStateDescriptor("whole", int)
    text = ValueStateDescriptor("text", str)
    row = ValueStateDescriptor("row", "n bigint, t string")
    several = ListStateDescriptor("several", int)
    named = MapStateDescriptor("named", str, int)
    most = ReducingStateDescriptor("most", max, int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        given = json.loads(value.x)
        match value.where:
            case "whole":
                self.whole.update(given)
            case "text":
                self.text.update(given)
            case "row":
                self.row.update(Row(given, "t"))
            case "named row":
                self.row.update(Row(n=given, t="t"))
            case "several":
                self.several.add(given)
            case "named":
                self.named.put("n", given)
            case "map key":
                self.named.put(given, 1)
            case "most":
                self.most.add(given)
            case "aside":
                yield NOTED, (given,)
        yield value.k, value.where


LONE = json.dumps("\ud83d")
TOO_LARGE = str(2**63)


@pytest.mark.parametrize(
    ("where", "good", "bad"),
    [
        ("whole", "1", TOO_LARGE),
        ("text", '"t"', LONE),
        ("row", "1", '"text"'),
        ("row", "1", TOO_LARGE),
        ("named row", "1", '"text"'),
        ("several", "1", TOO_LARGE),
        ("named", "1", TOO_LARGE),
        ("map key", '"t"', LONE),
        ("most", "1", TOO_LARGE),
        ("aside", "1", '"text"'),
        ("aside", "1", TOO_LARGE),
    ],
)
def test_what_state_or_a_side_output_cannot_hold_hurts_at_once(
    tmp_path: Path, where: str, good: str, bad: str
) -> None:
    """Not when the epoch ends, when nobody can tell any more which element it was."""

    def program(env: StreamExecutionEnvironment) -> None:
        keyed = source(env, "s", "k string, where string, x string").key_by("k")
        kept = keyed.process(Keeps(), "k string, where string").uid("kept").on_error("dead_letter")
        kept.sink_to(FileSink("/replaced", "json")).uid("out")
        kept.get_side_output(NOTED).sink_to(FileSink("/replaced", "json")).uid("aside")
        kept.dead_letters().sink_to(FileSink("/replaced", "json")).uid("dead")

    with JobHarness(program, tmp_path) as job:
        job.push("s", ("a", where, good), ("b", where, bad), ("c", where, good), ("b", where, good))
        assert sorted(job.output("out")) == [("a", where), ("b", where), ("c", where)]
        assert len(job.output("aside")) == (3 if where == "aside" else 0)
        (letter,) = job.output("dead")
        assert (letter.key, letter.operator) == ("'b'", "kept")
        assert "does not match" in letter.error or "surrogates" in letter.error
