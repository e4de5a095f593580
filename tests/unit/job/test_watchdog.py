"""Whether a job that runs gets on, judged from what its driver last wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_job import Driver, dead, elsewhere, seen
from turnback.job.liveness import Stall, stall_of
from turnback.job.run import ProcessId
from turnback.job.status import (
    AttemptProgress,
    CheckpointInProgress,
    JobState,
    Lag,
    Metrics,
    RestoreProgress,
    Status,
    WatchLimits,
)

NOW = 10_000_000_000
LIMITS = WatchLimits(heartbeat_ms=60_000, epoch_ms=600_000, checkpoint_ms=900_000)


def ago(ms: int) -> int:
    return NOW - ms


def status(
    state: JobState = JobState.RUNNING,
    updated: int = 0,
    limits: WatchLimits = LIMITS,
    lag: dict[str, Lag] | None = None,
    under_way: tuple[CheckpointInProgress, ...] = (),
    **progress: Any,
) -> Status:
    """What a driver wrote; times of progress are so long before."""
    times = {name: None if v is None or name == "epoch" else ago(v) for name, v in progress.items()}
    times |= {"epoch": progress["epoch"]} if "epoch" in progress else {}
    made = AttemptProgress(**({"epoch": None, "since_ms": ago(0)} | times)) if progress else None
    return Status(
        job="orders", job_id="id", state=state, process=ProcessId.current(), owner="me",
        heartbeat=1, updated_ms=ago(updated), limits=limits,
        metrics=Metrics(progress=made, lag=lag or {}, under_way=under_way),
    )  # fmt: skip


def waiting(records: int | None, **more: Any) -> dict[str, Lag]:
    return {"events": Lag(records=records, seconds=None, measured_ms=NOW, **more)}


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (status(updated=60_001), "its driver has not reported for 1 min"),
        (status(epoch=41, since_ms=600_001), "epoch 41 has been running for 10 min"),
        (
            status(since_ms=600_001, lag=waiting(1200)),
            "no epoch for 10 min although records are waiting: 1,200 of source 'events'",
        ),
        (
            status(since_ms=90_000, asked_ms=60_001),
            "Spark has not responded for 1 min",
        ),
        (status(since_ms=0, uncovered_ms=900_001), "no checkpoint for 15 min"),
        (
            status(
                epoch=42, since_ms=840_000, uncovered_ms=960_000,
                under_way=(CheckpointInProgress(41, "periodic", ago(720_000)),),
            ),
            "epoch 42 has been running for 14 min; "
            "no checkpoint for 16 min (the checkpoint of epoch 41 has been in progress for 12 min)",
        ),
        (
            status(since_ms=0, lag=waiting(5000, growing_ms=1_800_000)),
            "the lag of source 'events' has grown for 30 min and is 5,000 records",
        ),
    ],
)  # fmt: skip
def test_every_limit_has_its_reason(written: Status, reason: str) -> None:
    stall = stall_of(written, NOW)
    assert stall is not None
    assert stall.reason == reason
    assert stall.silent is ("reported" in reason)


@pytest.mark.parametrize(
    "written",
    [
        status(updated=60_000),
        status(epoch=41, since_ms=600_000),
        status(since_ms=600_000, lag=waiting(1200)),
        status(since_ms=900_000_000, lag=waiting(0)),
        status(since_ms=900_000_000, lag=waiting(None)),
        status(since_ms=60_000, asked_ms=60_000),
        # The epoch itself keeps Spark busy.
        status(epoch=1, since_ms=300_000, asked_ms=300_000),
        status(since_ms=0, uncovered_ms=900_000),
        status(since_ms=0, lag=waiting(5000, change_per_s=3.0)),
    ],
)
def test_up_to_the_limit_it_gets_on(written: Status) -> None:
    assert stall_of(written, NOW) is None


@given(
    since=st.integers(0, 10**10),
    asked=st.integers(0, 60_000),
    limit=st.integers(1_000, 10**7) | st.none(),
    lag=st.sampled_from([{}, waiting(0), waiting(None)]),
)
def test_a_job_without_input_never_stalls(
    since: int, asked: int, limit: int | None, lag: dict[str, Lag]
) -> None:
    limits = WatchLimits(heartbeat_ms=60_000, epoch_ms=limit, checkpoint_ms=limit)
    assert stall_of(status(limits=limits, since_ms=since, asked_ms=asked, lag=lag), NOW) is None


@given(
    state=st.sampled_from(JobState),
    updated=st.integers(0, 10**10),
    epoch=st.integers(1, 9) | st.none(),
    since=st.integers(0, 10**10),
    uncovered=st.integers(0, 10**10) | st.none(),
)
def test_without_limits_and_when_it_is_over_nothing_stalls(
    state: JobState, updated: int, epoch: int | None, since: int, uncovered: int | None
) -> None:
    written = status(state, updated, epoch=epoch, since_ms=since, uncovered_ms=uncovered)
    if state.is_terminal:
        assert stall_of(written, NOW) is None
    off = msgspec.structs.replace(written, limits=WatchLimits())
    assert stall_of(off, NOW) is None


@pytest.mark.parametrize("state", [JobState.CREATED, JobState.RESTARTING])
def test_what_does_not_run_yet_is_only_asked_for_its_heartbeat(state: JobState) -> None:
    assert stall_of(status(state, epoch=1, since_ms=10**9), NOW) is None
    assert stall_of(status(state, updated=61_000), NOW) == Stall(
        "its driver has not reported for 1 min", silent=True
    )


def test_only_silence_goes_by_the_clock_of_who_asks() -> None:
    """The clock of the machine that watches is an hour ahead, or behind."""
    limits = msgspec.structs.replace(LIMITS, heartbeat_ms=None)
    written = status(limits=limits, epoch=3, since_ms=30_000, uncovered_ms=30_000)
    assert stall_of(written, NOW + 3_600_000) is None
    assert stall_of(written, NOW - 3_600_000) is None


@pytest.mark.parametrize("state", [JobState.CREATED, JobState.RESTARTING, JobState.RUNNING])
def test_a_long_restore_is_no_stall_as_long_as_it_gets_on(state: JobState) -> None:
    def restoring(moved: int) -> Status:
        progress = RestoreProgress(
            what="filling local stores", done=0.4, entries=9, since_ms=0, moved_ms=ago(moved)
        )
        written = status(state, epoch=1, since_ms=10**9)
        return msgspec.structs.replace(written, restore=progress)

    assert stall_of(restoring(600_000), NOW) is None
    assert stall_of(restoring(600_001), NOW) == Stall(
        "filling local stores has been stuck at 40 % for 10 min"
    )


# -- as it is seen


def test_a_stalled_job_says_so_and_goes_back_by_itself(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    now = driver.clock.now_ms()
    stuck = Metrics(
        progress=AttemptProgress(epoch=3, since_ms=now - 700_000), lag=waiting(7), per_s=0.0
    )
    driver.say(JobState.RUNNING, limits=LIMITS, metrics=stuck)
    summary = seen(driver).summary()
    assert (summary.state, summary.problem) == ("STALLED", "epoch 3 has been running for 11 min")
    assert summary.lag is not None and summary.lag.records == 7
    assert seen(driver).liveness().takes_requests
    driver.say(JobState.RUNNING, metrics=Metrics(progress=AttemptProgress(epoch=4, since_ms=now)))
    summary = seen(driver).summary()
    assert (summary.state, summary.problem) == ("RUNNING", None)


@pytest.mark.parametrize("process", [ProcessId.current(), elsewhere()])
def test_of_a_silent_driver_nothing_old_is_shown_as_new(tmp_path: Path, process: ProcessId) -> None:
    driver = Driver(tmp_path, process=process)
    driver.say(JobState.RUNNING, limits=LIMITS, metrics=Metrics(lag=waiting(7), per_s=5.0))
    driver.clock.advance(120_000)
    summary = seen(driver).summary()
    assert summary.state == "STALLED"
    assert summary.problem == "its driver has not reported for 2 min"
    assert (summary.lag, summary.records_per_s) == (None, None)


def test_a_dead_driver_is_lost_and_not_stalled(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=dead()).say(JobState.RUNNING, limits=LIMITS)
    driver.clock.advance(120_000)
    assert seen(driver).summary().state == "LOST"
