"""A sink on trial: tasks and drivers that carry out the protocol, and what readers see."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from turnback.core.errors import ConfigurationError
from turnback.sinks.base import (
    ClosingCommitter,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
    directory_digest,
)
from turnback.spark.internals import pickle_by_value
from turnback.state.files import StorageRef
from turnback.types.columns import Batch
from turnback.types.typeinfo import TypeInfo


class Promise(StrEnum):
    """What a sink promises, in words."""

    PICKLED = "a sink can be sent to tasks"
    NO_SECRETS = "no password is in its description or repr()"
    OWNED = "a target belongs to one job"
    EMPTY = "an epoch without elements changes nothing"
    INVISIBLE = "nothing is visible before its checkpoint is complete"
    COMPLETE = "what was committed is visible, all of it and once"
    COMMITTED_AGAIN = "a commit that is repeated changes nothing"
    OTHER_PROCESS = "what one process prepared another can commit, after the first was killed"
    SEVERAL_EPOCHS = "several epochs can be committed at once, some of them already committed"
    PENDING = "a new attempt commits what the checkpoint holds"
    ROLLED_BACK = "what no checkpoint holds never becomes visible"
    ABORTED = "what was aborted never becomes visible, and aborting twice is fine"
    ONE_ATTEMPT = "of several attempts of a task one counts"
    LOUD = "a commit fails if what it should commit is lost"
    REPLAYED = "an epoch that is run again is visible once"
    FENCED = "a driver that was replaced changes nothing"
    TURNED_BACK = "a job that is turned back writes its epochs again"
    OTHERS = "transactions of other sinks are left alone"
    WHOLE = "an epoch is published as a whole, or not at all"
    PUBLISHED_ONCE = "a driver that was paused and replaced while it published changes nothing"
    DURABLE = "what a task has written is there when the epoch ends"
    NEWER_STAYS = "a late write of an old value does not replace a newer one"
    LAST_STAYS = "of several values of a key in one epoch the last stays"


class PromiseBrokenError(Exception):
    """A promise is broken; the message says what happened."""

    def __init__(self, promise: Promise, problem: str) -> None:
        super().__init__(problem)
        self.promise = promise


JOB, JOB_ID, UID = "conformance", "conformance-1", "sink"


@dataclass
class Trial:
    """One sink, its target and a job directory.

    Attributes:
        sink: As the user made it; tasks and drivers use copies, as other processes would.
        read: Reads what the target shows, given the sink.
        elements: At least four different ones.
        update: An older and a newer element of one key, if the user gave them.
    """

    sink: Sink
    read: Callable[[Any], Iterable[Any]]
    type: TypeInfo
    elements: Sequence[Any]
    directory: Path
    update: tuple[Any, Any] | None = None
    _open: list[ClosingCommitter] = field(default_factory=list)
    _task_attempts: int = 0

    @property
    def storage(self) -> StorageRef:
        return StorageRef(self.directory.as_uri())

    def copy(self) -> Sink:
        """The sink as another process gets it."""
        sink: Sink = pickle.loads(pickle_by_value(self.sink))
        return sink

    # -- tasks

    def writer_context(
        self, attempt: int, epoch: int, partition: int = 0, uid: str = UID
    ) -> WriterContext:
        self._task_attempts += 1
        return WriterContext(
            JOB,
            JOB_ID,
            uid,
            attempt,
            epoch,
            partition,
            self._task_attempts,
            self.type,
            self.storage,
            directory_digest(self.directory.as_uri()),
        )

    def written(self, attempt: int, epoch: int, *elements: Any, **where: Any) -> SinkWriter:
        """A task that has written elements, and has neither prepared nor aborted."""
        writer = self.copy().writer(self.writer_context(attempt, epoch, **where))
        for element in elements:
            writer.write(Batch(self.type, [element]))
        return writer

    def killed(self, attempt: int, epoch: int, *elements: Any, **where: Any) -> None:
        """A task that is killed when it has written; its connections end with its process."""
        self.written(attempt, epoch, *elements, **where)
        gc.collect()

    def prepared(self, attempt: int, epoch: int, *elements: Any, **where: Any) -> list[bytes]:
        """The transactions of a task that has ended; none or one."""
        transaction = self.written(attempt, epoch, *elements, **where).prepare()
        return [] if transaction is None else [transaction]

    # -- drivers

    def committer_context(self, attempt: int, uid: str = UID) -> CommitterContext:
        where = self.directory.as_uri()
        return CommitterContext(JOB, JOB_ID, uid, attempt, self.type, where, storage=self.storage)

    def driver(
        self, attempt: int, uid: str = UID, change: Callable[[Any], None] | None = None
    ) -> Committer:
        """The committer of a new attempt, which has claimed the target and settled nothing yet.

        Its sink can be changed, to make happen what is rare.
        """
        sink, ctx = self.copy(), self.committer_context(attempt, uid)
        if change is not None:
            change(sink)
        sink.check_claim(ctx)
        sink.claim(ctx)
        committer = sink.committer(ctx)
        if isinstance(committer, ClosingCommitter):
            self._open.append(committer)
        return committer

    def commit(self, attempt: int, epoch: int, *elements: Any) -> None:
        """Run and commit an epoch of one task."""
        self.driver(attempt).commit(self.prepared(attempt, epoch, *elements))

    def staged(self) -> dict[Path, bytes]:
        """The files in which tasks have staged elements."""
        paths = sorted(self.directory.glob("sinks/*/staged/**/*.arrow"))
        return {path: path.read_bytes() for path in paths}

    # -- readers

    def expect(self, promise: Promise, expected: Sequence[Any], after: str) -> None:
        """Raise `PromiseBrokenError` unless readers see these elements, in any order."""
        seen = [_comparable(element) for element in self.read(self.sink)]
        missing, more = [_comparable(element) for element in expected], list(seen)
        for element in list(missing):
            if element in more:
                more.remove(element)
                missing.remove(element)
        if missing or more:
            problems = [f"{missing!r} missing"] if missing else []
            problems += [f"{more!r} too much"] if more else []
            raise PromiseBrokenError(
                promise, f"after {after}, the target shows {seen!r}: {' and '.join(problems)}"
            )

    def close(self) -> None:
        """Let go of the target, as processes do when they end."""
        while self._open:
            self._open.pop().close()
        gc.collect(1)  # and what tasks have left open; all of it is young


Story = Callable[[Trial], None]


def let_fail(step: Callable[[], None]) -> None:
    """Do what may be refused, which is as good as doing nothing."""
    with suppress(Exception):
        step()


def _comparable(element: Any) -> Any:
    return tuple(map(_comparable, element)) if isinstance(element, list | tuple) else element


def check_elements(elements: Sequence[Any]) -> None:
    """Refuse elements that cannot tell what was written from what was not."""
    different = [e for i, e in enumerate(elements) if e not in elements[:i]]
    if len(different) < 4 or len(different) != len(elements):
        raise ConfigurationError(
            f"check_sink needs at least four elements, all different, got {len(different)} "
            f"different ones among {len(elements)}"
        )
