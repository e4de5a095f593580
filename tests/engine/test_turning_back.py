"""Starts that turn a job back, and fail half-way: promised output is kept, or given up for good.

What an attempt starts from is decided durably before anything of other attempts is rolled back.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, eventually
from saved_jobs import feed, save
from turnback import FileSink
from turnback.api.client import JobClient
from turnback.checkpoint.manifest import Manifest
from turnback.driver import runner
from turnback.driver.attempt import Attempt
from turnback.driver.restore_plan import commit_promised
from turnback.errors import ConfigurationError, FencedError, JobFailedError, SinkError
from turnback.job.directory import JobDirectory

SAVED = [("a", 1), ("a", 2), ("b", 1)]


class Flaky(FileSink):
    """Files in a place that is away while a file beside it says so, in one step of the driver."""

    def away(self, step: str) -> None:
        mark = self.path.with_name(f"{self.path.name}-is-away")
        if mark.exists() and mark.read_text() == step:
            raise SinkError(f"{self.path.name} is down")

    def committer(self, ctx: Any) -> Any:
        self.away("connect")
        return FlakyCommitter(self, super().committer(ctx))


class FlakyCommitter:
    def __init__(self, sink: Flaky, committer: Any) -> None:
        self._sink, self._committer = sink, committer

    def commit(self, transactions: Sequence[bytes]) -> None:
        if transactions:
            self._sink.away("commit")
        self._committer.commit(transactions)

    def recover(self, pending: Sequence[bytes]) -> None:
        self._sink.away("recover")
        self._committer.recover(pending)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._committer, name)


class TwoSinks:
    """A job with two sinks, whose newest checkpoint has promised output of the first one.

    `saved` is a savepoint from before that.
    """

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        feed(jobs, "aab")
        self.saved = str(save(jobs, self.program()))
        feed(jobs, "c")
        with self.down("a", "commit"), pytest.raises(JobFailedError):
            self.run()
        newest = jobs.log().latest()
        assert newest is not None
        assert set(jobs.log().uncommitted(newest)) == {"a"}
        self.newest = newest.number

    def program(self) -> Any:
        env = self.jobs.env(**{"execution.checkpointing.num-retained": 9})
        events = self.jobs.files(env, "events", "k string")
        counts = events.key_by("k").process(Count(), COUNTED).uid("count")
        for name in ("a", "b"):
            counts.sink_to(Flaky(self.jobs.directory / name, "json")).uid(name)
        return env

    def down(self, sink: str, step: str) -> Down:
        return Down(self.jobs.directory / f"{sink}-is-away", step)

    def run(self, **how: Any) -> None:
        self.jobs.start(self.program(), bounded=True, **how).result(60)

    def out(self) -> dict[str, list[Any]]:
        return {name: self.jobs.out(name) for name in ("a", "b")}

    def staged(self) -> list[Path]:
        roots = [self.jobs.directory / name for name in ("a", "b")]
        return [path for root in roots for path in root.rglob("*.inprogress")]


class Down:
    """While it is entered, a sink is away in one step."""

    def __init__(self, mark: Path, step: str) -> None:
        self._mark, self._step = mark, step

    def __enter__(self) -> None:
        self._mark.write_text(self._step)

    def __exit__(self, *_: object) -> None:
        self._mark.unlink()


@pytest.fixture
def two_sinks(jobs: Jobs) -> TwoSinks:
    return TwoSinks(jobs)


def test_a_start_that_fails_before_it_is_decided_changes_nothing(two_sinks: TwoSinks) -> None:
    with two_sinks.down("b", "connect"), pytest.raises(JobFailedError, match="b is down"):
        two_sinks.run(start_from=two_sinks.saved)
    two_sinks.run()
    assert two_sinks.out() == {"a": [*SAVED, ("c", 1)], "b": [*SAVED, ("c", 1)]}


def test_a_start_that_fails_once_it_is_decided_is_what_the_next_goes_on_from(
    two_sinks: TwoSinks,
) -> None:
    with two_sinks.down("b", "recover"), pytest.raises(JobFailedError, match="b is down"):
        two_sinks.run(start_from=two_sinks.saved)
    two_sinks.run()
    # The one had published its row before the job was turned back, so that it comes again.
    assert two_sinks.out() == {"a": [*SAVED, ("c", 1)], "b": [*SAVED, ("c", 1), ("c", 1)]}
    two_sinks.run()
    assert len(two_sinks.out()["a"]) == 4


@pytest.mark.parametrize("fails", [True, False], ids=["which failed", "which ran"])
def test_a_checkpoint_that_was_given_up_is_refused(two_sinks: TwoSinks, fails: bool) -> None:
    if fails:
        with two_sinks.down("b", "recover"), pytest.raises(JobFailedError):
            two_sinks.run(start_from=two_sinks.saved)
    else:
        two_sinks.run(start_from=two_sinks.saved)
    checkpoint = two_sinks.jobs.path() / "checkpoints" / f"chk-{two_sinks.newest}.json"
    before = two_sinks.out()
    for given in (f"chk-{two_sinks.newest}", str(checkpoint)):
        with pytest.raises((ConfigurationError, JobFailedError)) as refused:
            two_sinks.run(start_from=given)
        assert f"cannot start from chk-{two_sinks.newest} of job 'job': " in str(refused.value)
    assert two_sinks.out() == before


def test_a_fresh_start_leaves_nothing_staged(
    two_sinks: TwoSinks, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(two_sinks.staged()) == 1
    two_sinks.run(fresh=True)
    assert two_sinks.staged() == []
    assert "1 files with" in caplog.text
    assert "that sink 'a' had written but not published before the job was started" in caplog.text


@pytest.mark.parametrize("how", ["told", "fresh"])
def test_a_start_that_was_overtaken_turns_nothing_back(
    two_sinks: TwoSinks, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another driver is about to commit what the newest checkpoint has promised."""
    turns_back: dict[str, Any] = {"start_from": two_sinks.saved}
    keeps: dict[str, Any] = {}
    if how == "fresh":
        turns_back = {"fresh": True}
        keeps = {"start_from": f"chk-{two_sinks.newest}"}
    monkeypatch.setattr(JobDirectory, "require_free", lambda self: None)
    overtaken = threading.Event()
    refused = threading.Event()
    other: list[JobClient] = []

    def commit(*args: Any) -> None:
        if not other:
            other.append(two_sinks.jobs.start(two_sinks.program(), bounded=True, **keeps))
            assert overtaken.wait(60)
        else:
            overtaken.set()
            assert refused.wait(60)
        commit_promised(*args)

    monkeypatch.setattr(runner, "commit_promised", commit)
    with pytest.raises(FencedError, match="has taken over"):
        two_sinks.run(**turns_back)
    refused.set()
    other[0].result(60)
    assert two_sinks.out() == {"a": [*SAVED, ("c", 1)], "b": [*SAVED, ("c", 1)]}


def test_a_start_survives_that_its_checkpoint_is_dropped(two_sinks: TwoSinks) -> None:
    """A driver that was replaced may still be about to drop an old checkpoint."""
    first = two_sinks.jobs.checkpoints()[0]
    with two_sinks.down("b", "recover"), pytest.raises(JobFailedError, match="b is down"):
        two_sinks.run(start_from=first.name)
    two_sinks.jobs.log().remove(first.number)
    two_sinks.run()
    assert set(two_sinks.out()["a"]) >= {*SAVED, ("c", 1)}


class HeldUp:
    """A start, plain unless told, that has opened the job, and is held up before its fence."""

    def __init__(self, two_sinks: TwoSinks, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
        opened = threading.Event()
        self.go = threading.Event()
        fence = runner.JobRunner._fence

        def held(runner_: Any, log: Any) -> Any:
            if not opened.is_set():
                opened.set()
                assert self.go.wait(60)
            return fence(runner_, log)

        monkeypatch.setattr(JobDirectory, "require_free", lambda self: None)
        monkeypatch.setattr(runner.JobRunner, "_fence", held)
        self.client = two_sinks.jobs.start(two_sinks.program(), bounded=True, **how)
        assert opened.wait(60)


def test_a_driver_that_began_before_a_fresh_start_goes_on_with_that(
    two_sinks: TwoSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = HeldUp(two_sinks, monkeypatch)
    two_sinks.run(fresh=True)
    out = two_sinks.out()
    late.go.set()
    late.client.result(60)
    assert (
        late.client.report.job_id == JobDirectory.locate(two_sinks.jobs.root, "job").open().job_id
    )
    two_sinks.run()
    assert two_sinks.out() == out  # nothing was written twice


def test_a_checkpoint_that_is_given_up_after_it_was_checked_is_refused(
    two_sinks: TwoSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = HeldUp(two_sinks, monkeypatch, start_from=f"chk-{two_sinks.newest}")
    with two_sinks.down("b", "recover"), pytest.raises(JobFailedError, match="b is down"):
        two_sinks.run(start_from=two_sinks.saved)
    late.go.set()
    with pytest.raises(ConfigurationError, match="its in-doubt output was rolled back"):
        late.client.result(60)


def test_of_a_plain_and_a_fresh_start_at_once_one_is_left(
    two_sinks: TwoSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late one has fenced the other out, so it must not end as well."""
    late = HeldUp(two_sinks, monkeypatch)
    fresh = two_sinks.jobs.start(two_sinks.program(), fresh=True)
    eventually(lambda: len(fresh.report.epochs) == 2)
    late.go.set()
    late.client.result(60)
    feed(two_sinks.jobs, "c")
    with pytest.raises(FencedError, match="has taken over"):
        fresh.result(60)
    two_sinks.run()
    # What the job had before the fresh start came out before, but for what "a" had not published.
    assert two_sinks.out()["a"] == sorted([*SAVED, *SAVED, ("c", 1), ("c", 2)])


@pytest.mark.parametrize("spelled", ["dots", "link", "root is a link"])
def test_its_own_checkpoint_is_its_own_however_it_is_written(
    two_sinks: TwoSinks, spelled: str
) -> None:
    root = two_sinks.jobs.root
    given = root
    if spelled == "dots":
        given = root / ".." / root.name
    elif spelled == "link":
        given = two_sinks.jobs.directory / "link"
        given.symlink_to(root)
    else:
        given = root.rename(two_sinks.jobs.directory / "real")
        root.symlink_to(given)
    two_sinks.run(start_from=f"{given}/job/checkpoints/chk-{two_sinks.newest}.json")
    assert two_sinks.out() == {"a": [*SAVED, ("c", 1)], "b": [*SAVED, ("c", 1)]}


@pytest.mark.parametrize("fails", [True, False], ids=["which failed", "which ran"])
def test_a_checkpoint_that_a_fresh_start_gave_up_is_refused(
    two_sinks: TwoSinks, fails: bool
) -> None:
    """Also once the new lineage has committed checkpoints with greater numbers."""
    if fails:
        with two_sinks.down("b", "recover"), pytest.raises(JobFailedError):
            two_sinks.run(fresh=True)
    else:
        two_sinks.run(fresh=True)
        given_up = two_sinks.jobs.log().get(two_sinks.newest)
        assert isinstance(given_up, Manifest)
        assert two_sinks.jobs.log().uncommitted(given_up) == {}
    before = two_sinks.out()
    with pytest.raises(ConfigurationError, match="its in-doubt output was rolled back"):
        two_sinks.run(start_from=f"chk-{two_sinks.newest}")
    assert two_sinks.out() == before


def test_back_behind_a_fresh_start_that_gave_nothing_up(two_sinks: TwoSinks) -> None:
    two_sinks.run()
    two_sinks.run(fresh=True)
    fresh = {name: [*rows, *SAVED, ("c", 1)] for name, rows in two_sinks.out().items()}
    feed(two_sinks.jobs, "c")
    two_sinks.run(start_from=f"chk-{two_sinks.newest}")
    assert {name: len(rows) for name, rows in two_sinks.out().items()} == {
        name: len(rows) - 3 for name, rows in fresh.items()
    }


def test_a_fresh_start_that_fails_before_it_is_decided_gives_nothing_up(
    two_sinks: TwoSinks,
) -> None:
    with two_sinks.down("b", "connect"), pytest.raises(JobFailedError, match="b is down"):
        two_sinks.run(fresh=True)
    for _ in range(2):  # the second time it is what an attempt of another lineage started from
        two_sinks.run(start_from=f"chk-{two_sinks.newest}")
        assert two_sinks.out() == {"a": [*SAVED, ("c", 1)], "b": [*SAVED, ("c", 1)]}


@pytest.mark.parametrize("fresh", [False, True], ids=["its own", "from before a fresh start"])
def test_a_start_survives_crashes_after_its_checkpoint_is_dropped(
    two_sinks: TwoSinks, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """None of these attempts lives to take a checkpoint, so each one needs the files again."""
    first = two_sinks.jobs.checkpoints()[0]
    two_sinks.run()
    if fresh:
        two_sinks.run(fresh=True)
    before = len(two_sinks.out()["a"])

    def killed(self: Attempt) -> None:
        raise RuntimeError("killed before a checkpoint")

    with monkeypatch.context() as patched:
        patched.setattr(Attempt, "_drive", killed)
        with pytest.raises(JobFailedError, match="killed"):
            two_sinks.run(start_from=first.name)
        two_sinks.jobs.log().remove(first.number)
        for _ in range(3):
            with pytest.raises(JobFailedError, match="killed"):
                two_sinks.run()
    two_sinks.run()
    assert len(two_sinks.out()["a"]) == before + 1  # "c" again
    two_sinks.run()
    assert len(two_sinks.out()["a"]) == before + 1
