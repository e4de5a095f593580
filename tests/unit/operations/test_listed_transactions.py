"""Transactions of dead jobs are listed, committed and aborted, and the job goes on as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from dead_job import STATE, Ledger

from turnback.driver.restore_plan import require_kept_output
from turnback.errors import (
    ConfigurationError,
    FencedError,
    SinkError,
)
from turnback.operations.transactions import Action, TransactionState, list_transactions, settle
from turnback.sinks.base import CommitterContext
from turnback.snapshot.find import resume_point
from turnback.snapshot.snapshot import Snapshot


def test_promised_files_and_those_left_behind(place):
    place.die()
    promised, left = list_transactions(place.job)
    assert (promised.sink, promised.kind, promised.state) == ("out", "file", "in doubt")
    assert (promised.epoch, promised.rows, promised.problem) == (2, 2, None)
    assert promised.what.startswith("part-0000000002-00000-7-")
    assert promised.bytes == Path(promised.path).stat().st_size > 0
    assert (left.state, left.epoch) == (TransactionState.LEFT_BEHIND, 3)
    assert left.what.endswith(".json.inprogress of attempt 1")


def test_commit(place):
    place.die()
    before = resume_point(place.log, place.directory)
    done = settle(place.job, Action.COMMIT)
    assert (done.checkpoint, done.transactions) == (place.promising.number, {"out": 1})
    assert place.visible() == [1, 2]
    assert place.staged() == []
    assert list_transactions(place.job) == []
    assert resume_point(place.log, place.directory) == before
    assert place.log.committed() == place.promising.number
    place.start_again()
    assert place.visible() == [1, 2]


def test_abort(place):
    place.die()
    before = resume_point(place.log, place.directory)
    settle(place.job, Action.ABORT)
    assert place.visible() == [1]
    assert place.staged() == []
    assert list_transactions(place.job) == []
    assert resume_point(place.log, place.directory) == before
    place.start_again()  # does not look for what is gone
    assert place.visible() == [1]


def test_an_older_checkpoint_that_had_promised_the_same_is_refused_after_an_abort(place):
    place.die()
    older = place.promising
    place.job.checkpoint(STATE, transactions=older.transactions)  # it goes on promising it
    before = resume_point(place.log, place.directory)
    settle(place.job, Action.ABORT)
    assert resume_point(place.log, place.directory) == before
    snapshot = Snapshot(older, place.storage, place.log.uncommitted(older))
    with pytest.raises(ConfigurationError, match="records would be lost"):
        require_kept_output(place.directory, snapshot)
    committed = place.log.scan().manifests[0]
    require_kept_output(place.directory, Snapshot(committed, place.storage, {}))
    place.start_again()
    assert place.visible() == [1]


@pytest.mark.parametrize("action", list(Action))
def test_a_paused_driver_is_fenced_out(place, action):
    place.die()
    settle(place.job, action)
    with pytest.raises(FencedError, match="can no longer commit, because"):
        place.job.checkpoint(STATE)
    with pytest.raises(FencedError):
        place.log.check_fence()


@pytest.mark.parametrize("started", [{"snapshot": "file:///sp"}, {}])
def test_a_job_that_would_go_on_from_something_else_still_does(place, started):
    place.die()
    place.job.attempt(**started)  # and dies before its first checkpoint
    before = resume_point(place.log, place.directory)
    assert before is None or before.snapshot == "file:///sp"
    assert {row.state for row in list_transactions(place.job)} == {"orphaned"}
    done = settle(place.job, Action.COMMIT)
    assert (done.checkpoint, done.transactions) == (None, {})
    assert place.visible() == [1]
    assert resume_point(place.log, place.directory) == before


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("turned", ["afresh", "to a savepoint"])
def test_what_settling_rolls_back_is_given_up(place, action, turned):
    """The driver that turned the job back had died before it could say so."""
    place.die()
    if turned == "afresh":
        place.directory.renew()
    else:
        place.job.attempt(snapshot="file:///sp")
    before = resume_point(place.log, place.directory)
    settle(place.job, action)
    assert place.staged() == []
    assert resume_point(place.log, place.directory) == before
    given_up = Snapshot(place.promising, place.storage, place.log.uncommitted(place.promising))
    with pytest.raises(ConfigurationError, match="records would be lost"):
        require_kept_output(place.directory, given_up)


def test_nothing_to_settle(place):
    place.record()
    place.job.checkpoint(STATE)
    assert list_transactions(place.job) == []
    assert settle(place.job, Action.COMMIT).transactions == {}


def test_settling_twice(place):
    place.die()
    settle(place.job, Action.COMMIT)
    assert settle(place.job, Action.ABORT).checkpoint is None
    assert place.visible() == [1, 2]


def test_a_record_of_the_commit_that_was_lost(place):
    place.die()
    committer = place.sinks["out"].committer(place.context(1)("out"))
    committer.commit(place.promising.transactions["out"])
    (row, _) = list_transactions(place.job)
    assert row.problem == "already published, but not recorded"
    settle(place.job, Action.COMMIT)
    assert place.visible() == [1, 2]


def test_a_file_that_its_reader_has_taken(place):
    place.die()
    committer = place.sinks["out"].committer(place.context(1)("out"))
    committer.commit(place.promising.transactions["out"])
    next(place.out.glob("*-0000000002-*.json")).unlink()
    (row, _) = list_transactions(place.job)
    assert row.problem.startswith("already published and removed by its reader")
    settle(place.job, Action.COMMIT)
    assert list_transactions(place.job) == []
    place.start_again()
    assert place.visible() == [1]


def test_a_sink_that_has_committed_is_not_asked_again(place, tmp_path):
    place.sinks["ledger"] = Ledger(tmp_path / "ledger")
    place.die()
    broken = {"ledger": Ledger(tmp_path / "ledger", broken=True)}
    with pytest.raises(SinkError, match="the ledger is closed"):
        settle(place.job, Action.COMMIT, broken)
    assert place.visible() == [1, 2]
    promised = [r for r in list_transactions(place.job) if r.state is TransactionState.PROMISED]
    assert {row.sink for row in promised} == {"ledger"}
    done = settle(place.job, Action.COMMIT, {"ledger": Ledger(tmp_path / "ledger")})
    assert done.transactions == {"ledger": 1}
    assert list_transactions(place.job) == []


def test_output_that_was_handed_over_can_only_be_rolled_back(place):
    place.die()
    taker = CommitterContext(
        "other", "id", "out", 1, job_directory="file:///jobs/other", take_over=True
    )
    owned = CommitterContext(
        "likes", place.job.info.job_id, "out", 1, job_directory=place.directory.storage.uri
    )
    place.sinks["out"].acquire_target(owned)
    with pytest.raises(ConfigurationError, match="turnback transactions commit likes"):
        place.sinks["out"].acquire_target(taker)
    hidden = place.out / ".turnback" / "likes"
    hidden.rename(place.out / "aside")  # as if the job had still been running
    place.sinks["out"].acquire_target(taker)
    (place.out / "aside").rename(hidden)
    with pytest.raises(SinkError, match="belongs to job 'other'"):
        settle(place.job, Action.COMMIT)
    settle(place.job, Action.ABORT)
    assert place.visible() == [1]
    assert place.staged() == []


def test_a_file_that_somebody_has_removed(place):
    place.die()
    (row, _) = list_transactions(place.job)
    Path(row.path).unlink()
    (row, _) = list_transactions(place.job)
    assert "neither" in row.problem
    with pytest.raises(
        SinkError, match=r"rows of epoch 2 are lost.*run the command again, or start the job"
    ):
        settle(place.job, Action.COMMIT)
    assert place.log.committed() < place.promising.number
    settle(place.job, Action.ABORT)
    place.start_again()
