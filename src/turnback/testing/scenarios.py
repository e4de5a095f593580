"""What happens to sinks with transactions: every crash of the protocol, each as a short story.

A story raises `PromiseBrokenError` if readers see something else than they were promised. What the
sink itself raises counts as breaking the promise that the story is about.
"""

from __future__ import annotations

import builtins
import io
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import Committer, CommitterContext, Sink, WriterContext
from turnback.spark.pickling import pickle_by_value
from turnback.testing.protocol_run import (
    JOB,
    Promise,
    Story,
    Trial,
    comparable,
    discard,
    let_fail,
)
from turnback.values.columns import Batch

_PROGRAM = """
import os, pickle, signal, sys
call, answer = sys.argv[1:]
with open(call, "rb") as file:
    sys.path[:] = pickle.load(file)
    function, arguments = pickle.load(file)
try:
    result = (True, function(*arguments))
except BaseException as error:
    result = (False, f"{type(error).__name__}: {error}")
with open(answer, "wb") as file:
    file.write(pickle.dumps(result))
os.kill(os.getpid(), signal.SIGKILL)
"""
_TIMEOUT_S = 120


class ElsewhereError(Exception):
    """What was called in the other process has raised."""


def call_elsewhere(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new Python process, which is killed as soon as it has the result.

    Raises:
        ElsewhereError: The function raised, or the process died before it had a result.
    """
    with tempfile.TemporaryDirectory() as directory:
        call = Path(directory, "call")
        answer = Path(directory, "answer")
        call.write_bytes(pickle.dumps(sys.path) + pickle_by_value((function, arguments)))
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(call), str(answer)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode != -signal.SIGKILL or not answer.exists():
            raise ElsewhereError(f"the process ended by itself: {done.stderr.strip()[-2000:]}")
        succeeded, result = pickle.loads(answer.read_bytes())
    if not succeeded:
        raise ElsewhereError(result)
    return result


_SYNCED_BY_ITSELF = getattr(os, "O_SYNC", 0) | getattr(os, "O_DSYNC", 0)


@dataclass
class _Written:
    """A file that was opened for writing, held open so that it can be found by whatever name."""

    name: str
    held: int
    synced: tuple[int, int] | None = None

    def state(self) -> tuple[int, int]:
        found = os.fstat(self.held)
        return found.st_size, found.st_mtime_ns

    def is_lost(self) -> bool:
        """Whether it is still there, and was changed since it was last synced."""
        found = os.fstat(self.held)
        return found.st_nlink > 0 and found.st_size > 0 and self.synced != self.state()


class _Files:
    """Files that were opened; its methods take what a call has returned, and its arguments."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], _Written] = {}

    def opened(self, file: Any, name: object, mode: str = "r", *_: Any, **__: Any) -> None:
        if set(mode) & set("wax+"):
            self._hold(name, file.fileno())

    def descriptor_opened(self, descriptor: int, name: Any, flags: int, *_: Any, **__: Any) -> None:
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if writes and not flags & _SYNCED_BY_ITSELF:
            self._hold(name, descriptor)

    def _hold(self, name: object, descriptor: int) -> None:
        found = os.fstat(descriptor)
        inode = (found.st_dev, found.st_ino)
        if stat.S_ISREG(found.st_mode) and inode not in self._files:
            self._files[inode] = _Written(str(name), os.dup(descriptor))

    def synced(self, _: None, file: Any) -> None:
        found = os.fstat(file if isinstance(file, int) else file.fileno())
        written = self._files.get((found.st_dev, found.st_ino))
        if written is not None:
            written.synced = written.state()

    def lost(self) -> list[str]:
        return sorted(written.name for written in self._files.values() if written.is_lost())

    def close(self) -> None:
        for written in self._files.values():
            os.close(written.held)


@contextmanager
def unsynced_files() -> Iterator[list[str]]:
    """Watch this process; the list has the names of such files when the block has ended."""
    files = _Files()
    unsynced: list[str] = []
    with ExitStack() as patches:
        _watch(patches, builtins, "open", files.opened)
        _watch(patches, io, "open", files.opened)
        _watch(patches, os, "open", files.descriptor_opened)
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                _watch(patches, os, name, files.synced)
        try:
            yield unsynced
        finally:
            unsynced += files.lost()
            files.close()


def _watch(patches: ExitStack, owner: Any, name: str, seen: Callable[..., None]) -> None:
    original = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        seen(result, *arguments, **named)
        return result

    patches.callback(setattr, owner, name, original)
    setattr(owner, name, watched)


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
                raise trial.broken(f"the value of self.{name} is in {where!r}")


def _owned(trial: Trial) -> None:
    trial.driver(1)
    other = trial.other_job().committer_context(0)
    for step in ("check_target", "acquire_target"):
        try:
            getattr(trial.copy(), step)(other)
        except ConfigurationError as error:
            if JOB not in str(error):
                raise trial.broken(
                    f"{step} does not name the job that owns the target: {error}"
                ) from error
        else:
            raise trial.broken(f"{step} has let a second job use the target of the first")
    trial.driver(2)  # the owner goes on


def _empty(trial: Trial) -> None:
    driver = trial.driver(1)
    writer = trial.written(1, 1)
    writer.write(Batch(trial.type, []))
    transaction = writer.prepare()
    driver.commit([] if transaction is None else [transaction])
    trial.expect([], "an epoch without elements")


# -- for sinks with transactions


def _invisible(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    writer = trial.written(1, 1, a, b)
    trial.expect([], "writing")
    writer.prepare()
    trial.expect([], "the end of the epoch, before the commit")


def _complete(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    driver = trial.driver(1)
    driver.commit(trial.prepared(1, 1, a, b) + trial.prepared(1, 1, c, partition=1))
    trial.expect([a, b, c], "the commit of two tasks")
    driver.commit(trial.prepared(1, 2, d))
    trial.expect([a, b, c, d], "the commit of a second epoch")


def _committed_again(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    transactions = trial.prepared(1, 1, a, b)
    for _ in range(2):
        driver.commit(transactions)
    trial.expect([a, b], "the same commit twice")
    trial.driver(2).recover(transactions)
    trial.expect([a, b], "a kill between the commit and the record of it, and a new attempt")


def _other_process(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    batch = Batch(trial.type, [a, b])
    sink = trial.copy()
    transaction = _elsewhere(
        trial, "prepare", _prepare, sink, trial.writer_context(1, 1), batch.arrow
    )
    trial.expect([], "the kill of the task that had prepared", Promise.INVISIBLE)
    if transaction is None:
        raise trial.broken("prepare() of a task that had written returned no transaction")
    context = trial.committer_context(2)
    _elsewhere(trial, "commit", _recover, sink, context, [transaction])
    trial.expect([a, b], "the commit by a process that was killed then")
    trial.driver(3).recover([transaction])
    trial.expect([a, b], "the same commit by a third process", Promise.COMMITTED_AGAIN)


def _elsewhere(
    trial: Trial, what: str, function: Callable[..., object], *arguments: object
) -> bytes | None:
    try:
        result = call_elsewhere(function, *arguments)
    except ElsewhereError as error:
        raise trial.broken(f"{what} in another process failed: {error}") from error
    return result if isinstance(result, bytes) else None


def _prepare(sink: Sink, ctx: WriterContext, arrow: pa.RecordBatch) -> bytes | None:
    writer = sink.writer(ctx)
    writer.write(Batch(ctx.type, arrow))
    return writer.prepare()


def _recover(sink: Sink, ctx: CommitterContext, transactions: list[bytes]) -> None:
    sink.acquire_target(ctx)
    committer = sink.committer(ctx)
    committer.commit(transactions)
    committer.recover(())


def _several_epochs(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    driver = trial.driver(1)
    epochs = [trial.prepared(1, n, element) for n, element in enumerate((a, b, c), 1)]
    driver.commit(epochs[0])
    driver.commit([transaction for epoch in epochs for transaction in epoch])
    trial.expect([a, b, c], "the commit of three epochs, the first for the 2nd time")


def _pending(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    transactions = trial.prepared(1, 1, a)
    second = trial.started(2, transactions)
    trial.expect([a], "a kill before the commit, and a new attempt")
    second.commit(trial.prepared(2, 2, b))
    trial.expect([a, b], "the next epoch of the new attempt")


def _rolled_back(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    trial.driver(1)
    trial.killed(1, 1)
    trial.killed(1, 1, a, partition=1)
    lost = trial.prepared(1, 1, b, partition=2)
    second = trial.driver(2)
    second.recover([])
    trial.expect([], "kills in all steps of an epoch, and a new attempt")
    second.commit(trial.prepared(2, 1, c))
    third = trial.driver(3)
    third.recover([])
    trial.expect([c], "another attempt, with nothing to commit")
    with suppress(Exception):
        third.abort(lost)
    third.commit(trial.prepared(3, 2, d))
    trial.expect([c, d], "an epoch of that attempt")


def _replayed(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    trial.driver(1)
    trial.prepared(1, 1, a, b)
    second = trial.driver(2)
    second.recover([])
    second.commit(trial.prepared(2, 1, a, b))
    trial.expect([a, b], "an epoch that no checkpoint held was run again")
    # Spark has lost output that others had read: the epoch is run again by the same attempt.
    trial.prepared(2, 2, c)
    discard(second)
    second.commit(trial.prepared(2, 2, c))
    trial.expect([a, b, c], "an epoch was run twice by one attempt")


def _aborted(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    driver = trial.driver(1)
    writer = trial.written(1, 1, a)
    for _ in range(2):
        writer.abort()
    trial.written(1, 1, partition=1).abort()
    trial.expect([], "a task that was aborted")
    transactions = trial.prepared(1, 1, b)
    for _ in range(2):
        driver.abort(transactions)
    trial.expect([], "an epoch that was aborted")
    driver.commit(trial.prepared(1, 2, c))
    trial.expect([c], "the epoch that followed")


def _one_attempt(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    waiting = trial.prepared(1, 1, a)
    trial.prepared(1, 2, b)
    winner = trial.prepared(1, 2, b)
    discard(driver, waiting + winner)
    driver.commit(waiting + winner)
    trial.expect([a, b], "two attempts of a task, and the commit of one")
    trial.driver(2).recover([])
    trial.expect([a, b], "that, and a new attempt of the job")


def _loud(trial: Trial) -> None:
    a, *_ = trial.elements
    driver = trial.driver(1)
    transactions = trial.prepared(1, 1, a)
    driver.abort(transactions)
    try:
        trial.driver(2).recover(transactions)
    except Exception:  # noqa: BLE001 - that is the promise
        trial.expect([], "the commit of an aborted epoch, which failed", Promise.ABORTED)
    else:
        trial.expect([a], "a commit that has returned, of a transaction that is gone")


def _fenced(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    zombie = trial.driver(1)
    late = trial.prepared(1, 5, a)
    driver = trial.driver(2)
    driver.recover([])
    driver.commit(trial.prepared(2, 5, b))
    let_fail(lambda: zombie.commit(late))
    trial.expect([b], "the late commit of a driver that was replaced")
    newer = trial.prepared(2, 6, c)
    for step in _late_steps(zombie):
        let_fail(step)
    driver.commit(newer)
    trial.expect([b, c], "the late recovery and cleaning of a driver that was replaced")


def _late_steps(zombie: Committer) -> list[Callable[[], None]]:
    return [lambda: discard(zombie), lambda: zombie.recover([])]


def _turned_back(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    for epoch, element in enumerate((a, b, c), 1):
        trial.commit(1, epoch, element)
    driver = trial.driver(2)
    driver.recover([])
    driver.commit(trial.prepared(2, 2, d))
    trial.expect(
        [a, b, c, d], "epochs 1 to 3, a start from the savepoint of epoch 1, and epoch 2 again"
    )


def _others(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    trial.prepared(1, 1, b)
    driver = trial.driver(2)
    neighbour = trial.driver(2, "other")
    theirs = trial.prepared(2, 1, a, uid="other")
    driver.recover([])
    discard(driver)
    neighbour.commit(theirs)
    trial.expect([a], "the recovery of one sink, and the commit of another")


def _other_jobs(trial: Trial) -> None:
    _beside(trial, trial.other_job().elsewhere(), "another job")


def _copied(trial: Trial) -> None:
    trial.driver(1)
    _beside(trial, trial.copied_job().elsewhere(), "a copy of the job")


def _beside(trial: Trial, other: Trial, who: str) -> None:
    """Let a job that is further in its attempts run beside one with promised output."""
    a, b, c, d, *_ = trial.elements
    driver = trial.driver(1)
    promised = trial.prepared(1, 1, a)
    neighbour = other.started(2)
    discard(neighbour)
    theirs = other.prepared(2, 9, b)
    neighbour.commit(theirs)
    driver.commit(promised)
    waiting = other.prepared(2, 10, c)
    third = trial.started(3)
    discard(third)
    neighbour.commit(waiting)
    driver = trial.driver(3)
    driver.commit(trial.prepared(3, 2, d))
    after = f"{who} had started, cleaned up and committed beside this one"
    if other.sink is trial.sink:
        trial.expect([a, b, c, d], after)
        return
    trial.expect([a, d], after)
    other.expect([b, c], f"that, in the target of {who}")


def _late_copy(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    driver = trial.driver(1)
    slow = trial.written(1, 1, b)
    late = trial.written(1, 1, c, partition=1)
    winners = trial.prepared(1, 1, a) + trial.prepared(1, 1, d, partition=1)
    let_fail(slow.prepare)
    let_fail(late.abort)
    # Spark has started two more after the winners ended, and kills them before they end.
    for end in ("abort", "prepare"):
        another = trial.written(1, 1, b)
        let_fail(getattr(another, end))
    driver.commit(winners)
    trial.expect([a, d], "copies of two tasks had prepared and aborted after those that count")
    trial.started(2)
    trial.expect([a, d], "that, and a new attempt of the job")


def _kept(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    transactions = trial.prepared(1, 1, a)
    driver.commit(transactions)
    # The reply was lost: the driver does not know that it is committed.
    let_fail(lambda: driver.abort(transactions))
    trial.expect([a], "the abort of an epoch that was committed")
    second = trial.started(2, transactions)
    second.commit(trial.prepared(2, 2, b))
    trial.expect([a, b], "that, and a new attempt that commits it again")


def _restored(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    trial.commit(1, 1, a)
    restore = trial.backup()
    second = trial.started(2)
    second.commit(trial.prepared(2, 2, b))
    second.commit(trial.prepared(2, 3, c))
    trial.close()
    restored = restore()
    restored.job.take(2, "another driver")
    try:
        restored.started(2).commit(restored.prepared(2, 2, d))
    except Exception:  # noqa: BLE001 - refused, so the user knows
        return
    if d not in _seen(trial):
        raise trial.broken(
            f"attempt 2 of a restored job directory has committed {d!r}, and the target shows "
            f"{_seen(trial)!r}: it was taken for what another attempt 2 had committed",
        )


def _seen(trial: Trial) -> list[object]:
    return [comparable(element) for element in trial.read(trial.sink)]


def _synced(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    with unsynced_files() as left:
        transactions = trial.prepared(1, 1, a, b)
    _require_synced(trial, "prepare()", left)
    with unsynced_files() as left:
        driver.commit(transactions)
    _require_synced(trial, "commit()", left)


def _require_synced(trial: Trial, step: str, left: list[str]) -> None:
    if left:
        raise trial.broken(f"{step} has returned, and {', '.join(left)} is not synced (os.fsync)")


def _found(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    trial.driver(1)
    trial.prepared(1, 1, a)
    if not list(trial.copy().list_orphans(trial.committer_context(2))):
        raise trial.broken("after a task had prepared and its driver was killed, it finds nothing")
    driver = trial.started(2)
    driver.commit(trial.prepared(2, 1, b))
    trial.prepared(2, 2, c)
    trial.started(3)
    left = [info.what for info in trial.copy().list_orphans(trial.committer_context(3))]
    if left:
        raise trial.broken(f"after two new attempts, it still finds {left!r}")
    trial.expect([b], "two new attempts")


# -- for sinks that record the owner of their target


def _taken_over(trial: Trial) -> None:
    a, b, c, d, *_ = trial.elements
    former = trial.driver(1)
    former.commit(trial.prepared(1, 1, a))
    other = trial.other_job()
    other.take_over()
    driver = other.started(1)
    let_fail(lambda: former.commit(trial.prepared(1, 2, b)))
    trial.expect([a], "the commit of a job whose target was taken over")
    waiting = other.prepared(1, 1, c)
    for step in _late_steps(former):
        let_fail(step)
    driver.commit(waiting)
    driver.commit(other.prepared(1, 2, d))
    trial.expect([a, c, d], "that, and commits of the job that took it over")


def _promised(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    transactions = trial.prepared(1, 1, a)
    trial.job.promised = len(transactions)
    other = trial.other_job()
    outcome = "was accepted"
    try:
        other.take_over()
    except (ConfigurationError, SinkError):
        outcome = "was refused"
    let_fail(lambda: driver.commit(transactions))
    trial.expect([a], f"a take-over that {outcome}, and the owner's commit")
    trial.job.promised = 0
    other.take_over()
    other.started(1).commit(other.prepared(1, 1, b))
    trial.expect([a, b], "a take-over without in-doubt output")


FOR_ALL: dict[Promise, Story] = {
    Promise.PICKLED: _pickled,
    Promise.NO_SECRETS: _no_secrets,
    Promise.EMPTY: _empty,
    Promise.SYNCED: _synced,
}
WITH_CLAIM: dict[Promise, Story] = {Promise.OWNED: _owned}
TRANSACTIONAL_WITH_CLAIM: dict[Promise, Story] = {
    Promise.TAKEN_OVER: _taken_over,
    Promise.PROMISED: _promised,
}
WITH_LIST: dict[Promise, Story] = {Promise.FOUND: _found}
TRANSACTIONAL: dict[Promise, Story] = {
    Promise.INVISIBLE: _invisible,
    Promise.COMPLETE: _complete,
    Promise.COMMITTED_AGAIN: _committed_again,
    Promise.SEVERAL_EPOCHS: _several_epochs,
    Promise.PENDING: _pending,
    Promise.ROLLED_BACK: _rolled_back,
    Promise.ABORTED: _aborted,
    Promise.KEPT: _kept,
    Promise.ONE_ATTEMPT: _one_attempt,
    Promise.LATE_COPY: _late_copy,
    Promise.LOUD: _loud,
    Promise.REPLAYED: _replayed,
    Promise.FENCED: _fenced,
    Promise.TURNED_BACK: _turned_back,
    Promise.OTHERS: _others,
    Promise.OTHER_JOBS: _other_jobs,
    Promise.COPIED: _copied,
    Promise.RESTORED: _restored,
    Promise.OTHER_PROCESS: _other_process,
}
