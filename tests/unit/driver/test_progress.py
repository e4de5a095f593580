"""How a driver tells that its job gets on, and who sees it when it does not."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from manual_clock import ManualClock
from turnback.config.checkpointing import CheckpointSettings
from turnback.config.restart import RestartStrategies
from turnback.config.watchdog import WatchdogSettings
from turnback.driver import context, source_monitor
from turnback.driver.epochs import ProgressMeter, watch_limits
from turnback.driver.job import JobSpec
from turnback.driver.source_monitor import SteadyGrowth
from turnback.errors import ConfigurationError
from turnback.job import alerts
from turnback.job.directory import JobDirectory
from turnback.job.status import AttemptProgress, WatchLimits
from turnback.plan.sources import SourceLag
from turnback.testing import JobHarness, source
from turnback.testing.engine import LocalQuery
from turnback.views.job import Job


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- limits


def spec(watchdog: WatchdogSettings, epoch_interval_ms: int = 0, **settings: int) -> JobSpec:
    checkpoints = CheckpointSettings(**settings)  # type: ignore[arg-type]
    return JobSpec(
        "job", "/jobs", checkpoints, RestartStrategies.no_restart(), "hashmap",
        epoch_interval_ms=epoch_interval_ms, watchdog=watchdog,
    )  # fmt: skip


def test_limits_begin_after_what_is_configured_anyway() -> None:
    limits = watch_limits(spec(WatchdogSettings(), 3_600_000, interval_ms=10, min_pause_ms=500))
    assert limits == WatchLimits(heartbeat_ms=60_000, epoch_ms=4_500_000, checkpoint_ms=900_500)
    assert watch_limits(spec(WatchdogSettings())).checkpoint_ms is None  # none are taken
    off = WatchdogSettings(None, None, None, None)
    assert watch_limits(spec(off, interval_ms=10)) == WatchLimits()


# -- progress


def test_epochs_wait_for_the_checkpoint_that_covers_them() -> None:
    clock = ManualClock(0)
    meter = ProgressMeter(clock)
    assert meter.progress(None) == AttemptProgress(epoch=None, since_ms=0)
    for epoch in (5, 6, 7):
        clock.advance(5_000)
        meter.begin(epoch)
        assert meter.progress(None).epoch == epoch
        clock.advance(5_000)
        meter.end(epoch)
    assert meter.progress(None) == AttemptProgress(epoch=None, since_ms=30_000, uncovered_ms=10_000)
    assert meter.progress(4).uncovered_ms == 10_000
    assert meter.progress(5).uncovered_ms == 20_000
    assert meter.progress(7).uncovered_ms is None


def test_quick_epochs_take_no_room() -> None:
    clock = ManualClock(0)
    meter = ProgressMeter(clock)
    for epoch in range(10_000):
        meter.begin(epoch)
        clock.advance(1)
        meter.end(epoch)
    assert len(meter._uncovered) == 10
    assert meter.progress(0).uncovered_ms == 1  # not later than it is
    assert meter.progress(9_998).uncovered_ms > 8_000
    assert meter.progress(9_999).uncovered_ms is None


# -- a lag that grows


def grows(lag: Callable[[float], float | None], minutes: float = 60) -> list[float]:
    """The minutes at which a lag is said to have grown for half an hour."""
    growth, found = SteadyGrowth(1_800), []
    for second in range(0, int(minutes * 60), 5):
        if growth.add(float(second), lag(float(second))):
            found.append(second / 60)
    return found


def test_a_lag_that_grows_is_seen_after_its_time() -> None:
    found = grows(lambda s: s)
    assert 30 <= found[0] <= 31
    assert found[-1] > 59


def test_a_lag_that_grows_and_falls_with_every_epoch_grows() -> None:
    assert grows(lambda s: 2 * s + 500 * (s % 60) / 60)


@pytest.mark.parametrize(
    "lag",
    [
        lambda s: 0,
        lambda s: 1000,
        lambda s: 1000 * (s % 600),
        lambda s: 100_000 - s,
        lambda s: 0 if s < 900 else 1000 + random.Random(s).random(),
        lambda s: 100 * random.Random(s).random(),
        lambda s: s if s < 1_200 else max(0, 2_400 - s),
        lambda s: s if s % 1_500 else None,
    ],
)
def test_any_other_lag_does_not(lag: Callable[[float], float | None]) -> None:
    assert grows(lag) == []


def test_a_lag_that_has_grown_and_stays_is_no_news_any_more() -> None:
    found = grows(lambda s: min(s, 2_400), minutes=120)
    assert found
    assert found[-1] < 62
    found = grows(lambda s: s if s < 2_400 else max(0, 4_800 - s))
    assert found
    assert found[-1] < 48


# -- a job that stalls


class Slow:
    """A function that waits as long as it is told to."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def __call__(self, row: object) -> object:
        assert self.may_go_on.wait(60)
        return row


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(source_monitor, "_PAUSE_S", 0.02)
    monkeypatch.setattr(alerts, "_POLL_S", 0.05)


def seen(harness: JobHarness) -> Job:
    return Job(JobDirectory.locate(harness.directory / "jobs", "job"))


def stall(harness: JobHarness) -> str | None:
    summary = seen(harness).summary()
    return summary.problem if summary.state == "STALLED" else None


GATE = Slow()


def wait_for_gate(row: object) -> object:
    return GATE(row)


@pytest.mark.slow
def test_a_function_that_never_returns_stalls_the_job_and_is_told(tmp_path: Path) -> None:
    def program(env):
        source(env, "numbers", "n bigint").map(wait_for_gate, "n bigint").print().uid("out")

    told = tmp_path / "told"
    page = tmp_path / "page"
    page.write_text(f'#!/bin/sh\ncat > /dev/null\necho "$TURNBACK_EVENT: $TURNBACK_TEXT" >> {told}')
    page.chmod(0o755)
    settings = {"watchdog.no-epoch": "1 s", "alerts.command": str(page)}
    GATE.may_go_on.set()
    with JobHarness(program, tmp_path, configuration=settings) as job:
        job.push("numbers", (1,))
        assert stall(job) is None
        GATE.may_go_on.clear()
        pushing = threading.Thread(target=job.push, args=("numbers", (2,)))
        pushing.start()
        until(lambda: (stall(job) or "").startswith("epoch 2 has been running for "))
        until(lambda: told.exists() and told.read_text())
        GATE.may_go_on.set()
        pushing.join()
        until(lambda: seen(job).summary().state == "RUNNING")
        until(lambda: "recovered" in told.read_text())
    first, second = told.read_text().splitlines()
    assert first.startswith("stalled: job 'job' is STALLED: epoch 2 has been running for ")
    assert second == "recovered: job 'job' is RUNNING again"


@pytest.mark.slow
def test_an_engine_that_does_not_answer_and_records_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broker:
        def read(self, offset: str | None) -> SourceLag:
            return SourceLag(12, None)

        def close(self) -> None:
            pass

    def program(env):
        numbers = source(env, "numbers", "n bigint")
        numbers._node.lag = Broker
        numbers.print().uid("out")

    wait, answers = LocalQuery.wait, threading.Event()
    answers.set()

    def stopped(self: LocalQuery, seconds: float) -> bool:
        assert answers.wait(60)
        return wait(self, seconds)

    monkeypatch.setattr(LocalQuery, "wait", stopped)
    settings = {"watchdog.no-epoch": "1 s", "watchdog.no-heartbeat": "3 s"}
    with JobHarness(program, tmp_path, configuration=settings) as job:
        until(lambda: "although records are waiting: 12 of source 'numbers'" in (stall(job) or ""))
        answers.clear()
        until(lambda: (stall(job) or "").startswith("Spark has not responded for "))
        answers.set()
        until(lambda: not (stall(job) or "").startswith("Spark"))


def test_a_command_that_is_not_there_keeps_a_job_from_starting(tmp_path: Path) -> None:
    def program(env):
        source(env, "numbers", "n bigint").print().uid("out")

    settings = {"alerts.command": str(tmp_path / "gone")}
    with (
        pytest.raises(ConfigurationError, match=r"alerts\.command: there is no executable program"),
        JobHarness(program, tmp_path, configuration=settings),
    ):
        pass
