"""A sink on trial: tasks and drivers that carry out the protocol, and what readers see."""

from __future__ import annotations

import gc
import pickle
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from turnback.errors import ConfigurationError
from turnback.sinks.base import (
    ClosingCommitter,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
    directory_digest,
)
from turnback.spark.pickling import pickle_by_value
from turnback.state.files import StorageRef
from turnback.storage.locations import canonical_directory
from turnback.values.columns import Batch
from turnback.values.typeinfo import TypeInfo


class Promise(StrEnum):
    """What a sink promises, in words."""

    PICKLED = "a sink can be sent to tasks"
    NO_SECRETS = "its description and repr() contain no password"
    OWNED = "a target belongs to one job"
    TAKEN_OVER = "a job whose target was taken over can no longer change it"
    PROMISED = "a target is not taken over while its owner has in-doubt output"
    EMPTY = "an epoch without elements changes nothing"
    INVISIBLE = "nothing is visible before its checkpoint is complete"
    COMPLETE = "committed output is visible, completely and once"
    COMMITTED_AGAIN = "repeating a commit changes nothing"
    OTHER_PROCESS = "one process can commit what another prepared before it was killed"
    SEVERAL_EPOCHS = "several epochs can be committed together, even if some already are"
    PENDING = "a new attempt commits the output in the checkpoint"
    ROLLED_BACK = "output in no checkpoint never becomes visible"
    ABORTED = "aborted output never becomes visible, and aborting twice is harmless"
    KEPT = "committed output stays, even if it is aborted afterwards"
    ONE_ATTEMPT = "of several attempts of a task, only one counts"
    LATE_COPY = "a copy of a task that continues does not change the one that counts"
    SYNCED = "a task or commit syncs the files it has written before it returns"
    FOUND = "orphaned output is listed, and gone after the next start"
    LOUD = "a commit fails if its output is lost"
    REPLAYED = "an epoch that is repeated is visible once"
    FENCED = "a replaced driver changes nothing"
    TURNED_BACK = "a job that is reset to an earlier snapshot writes its epochs again"
    OTHERS = "transactions of other sinks stay untouched"
    OTHER_JOBS = "other jobs stay untouched, regardless of their attempts and epochs"
    COPIED = "a copy of the job and the original do not affect each other"
    MOVED = "a moved or copied job does not publish output again"
    RESTORED = "a job directory restored from a backup loses no output silently"
    WHOLE = "an epoch is published completely or not at all"
    PUBLISHED_ONCE = "a driver that was paused and replaced while publishing changes nothing"
    DURABLE = "the output of a task is visible when the epoch ends"
    NEWER_STAYS = "a late write of an old value does not replace a newer one"
    LAST_STAYS = "of several values of a key in one epoch, the last one stays"


class PromiseBrokenError(Exception):
    """A promise is broken; the message says what happened."""

    def __init__(self, promise: Promise, problem: str) -> None:
        super().__init__(problem)
        self.promise = promise


JOB = "conformance"
JOB_ID = "conformance-1"
UID = "sink"


@dataclass
class PlayedJob:
    """A job on trial: what identifies it, and what its directory knows.

    Attributes:
        nonces: Which driver had each attempt, as the checkpoint log in the directory tells.
        promised: How many transactions its newest checkpoint has promised.
    """

    name: str
    job_id: str
    directory: Path
    nonces: dict[int, str] = field(default_factory=dict)
    promised: int = 0

    @property
    def uri(self) -> str:
        return self.directory.as_uri()

    def take(self, attempt: int, nonce: str | None = None) -> str:
        """Make sure that an attempt has begun; returns its nonce."""
        return self.nonces.setdefault(attempt, nonce or f"{self.directory.name}-{attempt}")

    def nonce_of(self, attempt: int) -> str | None:
        return self.nonces.get(attempt)


@dataclass
class _Neighbours:
    """All jobs on trial, as a sink can ask for them."""

    jobs: list[PlayedJob]

    def promised_by(self, directory: str) -> int:
        here = canonical_directory(directory)
        return sum(job.promised for job in self.jobs if canonical_directory(job.uri) == here)


@dataclass
class Trial:
    """One sink, its target and a job that uses it.

    Attributes:
        promise: The one that is looked at.
        sink: As the user made it; tasks and drivers use copies, as other processes would.
        make: Makes another sink, with an empty target of its own.
        read: Reads what the target shows, given the sink.
        elements: At least four different ones.
        job: The job; its directory has a place of its own below that of the trial.
        update: An older and a newer element of one key, if the user gave them.
    """

    promise: Promise
    sink: Sink
    make: Callable[[], Sink]
    read: Callable[[Any], Iterable[Any]]
    type: TypeInfo
    elements: Sequence[Any]
    job: PlayedJob
    update: tuple[Any, Any] | None = None
    _jobs: _Neighbours = field(default_factory=lambda: _Neighbours([]))
    _open: list[ClosingCommitter] = field(default_factory=list)
    _task_attempts: int = 0

    def __post_init__(self) -> None:
        self._jobs.jobs.append(self.job)

    @property
    def directory(self) -> Path:
        return self.job.directory

    @property
    def versions(self) -> tuple[Any, Any]:
        assert self.update is not None, "stories about them are only told with them"
        return self.update

    @property
    def storage(self) -> StorageRef:
        return StorageRef(self.job.uri)

    @property
    def has_claim(self) -> bool:
        """Whether the sink records at its target which job owns it."""
        return type(self.sink).acquire_target is not Sink.acquire_target

    def copy(self) -> Sink:
        """The sink as another process gets it."""
        sink: Sink = pickle.loads(pickle_by_value(self.sink))
        return sink

    # -- other jobs

    def other_job(self) -> Trial:
        """Another job with this very sink. It counts its attempts and tasks by itself."""
        directory = self.directory.with_name("other")
        directory.mkdir()
        return self._played_by(PlayedJob("other", "other-1", directory))

    def copied_job(self) -> Trial:
        """A copy of the job directory as it is now, started under the same name."""
        directory = self.directory.with_name("copy")
        shutil.copytree(self.directory, directory)
        return self._played_by(PlayedJob(JOB, JOB_ID, directory, dict(self.job.nonces)))

    def moved_job(self) -> Trial:
        """The same job after its directory was moved."""
        directory = self.directory.with_name("moved")
        shutil.move(self.directory, directory)
        self._jobs.jobs.remove(self.job)
        return self._played_by(PlayedJob(JOB, JOB_ID, directory, self.job.nonces))

    def backup(self) -> Callable[[], Trial]:
        """Back the job directory up; what is returned restores it and everything it knew."""
        directory = self.directory.with_name("backup")
        nonces = dict(self.job.nonces)
        shutil.copytree(self.directory, directory)

        def restore() -> Trial:
            shutil.rmtree(self.directory)
            shutil.copytree(directory, self.directory)
            self._jobs.jobs.remove(self.job)
            return self._played_by(PlayedJob(JOB, JOB_ID, self.directory, nonces))

        return restore

    def elsewhere(self) -> Trial:
        """The same with another target, for sinks that let no second job use the first."""
        if not self.has_claim:
            return self
        self._jobs.jobs.remove(self.job)
        return replace(self, sink=self.make())

    def take_over(self) -> None:
        """Claim the target although it is another job's, before the start, as the user allows."""
        sink = self.copy()
        ctx = self.committer_context(0)
        ctx = replace(ctx, take_over=True)
        sink.check_target(ctx)
        sink.acquire_target(ctx)

    def _played_by(self, job: PlayedJob) -> Trial:
        return replace(self, job=job, _task_attempts=0)

    # -- tasks

    def writer_context(
        self, attempt: int, epoch: int, partition: int = 0, uid: str = UID
    ) -> WriterContext:
        self._task_attempts += 1
        return WriterContext(
            self.job.name,
            self.job.job_id,
            uid,
            attempt,
            epoch,
            partition,
            self._task_attempts,
            self.type,
            self.storage,
            directory_digest(self.job.uri),
            self.job.take(attempt),
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
        return CommitterContext(
            self.job.name,
            self.job.job_id,
            uid,
            attempt,
            self.type,
            self.job.uri,
            storage=self.storage,
            nonce=self.job.take(attempt) if attempt else "",
            attempts=self.job,
            other_jobs=self._jobs,
        )

    def driver(
        self, attempt: int, uid: str = UID, change: Callable[[Any], None] | None = None
    ) -> Committer:
        """The committer of a new attempt, which has claimed the target and settled nothing yet.

        Its sink can be changed, to make happen what is rare.
        """
        sink = self.copy()
        ctx = self.committer_context(attempt, uid)
        if change is not None:
            change(sink)
        sink.check_target(ctx)
        sink.acquire_target(ctx)
        committer = sink.committer(ctx)
        if isinstance(committer, ClosingCommitter):
            self._open.append(committer)
        return committer

    def started(self, attempt: int, promised: Sequence[bytes] = ()) -> Committer:
        """The committer of an attempt that has settled what earlier ones left."""
        committer = self.driver(attempt)
        if promised:
            committer.commit(promised)
        committer.recover(())
        return committer

    def commit(self, attempt: int, epoch: int, *elements: Any) -> None:
        self.driver(attempt).commit(self.prepared(attempt, epoch, *elements))

    def staged(self) -> dict[Path, bytes]:
        """The files in which tasks have staged elements."""
        paths = sorted(self.directory.glob("sinks/*/staged/**/*.arrow"))
        return {path: path.read_bytes() for path in paths}

    # -- readers

    def broken(self, problem: str, promise: Promise | None = None) -> PromiseBrokenError:
        """The error for a sink that breaks the promise, or another one."""
        return PromiseBrokenError(promise or self.promise, problem)

    def expect(self, expected: Sequence[Any], after: str, promise: Promise | None = None) -> None:
        """Raise `PromiseBrokenError` unless readers see these elements, in any order."""
        seen = [comparable(element) for element in self.read(self.sink)]
        missing = [comparable(element) for element in expected]
        more = list(seen)
        for element in list(missing):
            if element in more:
                more.remove(element)
                missing.remove(element)
        if missing or more:
            problems = [f"{missing!r} missing"] if missing else []
            problems += [f"{more!r} too much"] if more else []
            raise self.broken(
                f"after {after}, the target shows {seen!r}: {' and '.join(problems)}", promise
            )

    def close(self) -> None:
        """Let go of the target, as processes do when they end."""
        while self._open:
            self._open.pop().close()
        gc.collect(1)  # and what tasks have left open; all of it is young


Story = Callable[[Trial], None]


def let_fail(step: Callable[[], object]) -> None:
    """Do what may be refused, which is as good as doing nothing."""
    with suppress(Exception):
        step()


def discard(driver: Committer, known: Sequence[bytes] = ()) -> None:
    """Have a driver roll back what nobody will commit; a committer need not be able to."""
    abort_orphans = getattr(driver, "abort_orphans", None)
    if abort_orphans is not None:
        abort_orphans(known)


def comparable(element: Any) -> Any:
    """An element as it was given, or as it was read back from a list of lists."""
    return tuple(map(comparable, element)) if isinstance(element, list | tuple) else element


def check_elements(elements: Sequence[Any]) -> None:
    """Refuse elements that cannot tell what was written from what was not."""
    different = [e for i, e in enumerate(elements) if e not in elements[:i]]
    if len(different) < 4 or len(different) != len(elements):
        raise ConfigurationError(
            f"check_sink needs at least four elements, all different, got {len(different)} "
            f"different ones among {len(elements)}"
        )
