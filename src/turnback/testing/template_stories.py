"""What happens to sinks on the write-ahead and the idempotent template; see `stories`."""

from __future__ import annotations

from turnback.sinks.write_ahead import WriteAheadSink
from turnback.testing.trial import Promise, Story, Trial, let_fail
from turnback.types.columns import Batch

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


def _asked_before(sink: WriteAheadSink) -> None:
    """Let a driver have asked before anything was published; what it asks later is answered."""
    answers, now = [0], sink.published
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
    late.write(Batch(trial.type, [older]))
    late.prepare()
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


WRITE_AHEAD: dict[Promise, Story] = {
    Promise.WHOLE: _whole,
    Promise.PUBLISHED_ONCE: _published_once,
}
IDEMPOTENT: dict[Promise, Story] = {Promise.DURABLE: _durable, Promise.REPLAYED: _written_again}
WITH_UPDATE: dict[Promise, Story] = {
    Promise.NEWER_STAYS: _newer_stays,
    Promise.LAST_STAYS: _last_stays,
    Promise.TURNED_BACK: _overwritten_again,
}
