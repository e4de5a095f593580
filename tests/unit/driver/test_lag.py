"""How far sources are behind: asked beside the epochs, and never at the cost of the job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection

import pytest

from manual_clock import ManualClock
from turnback.checkpoint.manifest import SourcePosition
from turnback.driver import context, source_monitor
from turnback.driver.source_monitor import SourceIdentities, SourceMonitor
from turnback.errors import ConfigurationError, SourceError
from turnback.job.directory import JobDirectory
from turnback.job.status import Lag
from turnback.plan.sources import ReplayLimit, SourceLag
from turnback.testing import JobHarness, source
from turnback.views.job import Job

pytestmark = pytest.mark.slow


class Broker:
    """A system that tells how many pushes a source has not processed yet."""

    def __init__(self) -> None:
        self.pushes, self.opened, self.closed = 0, 0, 0
        self.asked: list[str | None] = []
        self.failure: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()

    def open(self) -> Broker:
        self.opened += 1
        return self

    def read(self, offset: str | None) -> SourceLag | None:
        self.asked.append(offset)
        self.answers.wait(60)
        if self.failure is not None:
            raise self.failure
        behind = self.pushes - (json.loads(offset)["pushes"] if offset else 0)
        return SourceLag(behind, 7.5 if behind else 0.0)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(source_monitor, "_PAUSE_S", 0.02)


@pytest.fixture
def broker(request) -> Broker:
    return getattr(request, "param", Broker)()


@pytest.fixture
def job(tmp_path, broker):
    def program(env):
        numbers = source(env, "numbers", "n bigint")
        numbers._node.lag = broker.open
        source(env, "others", "n bigint").union(numbers).print().uid("out")

    with JobHarness(program, tmp_path) as harness:
        yield harness


def seen(harness: JobHarness) -> Job:
    return Job(JobDirectory.locate(harness.directory / "jobs", "job"))


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def source_lag(job: Job) -> Lag | None:
    lags = {node.uid: node.lag for node in job.detail().operators if node.lag is not None}
    assert lags.keys() <= {"numbers"}
    return lags.get("numbers")


def test_the_lag_is_that_of_the_newest_confirmed_epoch(job, broker):
    broker.pushes = 3
    until(lambda: (found := source_lag(seen(job))) and found.records == 3)
    assert broker.asked[-1] is None  # there was no epoch yet
    assert source_lag(seen(job)).seconds == 7.5
    job.push("numbers", (1,))
    until(lambda: source_lag(seen(job)).records == 2)
    job.push("numbers", (2,), checkpoint=False)
    job.push("numbers", (3,), checkpoint=False)
    until(lambda: source_lag(seen(job)).records == 0)
    summary = seen(job).summary()
    assert (summary.lag.records, summary.lag.seconds, summary.lag.catch_up_s) == (0, 0.0, 0.0)
    assert broker.opened == 1


def test_a_restored_job_knows_its_lag_before_its_first_epoch(job, broker):
    job.push("numbers", (1,))
    job.crash()
    broker.pushes = 5
    job.start()
    until(lambda: (found := source_lag(seen(job))) and found.records == 4)


def test_a_job_that_is_over_has_no_lag(job, broker):
    broker.pushes = 3
    until(lambda: source_lag(seen(job)) is not None)
    job.stop()
    assert source_lag(seen(job)) is None
    assert seen(job).summary().lag is None
    until(lambda: broker.closed == 1)


def test_a_system_that_fails_makes_the_lag_unknown_and_nothing_else(job, broker, caplog):
    broker.pushes = 3
    until(lambda: source_lag(seen(job)) is not None)
    broker.failure = SourceError("nobody answers")
    until(lambda: source_lag(seen(job)).records is None)
    asked = len(broker.asked)
    until(lambda: len(broker.asked) > asked + 3)
    assert caplog.text.count("cannot measure its lag: nobody answers") == 1
    job.push("numbers", (1,))
    assert seen(job).summary().lag.records is None
    broker.failure = None
    until(lambda: source_lag(seen(job)).records == 2)
    assert broker.opened == 1


def test_a_system_that_does_not_answer_holds_up_nothing(job, broker, monkeypatch):
    broker.pushes = 3
    until(lambda: source_lag(seen(job)) is not None)
    broker.answers.clear()
    asked = len(broker.asked)
    until(lambda: len(broker.asked) > asked)
    monkeypatch.setattr(source_monitor, "_FRESH_S", 0.0)  # an old answer is not shown for ever
    until(lambda: source_lag(seen(job)).records is None)
    job.push("numbers", (1,))
    broker.answers.set()


def test_a_reader_that_cannot_be_made_is_tried_again(tmp_path, broker):
    def fail():
        broker.opened += 1
        raise RuntimeError("no such library")

    def program(env):
        numbers = source(env, "numbers", "n bigint")
        numbers._node.lag = fail
        numbers.print().uid("out")

    with JobHarness(program, tmp_path) as job:
        until(lambda: broker.opened > 2)
        job.push("numbers", (1,))
        assert source_lag(seen(job)).records is None


def test_a_source_that_cannot_tell_has_no_lag(broker, monkeypatch):
    monkeypatch.setattr(Broker, "read", lambda self, offset: None)

    class Plan:
        class Source:
            uid, lag = "numbers", broker.open

        sources = (Source(),)

    class Positions:
        def confirmed(self):
            return {"numbers": SourcePosition("{}")}

        checkpointed = confirmed

    monitor = SourceMonitor(Plan(), Positions(), SourceIdentities(), None, ManualClock())
    with monitor.watching():
        until(lambda: broker.opened)
        assert monitor.lags() == {}


# -- which streams it reads


class NamedBroker(Broker):
    """One that tells which streams it has."""

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = "first"
        self.known: list[str | None] = []

    def identity(self, offset: str, known: str | None) -> str | None:
        self.known.append(known)
        if self.name == "none":
            raise SourceError("nobody knows")
        return self.name


def identities(harness: JobHarness) -> list[str | None]:
    """Those in the newest checkpoint."""
    manifest = seen(harness).retained()[-1]
    return [position.identity for position in manifest.sources.values()]


def push_until(harness: JobHarness, what: Callable[[], object]) -> None:
    until(lambda: (harness.push("numbers", (1,)), what())[1])


@pytest.mark.parametrize("broker", [NamedBroker], indirect=True)
def test_checkpoints_and_savepoints_say_which_streams_were_read(job, broker, tmp_path):
    push_until(job, lambda: identities(job) in (["first", None], [None, "first"]))
    saved = job.savepoint(tmp_path / "saved")
    job.crash()
    broker.name, broker.known = None, []
    job.start()
    until(lambda: broker.known)
    assert broker.known[0] == "first"  # out of the checkpoint
    job.push("numbers", (1,))
    assert "first" in identities(job)
    job.stop()
    broker.known = []
    job.start(start_from=saved)
    until(lambda: broker.known)
    assert broker.known[0] == "first"


class Refusing:
    """Refuses streams that are not those of the position."""

    def __init__(self, broker: NamedBroker) -> None:
        self.broker = broker

    def __call__(self, name: str, offset: str | None) -> list[str]:
        return ["a partition came since"] if offset else []

    def check_identity(self, name: str, identity: str) -> None:
        if identity != self.broker.name:
            raise ConfigurationError(f"{name} reads {self.broker.name}, and read {identity}")


def test_a_start_in_other_streams_is_refused_and_changes_nothing(tmp_path, caplog):
    broker = NamedBroker()

    def program(env):
        numbers = source(env, "numbers", "n bigint")
        numbers._node.lag, numbers._node.check = broker.open, Refusing(broker)
        numbers.print().uid("out")

    with JobHarness(program, tmp_path) as job:
        push_until(job, lambda: identities(job) == ["first"])
        saved = job.savepoint(tmp_path / "saved")
        job.crash()
        broker.name = "second"
        before = seen(job).retained()
        for start_from in (None, saved):
            with pytest.raises(ConfigurationError, match="reads second, and read first"):
                job.start(start_from=start_from)
            job._driver = None
        assert seen(job).retained() == before
        broker.name = "first"
        assert "a partition came since" not in caplog.text
        job.start()
        assert "source 'numbers' of job 'job': a partition came since" in caplog.text


@pytest.mark.parametrize("broker", [NamedBroker], indirect=True)
def test_what_cannot_be_told_of_streams_fails_nothing(job, broker, caplog):
    broker.name = "none"
    job.push("numbers", (1,))
    until(lambda: len(broker.known) > 2)
    job.push("numbers", (1,))
    assert identities(job) == [None, None]
    assert caplog.text.count("cannot identify the streams that it reads: nobody knows") == 1


# -- where others can see how far it is


class GroupBroker(Broker):
    """One with consumer groups."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[int] = []
        self.refuses = False

    def commit(self, offset: str) -> None:
        self.commits.append(json.loads(offset)["pushes"])
        if self.refuses:
            raise SourceError("not allowed")


@pytest.mark.parametrize("broker", [GroupBroker], indirect=True)
def test_positions_of_checkpoints_are_committed_and_never_those_of_epochs(job, broker):
    job.push("numbers", (1,))
    until(lambda: broker.commits == [1])
    for _ in range(3):
        job.push("numbers", (1,), checkpoint=False)
    asked = len(broker.asked)
    until(lambda: len(broker.asked) > asked + 2)
    assert json.loads(broker.asked[-1])["pushes"] == 4
    assert broker.commits == [1]
    job.checkpoint()
    until(lambda: broker.commits == [1, 4])
    job.push("numbers", (1,), checkpoint=False)
    job.stop()  # takes a last checkpoint
    assert broker.commits == [1, 4, 5]


@pytest.mark.parametrize("broker", [GroupBroker], indirect=True)
def test_a_group_that_refuses_fails_nothing_and_is_told_once(job, broker, caplog):
    broker.refuses = True
    job.push("numbers", (1,))
    until(lambda: len(broker.commits) > 3)  # tried again
    assert caplog.text.count("cannot report its position to the consumer group: not allowed") == 1
    broker.refuses = False
    job.push("numbers", (1,))
    until(lambda: broker.commits[-1] == 2)
    commits = len(broker.commits)
    asked = len(broker.asked)
    until(lambda: len(broker.asked) > asked + 2)
    assert len(broker.commits) == commits  # and then no more


# -- for how long savepoints can be replayed


class ForgetfulBroker(Broker):
    """One that deletes records, some time after they were pushed."""

    def __init__(self) -> None:
        super().__init__()
        self.gone_before = 0

    def replay_limits(self, offsets: Collection[str]) -> dict[str, ReplayLimit]:
        pushes = {offset: json.loads(offset)["pushes"] for offset in offsets}
        if self.failure is not None:
            raise self.failure
        return {
            offset: ReplayLimit(at < self.gone_before, None if at < self.gone_before else at * 1000)
            for offset, at in pushes.items()
        }


@pytest.mark.parametrize("broker", [ForgetfulBroker], indirect=True)
def test_savepoints_say_how_long_they_can_be_replayed(job, broker, tmp_path, monkeypatch):
    def replays() -> list[tuple[bool, int | None] | None]:
        rows = [row.replay for row in seen(job).savepoints()]  # the newest first
        return [row and (row.gone, row.until_ms) for row in rows]

    monkeypatch.setattr(source_monitor, "_REPLAYS_S", 0.0)
    for number in (1, 2):
        job.push("numbers", (number,))
        job.savepoint(tmp_path / str(number))
    until(lambda: replays() == [(False, 2000), (False, 1000)])
    broker.gone_before = 2
    until(lambda: replays() == [(False, 2000), (True, None)])
    assert all(row.replay.as_of_ms > 0 for row in seen(job).savepoints())
    job.stop()
    assert replays() == [(False, 2000), (True, None)]  # as of then


@pytest.mark.parametrize("broker", [ForgetfulBroker], indirect=True)
def test_savepoints_of_a_system_that_fails_or_of_a_damaged_file_are_listed(
    job, broker, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(source_monitor, "_REPLAYS_S", 0.0)
    broker.failure = SourceError("nobody answers")
    job.push("numbers", (1,))
    saved = job.savepoint(tmp_path / "saved")
    until(lambda: "cannot find out how long savepoints can be replayed" in caplog.text)
    assert [row.replay for row in seen(job).savepoints()] == [None]
    broker.failure = None
    until(lambda: seen(job).savepoints()[0].replay)
    job.stop()
    (job.directory / "jobs" / "job" / "replays.json").write_bytes(b"{")
    assert [(row.path, row.replay) for row in seen(job).savepoints()] == [(str(saved), None)]
