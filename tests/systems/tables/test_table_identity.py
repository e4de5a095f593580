"""Whose output a table has: copies of a job, restored ones, take-overs and fresh starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from table_support import A, B, C, Job

from turnback.errors import ConfigurationError, FencedError
from turnback.sinks.base import CommitterContext


class History:
    """The attempts that a job directory knows of, with the drivers that had them."""

    def __init__(self, *attempts: int, life: str = "first") -> None:
        self._nonces = {attempt: f"{life} driver of {attempt}" for attempt in attempts}

    def nonce_of(self, attempt: int) -> str | None:
        return self._nonces.get(attempt)

    def after(self, earlier: History) -> History:
        """The same, for a job directory that has had the attempts of an earlier life as well."""
        self._nonces |= earlier._nonces
        return self


class Promised:
    """Other jobs, by how much they have promised."""

    def __init__(self, count: int) -> None:
        self._count = count

    def promised_by(self, directory: str) -> int:
        return self._count


class Checkpoints:
    """The newest epoch of each attempt that has a checkpoint."""

    def __init__(self, **epochs: int) -> None:
        self._epochs = {int(name.removeprefix("a")): epoch for name, epoch in epochs.items()}

    def newest_epoch(self, attempt: int) -> int | None:
        return self._epochs.get(attempt)


class Driver:
    """A driver that is told all that real ones are."""

    def __init__(self, job: Job, history: History, attempt: int, **changes: Any) -> None:
        nonce = history.nonce_of(attempt) or ""
        told = {"nonce": nonce, "attempts": history, "other_jobs": Promised(0)} | changes
        self.job, self.attempt = job, attempt
        self.context: Callable[..., CommitterContext] = lambda **more: job.context(
            **{"attempt": attempt} | told | more
        )

    def start(self, *promised: bytes) -> Any:
        self.job.sink.check_target(self.context())
        self.job.sink.acquire_target(self.context())
        committer = self.job.sink.committer(self.context())
        committer.commit(promised)
        committer.recover(())
        return committer

    def take_over(self) -> None:
        ctx = self.context(attempt=0, nonce="", take_over=True)
        self.job.sink.check_target(ctx)
        self.job.sink.acquire_target(ctx)

    def write(self, *rows: Any, epoch: int) -> bytes:
        ctx = self.context()
        return self.job.write(
            *rows, epoch=epoch, attempt=self.attempt, job_id=ctx.job_id, uid=ctx.uid
        )


def copied(job: Job) -> Job:
    """A copy of the job's directory: only its place differs."""
    copy = Job(job.place)
    copy.directory = "file:///copies/likes"
    return copy


# -- a job directory that was restored from a backup


@pytest.mark.parametrize("way", [{}, {"mode": "upsert", "key": ["post"]}], ids=["append", "upsert"])
def test_a_restored_job_is_refused_instead_of_losing_its_output(place: Any, way: Any) -> None:
    job = Job(place, **way)
    first = Driver(job, History(1), 1)
    first.start().commit([first.write(A, epoch=1)])
    later = Driver(job, History(1, 2, 3), 3)
    later.start().commit([later.write(B, epoch=2)])
    # The backup was taken during attempt 1, so the next one is called 2 again.
    restored = Driver(job, History(1, 2, life="second"), 2)
    staged = restored.write(C, epoch=2)
    with pytest.raises(ConfigurationError, match="restored from a backup") as refused:
        restored.start()
    assert "attempt 3" in str(refused.value)
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        job.sink.committer(restored.context()).commit([staged])
    assert job.rows() == [A, B]
    assert len(job.notes()) == 1  # what it has written is still there


def test_a_restored_job_that_counts_the_same_attempt_again_is_refused(job: Job) -> None:
    first = Driver(job, History(1, 2), 2)
    first.start().commit([first.write(A, epoch=9)])
    with pytest.raises(ConfigurationError, match=r"attempt 2 .*restored from a backup"):
        Driver(job, History(1, 2, life="second"), 2).start()
    assert job.rows() == [A]


def test_a_fence_of_the_life_before_is_not_taken_for_published_output(job: Job) -> None:
    first = Driver(job, History(1, 2), 2)
    first.start()
    first.write(A, epoch=1)
    Driver(job, History(1, 2, 3), 3).start()  # rolls it back, and keeps attempt 2 out
    restored = Driver(job, History(1, 2), 2)
    with pytest.raises(ConfigurationError, match=r"attempt 3 .*restored from a backup"):
        job.sink.committer(restored.context()).commit([restored.write(B, epoch=1)])


def test_a_restored_job_goes_on_with_what_is_there_if_it_may(job: Job) -> None:
    later = Driver(job, History(1, 2, 3), 3)
    later.start().commit([later.write(A, epoch=2)])
    restored = Driver(job, History(1, 2, life="second"), 2)
    restored.take_over()
    restored.start().commit([restored.write(B, epoch=2)])
    assert job.rows() == [A, B]
    next_one = Driver(job, History(1, 2, 3, life="second"), 3)
    next_one.start().commit([next_one.write(C, epoch=3)])
    assert job.rows() == [A, B, C]


def test_a_backup_of_a_running_job_is_refused(job: Job) -> None:
    first = Driver(job, History(1), 1)
    committer = first.start()
    for epoch, row in ((1, A), (2, B)):
        committer.commit([first.write(row, epoch=epoch)])
    # It was made after epoch 1, and the job went on in the same attempt.
    restored = Driver(job, History(1, 2), 2, promised=Checkpoints(a1=1))
    with pytest.raises(ConfigurationError, match=r"attempt 1 .*restored from a backup"):
        restored.start()
    restored.take_over()
    restored.start().commit([restored.write(B, epoch=2)])
    assert job.rows() == [A, B, B]


@pytest.mark.parametrize(
    "since", [{"uid": "renamed"}, {"job_id": "id-2"}], ids=["renamed", "started afresh"]
)
def test_a_restored_job_is_refused_whatever_its_sink_was_called_since(
    job: Job, since: dict[str, str]
) -> None:
    first = Driver(job, History(1), 1)
    first.start().commit([first.write(A, epoch=1)])
    later = Driver(job, History(1, 2), 2, **since)
    later.start().commit([later.write(B, epoch=2)])
    restored = Driver(job, History(1), 1)
    with pytest.raises(ConfigurationError, match=r"attempt 2 .*restored from a backup"):
        restored.start()
    restored.take_over()
    restored = Driver(job, History(2, life="second").after(History(1)), 2)
    restored.start().commit([restored.write(C, epoch=2)])
    assert job.rows() == [A, B, C]
    Driver(job, History(2, 3, life="second").after(History(1)), 3).start()


def test_a_restored_job_is_refused_whatever_its_sink_is_called_now(job: Job) -> None:
    first = Driver(job, History(1), 1)
    committer = first.start()
    promised = first.write(A, epoch=1)
    committer.commit([promised])
    committer.commit([first.write(B, epoch=2)])
    # It was made after epoch 1, and the job went on in the same attempt.
    named = {"uid": "renamed", "other_uids": ("out",)}
    restored = Driver(job, History(1, 2), 2, promised=Checkpoints(a1=1), **named)
    with pytest.raises(ConfigurationError, match=r"attempt 1 .*restored from a backup"):
        restored.start()
    restored.take_over()
    restored.start(promised).commit([restored.write(B, epoch=2)])
    assert job.rows() == [A, B, B]
    Driver(job, History(1, 2, 3), 3, promised=Checkpoints(a2=2), **named).start()


def test_a_job_that_was_deleted_and_made_again_is_not_taken_for_restored(job: Job) -> None:
    deleted = Driver(job, History(3), 3)
    deleted.start().commit([deleted.write(A, epoch=1)])
    new = Driver(job, History(), 0, job_id="")
    job.sink.check_target(new.context())
    job.sink.acquire_target(new.context())
    for attempt in (1, 2):
        again = Driver(job, History(*range(1, attempt + 1), life="second"), attempt, job_id="id-2")
        again.start()
    again.start().commit([again.write(B, epoch=1)])
    assert job.rows() == [A, B]


def test_what_a_restored_checkpoint_promises_is_not_written_again(job: Job) -> None:
    first = Driver(job, History(1), 1)
    committer = first.start()
    promised = first.write(A, epoch=1)
    later = first.write(B, epoch=2)
    committer.commit([promised, later])
    restored = Driver(job, History(1, 2), 2, promised=Checkpoints(a1=1))
    restored.take_over()
    restored.start(promised)
    assert job.rows() == [A, B]


def test_a_driver_that_meets_its_successors_output_is_fenced(job: Job) -> None:
    history = History(1, 2)
    zombie = Driver(job, history, 1)
    paused, late = zombie.start(), zombie.write(A, epoch=5)
    successor = Driver(job, history, 2)
    successor.start().commit([successor.write(B, epoch=1)])
    with pytest.raises(FencedError, match=r"attempt 1 can no longer write"):
        paused.commit([late])
    assert job.rows() == [B]


# -- tables from before they were told of job directories


def test_a_table_of_an_older_version_is_understood(job: Job) -> None:
    job.directory = None
    history = History(1, 2)
    old = Driver(job, history, 1)
    committer = job.sink.committer(old.context())
    done, promised = (
        job.write(row, epoch=n, attempt=1, directory_id="") for n, row in ((1, A), (2, B))
    )
    committer.commit([done])
    left = job.write(C, epoch=3, attempt=1, directory_id="", uid="another")
    job.directory = "file:///jobs/likes"
    new = Driver(job, history, 2)
    committer = new.start(done, promised)
    committer.commit([new.write(C, epoch=3)])
    assert job.rows() == [A, B, C]
    assert job.files() == job.place.referenced(), left
    with pytest.raises(ConfigurationError, match=r"attempt 2 .*restored from a backup"):
        Driver(job, History(1), 1).start()


def test_a_restored_job_is_refused_by_a_table_of_an_older_version(job: Job) -> None:
    job.directory = None
    committer = job.sink.committer(job.context(3))
    committer.commit([job.write(A, epoch=1, attempt=3, directory_id="")])
    job.directory = "file:///jobs/likes"
    with pytest.raises(ConfigurationError, match=r"attempt 3 .*restored from a backup"):
        Driver(job, History(1, 2), 2).start()


# -- copies, forks and take-overs


def test_a_copy_that_takes_over_leaves_alone_what_the_original_has_written(job: Job) -> None:
    original = Driver(job, History(1), 1)
    original.start()
    original.write(A, epoch=1)
    copy = Driver(copied(job), History(1, 2), 2)
    copy.take_over()
    copy.start().commit([copy.write(B, epoch=2)])
    assert job.rows() == [B]
    assert len(job.files() - job.place.referenced()) == 1
    assert len(job.notes()) == 1


@pytest.mark.parametrize("job_id", ["id-1", "another"])
def test_nothing_is_taken_over_while_its_owner_has_promised_output(job: Job, job_id: str) -> None:
    Driver(job, History(1), 1).start()
    taker = Driver(copied(job), History(1), 1, job_id=job_id, other_jobs=Promised(2))
    with pytest.raises(ConfigurationError, match=r"has 2 in-doubt .*transactions commit"):
        taker.take_over()
    Driver(job, History(1, 2), 2).start()  # it is still the owner's


def test_a_job_that_was_moved_publishes_what_it_has_promised(job: Job) -> None:
    original = Driver(job, History(1), 1)
    committer = original.start()
    done, promised = original.write(A, epoch=1), original.write(B, epoch=2)
    committer.commit([done])
    moved = Driver(copied(job), History(1, 2), 2)
    moved.take_over()
    moved.start(done, promised).commit([moved.write(C, epoch=3)])
    assert job.rows() == [A, B, C]
    assert job.files() == job.place.referenced()


def test_an_owner_that_is_replaced_between_look_and_commit_writes_nothing(job: Job) -> None:
    original = Driver(job, History(1), 1)
    committer = original.start()
    late = original.write(A, epoch=1)
    fork = Driver(copied(job), History(1), 1, job_id="another")
    target = committer._target
    append = target.append

    def append_late(*arguments: Any) -> None:
        target.append = append
        fork.take_over()
        fork.start().commit([fork.write(B, epoch=1)])
        append(*arguments)

    target.append = append_late
    with pytest.raises(ConfigurationError, match="belongs to job 'likes' in file:///copies/likes"):
        committer.commit([late])
    assert job.rows() == [B]


# -- a fresh start


def test_a_fresh_start_rolls_back_what_the_job_had_left(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(1, 2)
    before = Driver(job, history, 1)
    committer = before.start()
    committer.commit([before.write(A, epoch=1)])
    promised = before.write(B, epoch=2)
    fresh = Driver(job, history, 2, job_id="afresh", uid="renamed")
    with caplog.at_level(logging.WARNING):
        fresh.start()
    assert job.files() == job.place.referenced()
    assert job.notes() == []
    assert "sink 'renamed' of job 'likes': dropping output of 1 tasks of sink 'out'" in caplog.text
    # Its driver was only paused: it must not refer to files that are gone.
    with pytest.raises(FencedError):
        committer.commit([promised])
    assert job.rows() == [A]
