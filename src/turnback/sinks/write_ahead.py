"""`WriteAheadSink`: the template for targets that remember what was written to them.

Tasks stage elements durably in the job directory, `sinks/<uid>/staged/<attempt>/`; the driver
publishes them, epoch by epoch, when their checkpoint is complete.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import ClassVar

import msgspec

from turnback.errors import SinkError
from turnback.job.directory import JobDirectory
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    UserCalls,
    WriterContext,
    attempt_of,
    require_known_attempt,
    require_promised,
    sink_errors,
    sink_label,
    unknown_output,
    version_of,
)
from turnback.sinks.elements import decode_elements, stored_type
from turnback.sinks.staged_elements import (
    StagedFiles,
    StagedPart,
    StagedTask,
    StagingWriter,
    staged_directory,
)
from turnback.state.files import storage_of
from turnback.storage.base import Storage
from turnback.storage.envelope import encode_document, read_document
from turnback.values.columns import Batch
from turnback.values.typeinfo import TypeInfo

_FORMAT = 1
_BEGUN = "publishing"
_ACCEPTED = "accepted"


@dataclass(frozen=True)
class StagedOutput:
    """The output of one epoch, which waits to be published.

    Attributes:
        attempt: The attempt of the job that ran the epoch.
        epoch: The epoch.
        rows: How many elements there are; at least one.
        type: Type of the elements.
    """

    attempt: int
    epoch: int
    rows: int
    type: TypeInfo
    _tasks: tuple[StagedTask, ...] = field(repr=False)
    _read: Callable[[StagedPart], bytes] = field(repr=False)

    @property
    def version(self) -> int:
        """Attempt and epoch in one number, which the target has to remember.

        It grows with every epoch and never comes again, also if the job is turned back.
        """
        return version_of(self.attempt, self.epoch)

    @property
    def parts(self) -> tuple[StagedPart, ...]:
        """The files that hold the elements, in order."""
        return tuple(part for task in self._tasks for part in task.parts)

    def batches(self) -> Iterator[Batch]:
        """All elements, by task and in the order in which each task wrote them.

        One staged file is in memory at a time; can be called again.

        Raises:
            SinkError: A staged file is missing, damaged or cannot be read. Let it pass, and
                nothing of the epoch become visible.
        """
        for part in self.parts:
            yield from decode_elements(self._read(part), self.type)


class WriteAheadSink(Sink):
    """Template for exactly-once output into any target that can write an epoch in one transaction.

    The target stores its position: `publish` writes the elements of an epoch *and* the number
    `output.version` in one transaction, `published` reads that number. This class does everything
    else:

    1. tasks stage their elements durably, in the job directory (on the driver and all executors
       the same storage: the checkpoint directory);
    2. the staged files are recorded in the checkpoint;
    3. on the driver, when the checkpoint is complete, `published` is called once, then `publish`
       for every later epoch, in order, while the stream keeps running;
    4. staged files are deleted when the job has recorded that they are published: with the next
       checkpoint, or when the attempt ends.

    After a crash at any point the driver reads the position again; an epoch that was published is
    not published twice, one that was not is published from the staged files, by this or a later
    process. Elements become visible epoch by epoch, all of an epoch at once.

    Use it where a transaction cannot outlive the process that began it, which `TwoPhaseCommitSink`
    requires, or where a single connection should write everything. The cost is that elements are
    written twice, the second time by the driver alone.

    A target belongs to one job: override `acquire_target` to record its owner there, otherwise a
    job and its fork can both write to it. It is called before `open`.

    The sink is pickled to the tasks, which do not use it. On the driver each attempt uses its own
    copy, because a `publish` that hangs may outlive its attempt. Create connections in `open`, keep
    them on `self`, and leave them out of `__getstate__`. The methods of one copy are called one at
    a time, but not always from the same thread.
    """

    publishes_whole_epochs: ClassVar[bool] = True
    """Whether nothing of an epoch becomes visible if `publish` raises."""

    def open(self, ctx: CommitterContext) -> None:
        """Connect to the target. Nothing by default.

        Called on the driver, once at the start of each attempt, before `published` and `publish`;
        also when transactions of a dead job are resolved by hand, possibly without a program.

        Raises:
            ConfigurationError: The sink cannot be used as configured; the job fails.
            SinkError: The target cannot be reached; the restart strategy decides.
        """
        return

    @abstractmethod
    def published(self, ctx: CommitterContext) -> int:
        """Return the version that the target stores for this sink, 0 for none.

        The sink is identified by `(ctx.directory_id, ctx.job_id, ctx.uid)`: a copy of the job is a
        different sink. If the job was moved or the sink renamed since, these are the location and
        the uid that staged the output; `ctx.job_directory` identifies the owner of the target
        instead. Called on the driver, once before the epochs of each checkpoint are published.
        Raise an error if the target does not answer: epochs up to the returned version are never
        written again.

        A version of an attempt that the job directory does not know fails the job: the directory
        was restored from a backup, and its unpublished output would be taken for published. To let
        a user continue with `take_over_sinks`, `acquire_target` must delete the version if
        `ctx.take_over` is set and `require_known_attempt` of `turnback.sinks.base` refuses it.
        """

    @abstractmethod
    def publish(self, ctx: CommitterContext, output: StagedOutput) -> None:
        """Write the elements of an epoch and `output.version` in one transaction of the target.

        Called on the driver, with increasing versions. It is called again with the same output, by
        this or another process, if it raised or if `published` then returns less than its version;
        not otherwise. Return when both are durable. An exception means that the outcome is unknown.

        Have the target compare versions in the same transaction, and write nothing if it stores
        this version or a newer one of the same sink: a driver that was replaced while it was paused
        may publish once more before it notices. `ctx` identifies the sink as in `published`.
        """

    def close(self) -> None:
        """Close what `open` opened. Called on the driver when an attempt ends, if possible."""
        return

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return StagedTask.decode(transaction, sink_label(ctx.job, ctx.uid)).explain(ctx)

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        """List staged output; override it if the target can contain leftovers as well."""
        return StagedFiles(ctx).list_orphans(ctx.uid)

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return StagingWriter(ctx)

    def committer(self, ctx: CommitterContext) -> Committer:
        # Not `copy.copy`, which leaves out what tasks do not get, such as a password.
        own = object.__new__(type(self))
        own.__dict__.update(self.__dict__)
        return WriteAheadCommitter(own, ctx)


class _Version(msgspec.Struct, frozen=True):
    version: int


class VersionRecords:
    """A version that a sink remembers in the job directory.

    Each version has a file of its own and the newest of all counts. So neither a driver that was
    replaced without knowing it nor a write that was given up and comes late turns the record back.
    Without files where the job keeps its checkpoints in the driver's memory.
    """

    def __init__(self, ctx: CommitterContext, name: str) -> None:
        self._storage: Storage | None = None
        if ctx.storage is not None and not ctx.storage.inline:
            self._storage = storage_of(ctx.storage)
        self._directory = JobDirectory.sink_path(ctx.uid)
        self._attempt = ctx.attempt
        self._name = name
        self._older: list[str] | None = None

    def newest(self) -> int:
        """The newest version, 0 if there is none."""
        return max(map(self._read, self._paths().values()), default=0)

    def write(self, version: int) -> None:
        if self._storage is None:
            return
        path = f"{self._directory}/{self._name}-{self._attempt}-{version}.json"
        self._storage.put(path, encode_document(self._name, _FORMAT, _Version(version)))
        if self._older is None:
            mine = (self._attempt, version)
            self._older = [other for key, other in self._paths().items() if key < mine]
        for other in self._older:
            self._storage.delete(other)
        self._older = [path]

    def _paths(self) -> dict[tuple[int, int], str]:
        """All records, by attempt and version; earlier versions of Turnback kept one an attempt."""
        if self._storage is None:
            return {}
        own = re.compile(rf"{self._name}-([1-9][0-9]*)(?:-([1-9][0-9]*))?\.json")
        paths = self._storage.list(self._directory)
        found = [(own.fullmatch(path.rpartition("/")[2]), path) for path in paths]
        return {(int(match[1]), int(match[2] or 0)): path for match, path in found if match}

    def _read(self, path: str) -> int:
        assert self._storage is not None
        record = read_document(self._storage, self._name, _FORMAT, path, _Version)
        return record.version if record is not None else 0


def accept_published(ctx: CommitterContext, attempt: int) -> None:
    """Record that the user goes on with whatever targets remember of attempts up to this one.

    Called when targets are taken over. Otherwise a job directory that was restored from a backup
    would be refused by what it had published after the backup for ever.
    """
    if ctx.job_id and attempt:
        VersionRecords(replace(ctx, attempt=attempt), _ACCEPTED).write(attempt)


class WriteAheadCommitter(UserCalls):
    """Publishes what tasks have staged, each epoch once.

    What is about to be published is recorded in the job directory first. So a target that remembers
    more than that shows that the job directory is older than the target: restored from a backup.
    """

    def __init__(self, sink: WriteAheadSink, ctx: CommitterContext) -> None:
        super().__init__(sink, ctx)
        self._sink = sink
        self._ctx = ctx
        self._begun: dict[str, int] = {}
        self._records: dict[str, VersionRecords] = {}
        self._staged = StagedFiles(ctx)
        self._published: list[str] = []
        """Files of what the last `commit` has published."""
        self._call("open", sink.open, ctx)

    def commit(self, transactions: Sequence[bytes]) -> None:
        self._remove_published()
        tasks = sorted(self._decode(transactions), key=lambda task: (task.uid, task.version))
        for (uid, place), of_sink in groupby(tasks, key=lambda t: (t.uid, self._place_of(t))):
            self._publish(list(of_sink), replace(self._ctx, uid=uid, staged_in=place))
        self._published = [path for task in tasks for path in task.paths]

    def abort(self, transactions: Sequence[bytes]) -> None:
        for task in self._decode(transactions):
            self._staged.delete(task.paths)

    def recover(self, pending: Sequence[bytes]) -> None:
        """Publish `pending`, and remove all else that older attempts staged, under any uid."""
        self.commit(pending)
        staged = self._staged.find("sinks")
        self._staged.delete(file.path for file in staged if file.attempt < self._ctx.attempt)

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        retained = {path for task in self._decode(known) for path in task.paths}
        staged = self._staged.find(f"{staged_directory(self._ctx.uid)}/{self._ctx.attempt}")
        self._staged.delete(file.path for file in staged if file.path not in retained)

    def close(self) -> None:
        self._remove_published()
        self._call("close", self._sink.close)

    def _place_of(self, task: StagedTask) -> str:
        """Where a task has staged its output, if that is not this job directory.

        The target remembers it by that: a driver there may have published it before the directory
        was moved, or since it was copied.
        """
        here = self._ctx.directory_id
        return task.directory_id if here and task.directory_id != here else ""

    def _publish(self, tasks: Sequence[StagedTask], ctx: CommitterContext) -> None:
        """Publish epochs that the target does not have yet.

        1. ask the target how far it is; it must not remember what this job directory never wrote
        2. make sure that nothing of what it lacks is missing, before anything is written; where a
           single epoch is written whole or not at all, its files need no listing
        3. record how far it is going to be
        4. publish in order; the files go with the next call, when the job has recorded it
        """
        done = self._call("published", self._sink.published, ctx)
        if not isinstance(done, int):
            raise SinkError(
                f"{self._name}: {type(self._sink).__name__}.published returned {done!r:.60}; it "
                "must return a version, or 0 if there is none"
            )
        ordered = sorted(tasks, key=lambda task: (task.version, task.partition))
        self._require_known(ctx, done, ordered[-1].attempt)
        lacking = [task for task in ordered if task.version > done]
        if len({task.version for task in lacking}) > 1 or not self._sink.publishes_whole_epochs:
            self._staged.require(lacking)
        self._record_begin(ctx, max(done, ordered[-1].version))
        for version, of_epoch in groupby(ordered, key=lambda task: task.version):
            if version > done:
                self._call("publish", self._sink.publish, ctx, self._output(tuple(of_epoch)))

    def _remove_published(self) -> None:
        """Remove what the last `commit` has published, which the job has recorded since.

        Before that, a backup of the job directory would have neither the record nor the files. If
        it is restored, and the target has forgotten how far it was, it could never be started.
        """
        self._staged.delete(self._published)
        self._published = []

    def _require_known(self, ctx: CommitterContext, done: int, newest: int) -> None:
        """Refuse a target that remembers what this job directory has never begun to publish.

        What a job has staged before this copy of it was made it may have published since then, and
        more in the same attempt; `newest` is the last attempt whose output is at hand.
        """
        target = f"the target of {self._sink!r}"
        require_known_attempt(ctx, attempt_of(done), "", target)
        if ctx.uid not in self._begun:
            self._records[ctx.uid] = VersionRecords(ctx, _BEGUN)
            with self._recording():
                self._begun[ctx.uid] = self._records[ctx.uid].newest()
        begun = self._begun[ctx.uid]
        if done <= begun:
            return
        if ctx.staged_in:
            if attempt_of(done) > newest:
                raise unknown_output(ctx, attempt_of(done), target)
            return
        with self._recording():
            accepted = VersionRecords(ctx, _ACCEPTED).newest()
        if attempt_of(done) <= accepted:
            return
        if begun:
            raise unknown_output(ctx, attempt_of(done), target)
        # Nothing was published when the backup was made.
        require_promised(ctx, done, target)

    def _record_begin(self, ctx: CommitterContext, version: int) -> None:
        if version > self._begun[ctx.uid]:
            with self._recording():
                self._records[ctx.uid].write(version)
            self._begun[ctx.uid] = version

    def _recording(self) -> AbstractContextManager[None]:
        what = f"{self._name}: cannot record in the job directory what is published"
        return sink_errors(what)

    def _output(self, tasks: tuple[StagedTask, ...]) -> StagedOutput:
        first = tasks[0]
        rows = sum(task.rows for task in tasks)
        kind = stored_type(first.type, self._ctx)
        return StagedOutput(first.attempt, first.epoch, rows, kind, tasks, self._staged.read)

    def _decode(self, transactions: Sequence[bytes]) -> list[StagedTask]:
        return [StagedTask.decode(transaction, self._name) for transaction in transactions]
