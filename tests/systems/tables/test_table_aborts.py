"""What a sink for a table rolls back: only what the table does not have, and nothing unasked."""

from __future__ import annotations

from typing import Any

import pytest
from table_support import A, B, C, Job

from turnback.errors import SinkError


class Unlucky:
    """A table whose next commit fails, before or after it has landed, or that is away."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.fails: str | None = None

    def append(self, *arguments: Any) -> None:
        fails, self.fails = self.fails, None
        if fails != "before":
            self._target.append(*arguments)
        if fails is not None:
            raise SinkError(f"no answer {fails} the commit")

    def __getattr__(self, name: str) -> Any:
        if self.fails == "away":
            raise SinkError("the table is away")
        return getattr(self._target, name)


@pytest.fixture
def table(job: Job) -> Unlucky:
    """The table as every driver of the job reaches it."""
    unlucky = Unlucky(job.sink.target(job.context()))
    job.sink.target = lambda ctx: unlucky
    return unlucky


def test_output_that_the_table_has_stays_when_it_is_aborted_by_hand(job: Job) -> None:
    """The driver was killed between its commit to the table and the record of it."""
    committer = job.start(3)
    committer.commit([job.write(A)])
    committed, promised = job.write(B, epoch=8), job.write(C, epoch=9)
    committer.commit([committed])
    settling = job.sink.committer(job.context(4))
    settling.abort([committed, promised])
    settling.recover(())
    assert job.rows() == [A, B]
    assert job.files() == job.place.referenced()
    assert job.notes() == []


def test_output_stays_whose_commit_landed_without_an_answer(job: Job, table: Unlucky) -> None:
    committer = job.start(3)
    transaction, next_one = job.write(A), job.write(B, epoch=8)
    table.fails = "after"
    with pytest.raises(SinkError, match="no answer after"):
        committer.commit([transaction])
    committer.abort([transaction, next_one])
    assert job.rows() == [A]
    assert job.files() == job.place.referenced()


def test_output_goes_whose_commit_never_landed(job: Job, table: Unlucky) -> None:
    committer = job.start(3)
    transaction = job.write(A)
    table.fails = "before"
    with pytest.raises(SinkError, match="no answer before"):
        committer.commit([transaction])
    committer.abort([transaction])
    assert job.rows() == []
    assert job.files() == set()
    # A commit that was under way all the time does not land on top of it, and a start from the
    # checkpoint that promised it does not take it for published.
    with pytest.raises(SinkError, match="1 rows of epoch 7 of attempt 3 are lost"):
        committer.commit([transaction])
    assert job.rows() == []
    committer.commit([job.write(B, epoch=8)])
    assert job.rows() == [B]


def test_nothing_is_removed_while_the_table_does_not_answer(job: Job, table: Unlucky) -> None:
    committer = job.start(3)
    transaction = job.write(A)
    table.fails = "after"
    with pytest.raises(SinkError):
        committer.commit([transaction])
    table.fails = "away"
    with pytest.raises(SinkError, match="away"):
        committer.abort([transaction])
    table.fails = None
    assert job.rows() == [A]


def test_what_was_never_committed_is_removed_without_asking(job: Job, table: Unlucky) -> None:
    committer = job.start(3)
    transaction = job.write(A)
    before = job.place.versions()
    table.fails = "away"
    committer.abort([transaction])
    assert job.files() == set()
    assert job.place.versions() == before
