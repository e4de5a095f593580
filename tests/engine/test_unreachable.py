"""Sources and sinks that do not answer when a job starts: at once, or as the strategy says."""

from __future__ import annotations

from typing import Any

import pytest

from job_support import Jobs
from turnback import FileSink, RestartStrategies
from turnback.errors import JobFailedError, SinkError, SourceError


class Away(FileSink):
    """Cannot be reached."""

    def check_target(self, ctx: Any) -> None:
        raise SinkError("no route to the sink")


def away(name: str, offset: str | None) -> None:
    raise SourceError(f"no route to {name}")


def run(jobs: Jobs, sink: FileSink, check: Any = None) -> None:
    env = jobs.env()
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 0))
    jobs.feed("events", {"k": "a"})
    stream = jobs.files(env, "events", "k string")
    stream._node.check = check
    stream.sink_to(sink).uid("out")
    env.execute("job", bounded=True)


def test_a_sink_that_does_not_answer_fails_a_job_that_has_never_run(jobs: Jobs) -> None:
    with pytest.raises(SinkError, match="no route to the sink"):
        run(jobs, Away(jobs.directory / "out", "json"))
    assert not jobs.path().exists()


def test_a_source_that_does_not_answer_fails_a_job_that_has_never_run(jobs: Jobs) -> None:
    with pytest.raises(SourceError, match="no route to source 'events' of job 'job'"):
        run(jobs, jobs.sink(), away)
    assert not jobs.path().exists()


def test_a_job_that_has_run_is_restarted_as_the_strategy_says(jobs: Jobs) -> None:
    run(jobs, jobs.sink())
    with pytest.raises(JobFailedError, match="after 2 restarts: no route to the sink"):
        run(jobs, Away(jobs.directory / "out", "json"))
    run(jobs, jobs.sink(), away)  # only the start is checked, and by now it answers
    assert jobs.out() == ["a"] * 3


def test_a_source_is_told_where_it_goes_on(jobs: Jobs) -> None:
    told: list[str | None] = []
    for _ in range(2):
        run(jobs, jobs.sink(), lambda name, offset: told.append(offset))
    first, second = told
    assert first is None
    assert second is not None
