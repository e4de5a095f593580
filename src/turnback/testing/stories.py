"""What happens to sinks with transactions: every crash of the protocol, each as a short story.

A story raises `PromiseBrokenError` if readers see something else than they were promised. What the
sink itself raises counts as breaking the promise that the story is about.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from turnback.core.errors import ConfigurationError
from turnback.sinks.base import Committer, CommitterContext, Sink, WriterContext
from turnback.testing.elsewhere import ElsewhereError, call_elsewhere
from turnback.testing.trial import (
    JOB,
    UID,
    Promise,
    PromiseBrokenError,
    Story,
    Trial,
    let_fail,
)
from turnback.types.columns import Batch

# -- for all sinks


def _pickled(trial: Trial) -> None:
    trial.copy()


def _no_secrets(trial: Trial) -> None:
    described = {**trial.sink.describe(), "repr()": repr(trial.sink)}
    secrets = {
        name: value
        for name, value in vars(trial.sink).items()
        if any(word in name.lower() for word in ("password", "secret", "token", "credential"))
        and isinstance(value, str)
        and value
    }
    for name, secret in secrets.items():
        for where, text in described.items():
            if secret in text:
                raise PromiseBrokenError(
                    Promise.NO_SECRETS, f"the value of self.{name} is in {where!r}"
                )


def _owned(trial: Trial) -> None:
    trial.driver(1)
    other = CommitterContext(
        "other", "other-1", UID, 0, trial.type, (trial.directory / "other").as_uri()
    )
    for step in ("check_claim", "claim"):
        try:
            getattr(trial.copy(), step)(other)
        except ConfigurationError as error:
            if JOB not in str(error):
                raise PromiseBrokenError(
                    Promise.OWNED, f"{step} does not name the job that owns the target: {error}"
                ) from error
        else:
            raise PromiseBrokenError(
                Promise.OWNED, f"{step} has let a second job use the target of the first"
            )
    trial.driver(2)  # the owner goes on


def _empty(trial: Trial) -> None:
    driver = trial.driver(1)
    writer = trial.written(1, 1)
    writer.write(Batch(trial.type, []))
    transaction = writer.prepare()
    driver.commit([] if transaction is None else [transaction])
    trial.expect(Promise.EMPTY, [], "an epoch without elements")


# -- for sinks with transactions


def _invisible(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    writer = trial.written(1, 1, a, b)
    trial.expect(Promise.INVISIBLE, [], "writing")
    writer.prepare()
    trial.expect(Promise.INVISIBLE, [], "the end of the epoch, before the commit")


def _complete(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    driver = trial.driver(1)
    driver.commit(trial.prepared(1, 1, a, b) + trial.prepared(1, 1, c, partition=1))
    trial.expect(Promise.COMPLETE, [a, b, c], "the commit of two tasks")
    driver.commit(trial.prepared(1, 2, d))
    trial.expect(Promise.COMPLETE, [a, b, c, d], "the commit of a second epoch")


def _committed_again(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver, transactions = trial.driver(1), trial.prepared(1, 1, a, b)
    for _ in range(2):
        driver.commit(transactions)
    trial.expect(Promise.COMMITTED_AGAIN, [a, b], "the same commit twice")
    trial.driver(2).recover(transactions)
    trial.expect(
        Promise.COMMITTED_AGAIN,
        [a, b],
        "a kill between the commit and the record of it, and a new attempt",
    )


def _other_process(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    batch, sink = Batch(trial.type, [a, b]), trial.copy()
    transaction = _elsewhere("prepare", _prepare, sink, trial.writer_context(1, 1), batch.arrow)
    trial.expect(Promise.INVISIBLE, [], "the kill of the task that had prepared")
    if transaction is None:
        raise PromiseBrokenError(
            Promise.OTHER_PROCESS, "prepare() of a task that had written gave no transaction"
        )
    context = trial.committer_context(2)
    _elsewhere("commit", _recover, sink, context, [transaction])
    trial.expect(Promise.OTHER_PROCESS, [a, b], "the commit by a process that was killed then")
    trial.driver(3).recover([transaction])
    trial.expect(Promise.COMMITTED_AGAIN, [a, b], "the same commit by a third process")


def _elsewhere(what: str, function: Callable[..., object], *arguments: object) -> bytes | None:
    try:
        result = call_elsewhere(function, *arguments)
    except ElsewhereError as error:
        raise PromiseBrokenError(
            Promise.OTHER_PROCESS, f"{what} in another process failed: {error}"
        ) from error
    return result if isinstance(result, bytes) else None


def _prepare(sink: Sink, ctx: WriterContext, arrow: pa.RecordBatch) -> bytes | None:
    writer = sink.writer(ctx)
    writer.write(Batch(ctx.type, arrow))
    return writer.prepare()


def _recover(sink: Sink, ctx: CommitterContext, transactions: list[bytes]) -> None:
    sink.claim(ctx)
    sink.committer(ctx).recover(transactions)


def _several_epochs(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    driver = trial.driver(1)
    epochs = [trial.prepared(1, n, element) for n, element in enumerate((a, b, c), 1)]
    driver.commit(epochs[0])
    driver.commit([transaction for epoch in epochs for transaction in epoch])
    trial.expect(
        Promise.SEVERAL_EPOCHS, [a, b, c], "the commit of three epochs, the first for the 2nd time"
    )


def _pending(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    transactions = trial.prepared(1, 1, a)
    second = trial.driver(2)
    second.recover(transactions)
    trial.expect(Promise.PENDING, [a], "a kill before the commit, and a new attempt")
    second.commit(trial.prepared(2, 2, b))
    trial.expect(Promise.PENDING, [a, b], "the next epoch of the new attempt")


def _rolled_back(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    trial.driver(1)
    trial.killed(1, 1)
    trial.killed(1, 1, a, partition=1)
    lost = trial.prepared(1, 1, b, partition=2)
    second = trial.driver(2)
    second.recover([])
    trial.expect(Promise.ROLLED_BACK, [], "kills in all steps of an epoch, and a new attempt")
    second.commit(trial.prepared(2, 1, c))
    third = trial.driver(3)
    third.recover([])
    trial.expect(Promise.ROLLED_BACK, [c], "another attempt, with nothing to commit")
    with suppress(Exception):
        third.abort(lost)
    third.commit(trial.prepared(3, 2, d))
    trial.expect(Promise.ROLLED_BACK, [c, d], "an epoch of that attempt")


def _replayed(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    trial.driver(1)
    trial.prepared(1, 1, a, b)
    second = trial.driver(2)
    second.recover([])
    second.commit(trial.prepared(2, 1, a, b))
    trial.expect(Promise.REPLAYED, [a, b], "an epoch that no checkpoint held was run again")
    # Spark has lost output that others had read: the epoch is run again by the same attempt.
    trial.prepared(2, 2, c)
    second.discard_others([])
    second.commit(trial.prepared(2, 2, c))
    trial.expect(Promise.REPLAYED, [a, b, c], "an epoch was run twice by one attempt")


def _aborted(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    driver, writer = trial.driver(1), trial.written(1, 1, a)
    for _ in range(2):
        writer.abort()
    trial.written(1, 1, partition=1).abort()
    trial.expect(Promise.ABORTED, [], "a task that was aborted")
    transactions = trial.prepared(1, 1, b)
    for _ in range(2):
        driver.abort(transactions)
    trial.expect(Promise.ABORTED, [], "an epoch that was aborted")
    driver.commit(trial.prepared(1, 2, c))
    trial.expect(Promise.ABORTED, [c], "the epoch that followed")


def _one_attempt(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    waiting = trial.prepared(1, 1, a)
    trial.prepared(1, 2, b)
    winner = trial.prepared(1, 2, b)
    driver.discard_others(waiting + winner)
    driver.commit(waiting + winner)
    trial.expect(Promise.ONE_ATTEMPT, [a, b], "two attempts of a task, and the commit of one")
    trial.driver(2).recover([])
    trial.expect(Promise.ONE_ATTEMPT, [a, b], "that, and a new attempt of the job")


def _loud(trial: Trial) -> None:
    a, *_ = trial.elements
    driver, transactions = trial.driver(1), trial.prepared(1, 1, a)
    driver.abort(transactions)
    try:
        trial.driver(2).recover(transactions)
    except Exception:  # noqa: BLE001 - that is the promise
        trial.expect(Promise.ABORTED, [], "the commit of an aborted epoch, which failed")
    else:
        trial.expect(Promise.LOUD, [a], "a commit that has returned, of a transaction that is gone")


def _fenced(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    zombie, late = trial.driver(1), trial.prepared(1, 5, a)
    driver = trial.driver(2)
    driver.recover([])
    driver.commit(trial.prepared(2, 5, b))
    let_fail(lambda: zombie.commit(late))
    trial.expect(Promise.FENCED, [b], "the late commit of a driver that was replaced")
    newer = trial.prepared(2, 6, c)
    for step in _late_steps(zombie):
        let_fail(step)
    driver.commit(newer)
    trial.expect(
        Promise.FENCED, [b, c], "the late recovery and cleaning of a driver that was replaced"
    )


def _late_steps(zombie: Committer) -> list[Callable[[], None]]:
    return [lambda: zombie.discard_others([]), lambda: zombie.recover([])]


def _turned_back(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    for epoch, element in enumerate((a, b, c), 1):
        trial.commit(1, epoch, element)
    driver = trial.driver(2)
    driver.recover([])
    driver.commit(trial.prepared(2, 2, d))
    trial.expect(
        Promise.TURNED_BACK,
        [a, b, c, d],
        "epochs 1 to 3, a start from the savepoint of epoch 1, and epoch 2 again",
    )


def _others(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    trial.prepared(1, 1, b)
    driver = trial.driver(2)
    neighbour, theirs = trial.driver(2, "other"), trial.prepared(2, 1, a, uid="other")
    driver.recover([])
    driver.discard_others([])
    neighbour.commit(theirs)
    trial.expect(Promise.OTHERS, [a], "the recovery of one sink, and the commit of another")


FOR_ALL: dict[Promise, Story] = {
    Promise.PICKLED: _pickled,
    Promise.NO_SECRETS: _no_secrets,
    Promise.EMPTY: _empty,
}
WITH_CLAIM: dict[Promise, Story] = {Promise.OWNED: _owned}
TRANSACTIONAL: dict[Promise, Story] = {
    Promise.INVISIBLE: _invisible,
    Promise.COMPLETE: _complete,
    Promise.COMMITTED_AGAIN: _committed_again,
    Promise.SEVERAL_EPOCHS: _several_epochs,
    Promise.PENDING: _pending,
    Promise.ROLLED_BACK: _rolled_back,
    Promise.ABORTED: _aborted,
    Promise.ONE_ATTEMPT: _one_attempt,
    Promise.LOUD: _loud,
    Promise.REPLAYED: _replayed,
    Promise.FENCED: _fenced,
    Promise.TURNED_BACK: _turned_back,
    Promise.OTHERS: _others,
    Promise.OTHER_PROCESS: _other_process,
}
