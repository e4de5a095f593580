"""`execute_and_collect`: the elements of a stream in the hands of the program."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from turnback import DataStream, JobClient
from turnback.api import CloseableIterator
from turnback.api import environment as launched
from turnback.api.environment import Launched
from turnback.errors import JobFailedError, PlanError
from turnback.job.run import Launch, RunDirectory


def counts(jobs: Jobs, letters: str) -> DataStream:
    env = jobs.env()
    listed = env.from_collection([(letter,) for letter in letters], "k string", uid="list")
    return listed.key_by("k").process(Count(), COUNTED).uid("count")


def test_all_elements_of_a_stream_that_ends(jobs: Jobs) -> None:
    for _ in range(2):
        launched._COLLECTING.clear()  # the name is the same, and it starts empty every time
        elements = counts(jobs, "abab").execute_and_collect()
        assert sorted(elements) == counted("abab")
        assert elements.job.done()
        assert list(elements) == []


def test_each_job_without_a_name_is_one_of_its_own(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    events = jobs.env().from_files(jobs.input("events"), "json", "k string", uid="events")
    with events.key_by("k").process(Count(), COUNTED).uid("count").execute_and_collect() as first:
        assert next(first) == ("a", 1)
        second = counts(jobs, "ab").execute_and_collect()  # while the first one runs
        assert sorted(second) == counted("ab")
        jobs.feed("events", {"k": "a"})
        assert next(first) == ("a", 2)
    assert second.job.report.job_name == f"{first.job.report.job_name}-2"


def test_a_program_that_is_started_again_collects_everything_again(
    jobs: Jobs, tmp_path: Path
) -> None:
    """Nothing of what the driver before it gave out is there any more."""
    run = RunDirectory(tmp_path / "run")

    def program() -> list[Any]:
        driver, found = Launched(Launch(script="clicks.py"), run), []
        launched._COLLECTING.clear()  # as in a new process
        for letters in ("abab", "aab"):
            stream = counts(jobs, letters)
            stream._graph.environment._launched = driver
            with stream.execute_and_collect() as elements:
                found.append((elements.job.report.job_name, sorted(elements)))
        return found

    expected = [("clicks-collect", counted("abab")), ("clicks-collect-2", counted("aab"))]
    assert program() == expected
    assert run.running() is not None  # as after a driver that died
    assert program() == expected


def test_a_job_with_a_name_goes_on(jobs: Jobs) -> None:
    assert sorted(counts(jobs, "ab").execute_and_collect("named")) == counted("ab")
    assert list(counts(jobs, "ab").execute_and_collect("named")) == []
    assert list(counts(jobs, "aba").execute_and_collect("named")) == [("a", 2)]


def test_the_name_in_a_shell(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    elements = counts(jobs, "ab").execute_and_collect()
    assert elements.job.report.job_name == "collect"
    elements.close()


def test_a_limit_ends_the_job(jobs: Jobs) -> None:
    jobs.feed("events", *({"k": "a"} for _ in range(10)))
    events = jobs.env().from_files(jobs.input("events"), "json", "k string", uid="events")
    counted_files = events.key_by("k").process(Count(), COUNTED).uid("count")
    assert counted_files.execute_and_collect("job", limit=3) == [("a", 1), ("a", 2), ("a", 3)]


def test_an_endless_stream_until_it_is_closed(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    events = jobs.env().from_files(jobs.input("events"), "json", "k string", uid="events")
    with events.key_by("k").process(Count(), COUNTED).uid("count").execute_and_collect() as found:
        assert isinstance(found, CloseableIterator)
        assert next(found) == ("a", 1)
        jobs.feed("events", {"k": "a"}, {"k": "b"})
        assert sorted(islice(found, 2)) == [("a", 2), ("b", 1)]
        job: JobClient = found.job
        assert not job.done()
    assert job.done()
    with pytest.raises(StopIteration):
        found.next()


class Fails(Count):
    def process_element(self, value: Any, ctx: Any) -> Any:
        raise ValueError("not this one")


def test_a_job_that_fails(jobs: Jobs) -> None:
    listed = jobs.env().from_collection([("a",)], "k string", uid="list")
    elements = listed.key_by("k").process(Fails(), COUNTED).uid("fails").execute_and_collect()
    with pytest.raises(JobFailedError, match="not this one"):
        next(elements)
    assert list(elements) == []


@pytest.mark.parametrize("limit", [0, -1, True, "3", 1.5])
def test_limits_that_are_none(jobs: Jobs, limit: Any) -> None:
    with pytest.raises(PlanError, match="execute_and_collect: limit must be"):
        counts(jobs, "a").execute_and_collect(limit=limit)
