"""What happens to sinks on the write-ahead and the idempotent template; see `stories`."""

from __future__ import annotations

from turnback.sinks.write_ahead import WriteAheadSink
from turnback.testing.trial import Promise, Story, Trial, let_fail
from turnback.values.columns import Batch

# -- for sinks on the write-ahead template


def _whole(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    transactions = trial.prepared(1, 1, a) + trial.prepared(1, 1, b, partition=1)
    path, data = max(trial.staged().items())
    path.write_bytes(data[:-1])
    let_fail(lambda: driver.commit(transactions))
    trial.expect(Promise.WHOLE, [], "publishing that failed in the middle of an epoch")
    path.write_bytes(data)
    driver.commit(transactions)
    trial.expect(Promise.WHOLE, [a, b], "publishing again, after it failed in the middle")


def _published_once(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    transactions = trial.prepared(1, 1, a)
    staged = trial.staged()
    driver = trial.driver(2)
    driver.recover(transactions)
    # The first driver had asked the target and read the files before it was paused.
    for path, data in staged.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    zombie = trial.driver(1, change=_asked_before)
    let_fail(lambda: zombie.commit(transactions))
    trial.expect(Promise.PUBLISHED_ONCE, [a], "two drivers published the same epoch")
    late = trial.prepared(1, 2, b)
    driver.commit(trial.prepared(2, 2, b))
    second = trial.driver(1, change=_asked_before)
    let_fail(lambda: second.commit(late))
    trial.expect(Promise.PUBLISHED_ONCE, [a, b], "the older of two drivers published last")


def _moved(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    driver = trial.driver(1)
    promised = trial.prepared(1, 1, a)
    copied = trial.copied_job()
    driver.commit(promised)
    _go_on_elsewhere(copied)
    driver = copied.started(2, promised)
    trial.expect(
        Promise.MOVED, [a], "a copy of the job went on that had the same output to publish"
    )
    promised = copied.prepared(2, 2, b)
    driver.commit(promised)
    # Killed before that was recorded, so the next driver gets the same output.
    moved = copied.moved_job()
    _go_on_elsewhere(moved)
    driver = moved.started(3, promised)
    driver.commit(moved.prepared(3, 3, c))
    trial.expect(Promise.MOVED, [a, b, c], "the job went on after its directory was moved")


def _go_on_elsewhere(trial: Trial) -> None:
    """The job is in another place than it was, so its target is handed over if it has an owner."""
    if trial.has_claim:
        trial.take_over()


def _asked_before(sink: WriteAheadSink) -> None:
    """Let a driver have asked before anything was published; what it asks later is answered."""
    answers = [0]
    now = sink.published
    vars(sink)["published"] = lambda ctx: answers.pop() if answers else now(ctx)


# -- for idempotent sinks


def _durable(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    trial.prepared(1, 1, a, b)
    trial.expect(Promise.DURABLE, [a, b], "the end of the epoch")


def _written_again(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    trial.driver(1)
    trial.killed(1, 1, a)
    for _ in range(2):
        trial.prepared(1, 1, a, b)
    trial.driver(2).recover([])
    trial.prepared(2, 1, a, b)
    trial.prepared(2, 2, c)
    trial.expect(Promise.REPLAYED, [a, b, c], "an epoch was written by several attempts")


def _newer_stays(trial: Trial) -> None:
    assert trial.update is not None
    older, newer = trial.update
    trial.driver(1)
    late = trial.written(1, 9)
    trial.driver(2)
    trial.prepared(2, 8, newer)
    let_fail(lambda: late.write(Batch(trial.type, [older])))  # a target may also refuse it
    let_fail(late.prepare)
    trial.expect(Promise.NEWER_STAYS, [newer], "a late write by a task of an older attempt")


def _last_stays(trial: Trial) -> None:
    assert trial.update is not None
    older, newer = trial.update
    trial.driver(1)
    trial.prepared(1, 1, older, newer)
    trial.expect(Promise.LAST_STAYS, [newer], "two values of a key in one epoch")


def _overwritten_again(trial: Trial) -> None:
    assert trial.update is not None
    older, newer = trial.update
    trial.driver(1)
    trial.prepared(1, 9, newer)
    trial.driver(2)
    trial.prepared(2, 3, older)
    trial.expect(Promise.TURNED_BACK, [older], "a start from an older savepoint")


def _written_by_another_job(trial: Trial) -> None:
    assert trial.update is not None
    older, newer = trial.update
    trial.driver(5)
    trial.prepared(5, 9, older)
    other = trial.other_job().elsewhere()
    other.driver(1)
    other.prepared(1, 1, newer)
    other.expect(
        Promise.OTHER_JOBS, [newer], "a write of another job, which counts attempts by itself"
    )


def _written_by_a_copy(trial: Trial) -> None:
    assert trial.update is not None
    older, newer = trial.update
    trial.driver(1)
    copied = trial.copied_job().elsewhere()
    trial.driver(5)
    trial.prepared(5, 9, older)
    copied.driver(2)
    copied.prepared(2, 1, newer)
    copied.expect(Promise.COPIED, [newer], "a write of a copy of the job, in an attempt of its own")


def _written_by_former_owner(trial: Trial) -> None:
    assert trial.update is not None
    older, newer = trial.update
    trial.driver(5)
    trial.prepared(5, 9, older)
    late = trial.written(5, 10)
    other = trial.other_job()
    other.take_over()
    other.driver(1)
    other.prepared(1, 1, newer)
    trial.expect(Promise.TAKEN_OVER, [newer], "a write of the job that took the target over")
    let_fail(lambda: late.write(Batch(trial.type, [older])))
    let_fail(late.prepare)
    let_fail(lambda: trial.prepared(5, 11, older))
    trial.expect(Promise.TAKEN_OVER, [newer], "late writes of the job that had the target before")


def _written_by_a_restored_job(trial: Trial) -> None:
    assert trial.update is not None
    older, newer = trial.update
    trial.driver(1)
    restore = trial.backup()
    trial.driver(2)
    trial.prepared(2, 9, older)
    restored = restore()
    restored.job.take(2, "another driver")
    try:
        restored.driver(2)
        restored.prepared(2, 3, newer)
    except Exception:  # noqa: BLE001 - refused, so the user knows
        return
    trial.expect(
        Promise.RESTORED, [newer], "a write of a job directory that was restored from a backup"
    )


WRITE_AHEAD: dict[Promise, Story] = {
    Promise.WHOLE: _whole,
    Promise.PUBLISHED_ONCE: _published_once,
    Promise.MOVED: _moved,
}
IDEMPOTENT: dict[Promise, Story] = {Promise.DURABLE: _durable, Promise.REPLAYED: _written_again}
WITH_UPDATE: dict[Promise, Story] = {
    Promise.NEWER_STAYS: _newer_stays,
    Promise.LAST_STAYS: _last_stays,
    Promise.TURNED_BACK: _overwritten_again,
    Promise.OTHER_JOBS: _written_by_another_job,
    Promise.COPIED: _written_by_a_copy,
}
UPDATE_WITH_CLAIM: dict[Promise, Story] = {
    Promise.TAKEN_OVER: _written_by_former_owner,
    Promise.RESTORED: _written_by_a_restored_job,
}
