"""A job whose event time has reached its end: by a drain, or with its input.

What fires early then cannot be taken back once it is committed. So a drain either ends the job,
whoever has to finish that, or it leaves no trace.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnback import (
    KeyedProcessFunction,
    Savepoint,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from turnback.api import environment
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.driver.savepoints import Exporter
from turnback.errors import (
    CheckpointError,
    ConfigurationError,
    StorageError,
    TurnbackError,
)
from turnback.job.request import RequestState
from turnback.job.requests import Requests
from turnback.job.status import JobState
from turnback.sinks import DiscardSink
from turnback.testing import DriverCrash, JobHarness, source
from turnback.testing.crash_points import DATABASE_POINTS, POINTS
from turnback.windows import TumblingEventTimeWindows


class Seen(KeyedProcessFunction):
    """Has state that a drain leaves behind."""

    seen = ValueStateDescriptor("seen", int)

    def process_element(self, value: Any, ctx: Any) -> None:
        self.seen.update(value.at)


def program(env: StreamExecutionEnvironment) -> None:
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    events = source(env, "in", "k string, at bigint").assign_timestamps_and_watermarks(by_time)
    keyed = events.uid("time").key_by("k")
    keyed.process(Seen(), "k string").uid("seen").sink_to(DiscardSink()).uid("nothing")
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(100)))
    windows.aggregate(n=count()).uid("windows").sink_to(DiscardSink()).uid("out")


def counts(job: JobHarness) -> list[tuple[int, int]]:
    """What has come out: where windows begin, and how many elements they have."""
    return [(row.window_start.microsecond // 1000, row.n) for row in job.output("out")]


def drain(job: JobHarness) -> Any:
    client = job._running().client
    return client.stop_with_savepoint(True, str(job.directory / "drained"))


def newest(job: JobHarness) -> Manifest:
    manifest = CheckpointLog(job._job_directory().storage).latest()
    assert manifest is not None
    return manifest


def ends_at_once(job: JobHarness, **how: Any) -> None:
    """Start the job, which has nothing to do any more."""
    with pytest.raises(TurnbackError, match="has ended"):
        job.start(**how)
        job._until(lambda: False)
    status = job._job_directory().status()
    assert status is not None
    assert status.state is JobState.FINISHED


REACHED = [
    "before-manifest",
    "after-manifest",
    "after-sink-commit",
    "before-decision",
    "after-decision",
    "during-savepoint",
    "after-savepoint",
    "before-answer",
]


@pytest.mark.parametrize("resumed", [False, True], ids=["by-user", "by-supervisor"])
@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
@pytest.mark.parametrize("point", REACHED)
def test_a_drain_that_is_killed_is_finished_or_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, mode: str, resumed: bool
) -> None:
    configuration = {"execution.checkpointing.mode": mode}
    with JobHarness(program, tmp_path, configuration=configuration) as job:
        job.push("in", ("a", 10), ("a", 20))
        job.crash_at(point)
        with pytest.raises(DriverCrash):
            drain(job)
            job._until(lambda: False)
        (request,) = Requests(job._job_directory().storage).ids()
        if resumed:
            _start_as_a_supervisor_does(monkeypatch)
        if newest(job).drained_by == request:
            assert point != "before-manifest"
            if point == "before-answer" and not resumed:  # it had ended before
                with pytest.raises(ConfigurationError, match="reached its end"):
                    job.start()
                assert counts(job) == [(0, 2)]
                return
            ends_at_once(job)
            assert counts(job) == [(0, 2)]
            assert Savepoint.load(tmp_path / "drained").drained
            result = Requests(job._job_directory().storage).result(request)
            assert result is not None
            assert result.state is RequestState.COMPLETED
            return
        assert point == "before-manifest"
        if resumed:  # what was asked of the driver that died still holds
            ends_at_once(job)
            assert counts(job) == [(0, 2)]
            return
        job.start()
        job.push("in", ("a", 30), ("a", 40), ("a", 250))
        assert counts(job) == [(0, 4)]


def _start_as_a_supervisor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made = environment.job_spec

    def resumed(*args: Any) -> Any:
        return replace(made(*args), resumed=True)

    monkeypatch.setattr(environment, "job_spec", resumed)


def test_every_point_of_a_drain_is_known() -> None:
    assert set(REACHED) <= POINTS.keys() - DATABASE_POINTS


def test_a_drained_job_ends_although_its_savepoint_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with JobHarness(program, tmp_path) as job:
        job.push("in", ("a", 10), ("a", 20))
        with monkeypatch.context() as patch:
            patch.setattr(Exporter, "export", full)
            with pytest.raises(CheckpointError, match=r"No space left.*ended anyway.*chk-3"):
                drain(job).result()
            with pytest.raises(TurnbackError, match="has ended"):
                job._until(lambda: False)
        assert counts(job) == [(0, 2)]
        with pytest.raises(
            ConfigurationError, match=r"reached its end in chk-3.*start_from='chk-3'"
        ):
            job.start()
        job.start(start_from="chk-3")
        job.push("in", ("a", 30), ("a", 250))
        assert counts(job) == [(0, 2), (0, 1)], "which is what somebody wanted"
        job.crash()
        job.start()
        job.push("in", ("a", 350))
        assert counts(job)[2:] == [(200, 1)]


def test_a_job_that_goes_on_after_a_drain_goes_on_before_its_first_checkpoint_too(
    tmp_path: Path,
) -> None:
    with JobHarness(program, tmp_path) as job:
        job.push("in", ("a", 10))
        drain(job).result()
        job.close()
        job.start(start_from=newest(job).name)
        job.crash()
        job.start()
        job.push("in", ("a", 250), ("a", 350))
        assert counts(job) == [(0, 1), (200, 1)]


def _refuse(patch: pytest.MonkeyPatch, times: int) -> None:
    """Let the checkpoints of drained jobs fail so often."""
    append, left = CheckpointLog.append, [None] * times

    def refuse(log: CheckpointLog, manifest: Manifest) -> Any:
        if manifest.drained_by and left:
            left.pop()
            raise StorageError("the store does not answer")
        return append(log, manifest)

    patch.setattr(CheckpointLog, "append", refuse)


def test_a_drain_whose_attempt_fails_is_served_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JobHarness(program, tmp_path) as job:
        job.push("in", ("a", 10), ("a", 20))
        _refuse(monkeypatch, 1)
        drain(job).result()
        assert counts(job) == [(0, 2)]
        assert Savepoint.load(tmp_path / "drained").drained


@pytest.mark.parametrize("what", ["checkpoint", "function"])
@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_a_drain_that_fails_before_it_counts_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, what: str
) -> None:
    configuration = {
        "execution.checkpointing.mode": mode,
        "execution.checkpointing.tolerable-failed-checkpoints": 5,
    }
    with JobHarness(program, tmp_path, configuration=configuration) as job:
        job.push("in", ("a", 10), ("a", 20))
        with monkeypatch.context() as patch:
            if what == "checkpoint":
                _refuse(patch, 100)
            else:
                job.fail_task("windows")
            with pytest.raises(CheckpointError, match=r"does not answer|failed by the test"):
                drain(job).result()
        job.push("in", ("a", 30), ("a", 40), ("a", 250))
        assert counts(job) == [(0, 4)]
        assert newest(job).drained_by == ""


# -- bounded runs


def run(job: JobHarness, *elements: Any, **how: Any) -> None:
    """Run the job over what there is, to the end."""
    job._pushes.sources["in"].push(elements)
    with pytest.raises(TurnbackError, match="has ended"):
        job.start(bounded=True, **how)
        job._until(lambda: False)


@pytest.fixture
def bounded(tmp_path: Path) -> JobHarness:
    """A job that has run, and stands still."""
    job = JobHarness(program, tmp_path).start()
    job.stop()
    return job


def test_windows_over_several_bounded_runs(bounded: JobHarness) -> None:
    run(bounded, ("a", 10), ("a", 20), end_event_time=False)
    run(bounded, ("a", 30), ("a", 110), end_event_time=False)
    assert counts(bounded) == [(0, 3)]
    run(bounded, ("a", 120))
    assert counts(bounded) == [(0, 3), (100, 2)]


def test_a_run_after_the_end_of_event_time_is_refused(bounded: JobHarness) -> None:
    run(bounded, ("a", 10), ("a", 20))
    assert counts(bounded) == [(0, 2)]
    for how in ({"bounded": True}, {"bounded": True, "end_event_time": False}, {}):
        with pytest.raises(ConfigurationError, match=r"'job'.*end_event_time=False.*fresh=True"):
            bounded.start(**how)
    run(bounded, ("a", 30), start_from="latest")
    assert counts(bounded) == [(0, 2), (0, 1)]


def test_a_bounded_run_that_is_killed_at_its_end_is_finished(bounded: JobHarness) -> None:
    """And nothing is read that has come since: the run had ended before that."""
    bounded._pushes.sources["in"].push([("a", 10), ("a", 20)])
    bounded.crash_at("after-manifest")
    with pytest.raises(DriverCrash):
        bounded.start(bounded=True)
        bounded._until(lambda: False)
    assert counts(bounded) == []
    bounded._pushes.sources["in"].push([("a", 30)])
    ends_at_once(bounded, bounded=True)
    assert counts(bounded) == [(0, 2)]
    with pytest.raises(ConfigurationError, match="reached its end"):
        bounded.start(bounded=True)
