"""What tasks stage for `WriteAheadSink`: files of elements in the job directory.

They are in `sinks/<uid>/staged/<attempt>/`, or in the transaction itself where the job keeps its
checkpoints in the driver's memory.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby

import msgspec
import pyarrow as pa

from turnback.errors import NotFoundError, SinkError, StorageError
from turnback.job.directory import JobDirectory
from turnback.sinks.base import (
    CommitterContext,
    GuardedWriter,
    TransactionInfo,
    WriterContext,
    aborted_on_failure,
    read_handle,
    require_open,
    seal_handle,
    sink_errors,
    sink_label,
    version_of,
)
from turnback.sinks.elements import ElementsEncoder, describe_type
from turnback.sinks.memory import MAX_BYTES
from turnback.state.files import storage_of
from turnback.storage.base import Storage, delete_files
from turnback.storage.envelope import check, digest
from turnback.values.columns import Batch

_LOG = logging.getLogger(__name__)
KIND = "write-ahead"
_VERSION = 1
FILE_BYTES = 32 * 1024 * 1024
"""A task starts another file when one has this size: the driver reads them one at a time."""
_STAGED = re.compile(r"sinks/[^/]+/staged/(\d+)/(\d{10,})-(\d{5,})-\d+-[0-9a-f]{16}\.arrow")


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """A file of staged elements; `inline` holds the bytes if they travel in the transaction."""

    path: str
    length: int
    digest: str
    inline: bytes | None = None


class StagedTask(msgspec.Struct, frozen=True, array_like=True):
    """What one task has staged in one epoch: the transaction.

    The uid is the sink's at that time, and the directory id that of the job directory: it may have
    been moved since, or this is a copy of it. Older versions of Turnback did not note it.
    """

    uid: str
    attempt: int
    epoch: int
    partition: int
    rows: int
    type: bytes
    parts: tuple[StagedPart, ...]
    directory_id: str = ""

    @property
    def version(self) -> int:
        return version_of(self.attempt, self.epoch)

    @property
    def paths(self) -> list[str]:
        return [part.path for part in self.parts if part.inline is None]

    def explain(self, ctx: CommitterContext) -> TransactionInfo:
        """Describe it, with what stands in the way of publishing it."""
        problem = None
        try:
            StagedFiles(ctx).require([self])
        except SinkError as error:
            problem = str(error)
        return TransactionInfo(
            what=f"output of task {self.partition}, attempt {self.attempt}",
            id=_task_of(self.paths[0]) if self.paths else None,
            epoch=self.epoch,
            rows=self.rows,
            bytes=sum(part.length for part in self.parts),
            path=self.paths[0] if self.paths else None,
            problem=problem,
        )

    def encode(self) -> bytes:
        return seal_handle(KIND, _VERSION, msgspec.msgpack.encode(self))

    @classmethod
    def decode(cls, data: bytes, sink: str) -> StagedTask:
        """Read a transaction, and refuse paths of other files; `sink` is for messages."""
        task = read_handle(KIND, _VERSION, data, cls, sink)
        for part in task.parts:
            if part.inline is None and not _STAGED.fullmatch(part.path):
                raise SinkError(
                    f"{sink}: a prepared transaction names {part.path!r}, which is not a staged "
                    "file; nothing was touched"
                )
        return task


def staged_directory(uid: str) -> str:
    """Where a sink stages, one directory per attempt, relative to the job directory."""
    return f"{JobDirectory.sink_path(uid)}/staged"


class StagingWriter(GuardedWriter):
    """Stages the elements of one task and epoch."""

    def __init__(self, ctx: WriterContext) -> None:
        super().__init__(ctx)
        self._storage = _storage(ctx)
        self._encoder: ElementsEncoder | None = None
        self._parts: list[StagedPart] = []
        self._rows = 0

    def _add(self, batch: Batch) -> None:
        if self._encoder is None:
            self._encoder = ElementsEncoder("zstd")
        self._encoder.add(batch)
        self._rows += len(batch)
        if self._encoder.size >= FILE_BYTES:
            self._finish_part()

    def prepare(self) -> bytes | None:
        require_open(self._closed, self._name)
        with self._failures():
            self._finish_part()
        self._closed = True
        if not self._parts:
            return None
        ctx = self._ctx
        return StagedTask(
            ctx.uid,
            ctx.attempt,
            ctx.epoch,
            ctx.partition,
            self._rows,
            describe_type(ctx.type),
            tuple(self._parts),
            ctx.directory_id,
        ).encode()

    def abort(self) -> None:
        self._closed = True
        self._encoder = None
        while self._storage is not None and self._parts:
            path = self._parts.pop().path
            try:
                self._storage.delete(path)
            except StorageError as error:
                _LOG.warning("%s: %s is kept until the next start: %s", self._name, path, error)

    def _finish_part(self) -> None:
        if self._encoder is None:
            return
        data = self._encoder.finish()
        self._encoder = None
        part = StagedPart(self._new_path(), len(data), digest(data))
        if self._storage is None:
            part = msgspec.structs.replace(part, path="", inline=data)
        # Before it is written: a write that failed may have left something.
        self._parts.append(part)
        if self._storage is not None:
            self._storage.put(part.path, data)
        elif sum(part.length for part in self._parts) > MAX_BYTES:
            raise SinkError(
                f"{self._name}: more than {MAX_BYTES} bytes in epoch {self._ctx.epoch} of task "
                f"{self._ctx.partition} do not fit into a checkpoint in the driver's memory; set a "
                "checkpoint directory, where they can be staged"
            )

    def _new_path(self) -> str:
        ctx = self._ctx
        task = f"{ctx.epoch:010d}-{ctx.partition:05d}-{ctx.task_attempt_id}"
        return f"{staged_directory(ctx.uid)}/{ctx.attempt}/{task}-{secrets.token_hex(8)}.arrow"

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Remove what was staged on any failure; errors of storage and Arrow name the sink."""
        what = f"{self._name}: cannot stage elements"
        with sink_errors(what, (StorageError, pa.ArrowException)), aborted_on_failure(self):
            yield


def _storage(ctx: WriterContext | CommitterContext) -> Storage | None:
    """The job directory; None if elements travel in the transactions."""
    if ctx.storage is None or ctx.storage.inline:
        return None
    return storage_of(ctx.storage)


class ElementsFile(msgspec.Struct, frozen=True):
    """A file that tasks have staged, as its path tells; `task` is the same in all of a task."""

    path: str
    attempt: int
    epoch: int
    partition: int
    length: int

    @property
    def task(self) -> str:
        return _task_of(self.path)


def _task_of(path: str) -> str:
    return path.rpartition("-")[0]


class StagedFiles:
    """What tasks of a sink have staged, seen from the driver."""

    def __init__(self, ctx: CommitterContext) -> None:
        self._name = sink_label(ctx.job, ctx.uid)
        self._storage = _storage(ctx)

    def find(self, directory: str) -> list[ElementsFile]:
        if self._storage is None:
            return []
        with self._errors("list"):
            found = [(_STAGED.fullmatch(p), n) for p, n in self._storage.sizes(directory).items()]
        return [ElementsFile(m[0], int(m[1]), int(m[2]), int(m[3]), n) for m, n in found if m]

    def list_orphans(self, uid: str) -> list[TransactionInfo]:
        """What is staged of a sink, task by task; see `Sink.list_orphans`."""
        files = sorted(self.find(staged_directory(uid)), key=lambda file: file.task)
        left = []
        for task, of_task in groupby(files, key=lambda file: file.task):
            parts = list(of_task)
            first = parts[0]
            left.append(
                TransactionInfo(
                    what=f"output of task {first.partition}, attempt {first.attempt}",
                    id=task,
                    epoch=first.epoch,
                    bytes=sum(part.length for part in parts),
                    path=first.path,
                )
            )
        return left

    def require(self, tasks: Iterable[StagedTask]) -> None:
        """Raise `SinkError` if a file is missing."""
        wanted = {path: task for task in tasks for path in task.paths}
        directories = sorted({path.rpartition("/")[0] for path in wanted})
        there = {file.path for directory in directories for file in self.find(directory)}
        for path, task in wanted.items():
            if path not in there:
                raise self._lost(path, f"{task.rows} rows of epoch {task.epoch} are")

    def read(self, part: StagedPart) -> bytes:
        """Return the bytes of a file; raises `SinkError` if they are not what was staged."""
        with self._errors("read"):
            if part.inline is not None:
                data = part.inline
                name = "the output in a transaction"
            else:
                data = self._get(part.path)
                name = f"{self._staging().uri}/{part.path}"
            check(data, part.length, part.digest, name)
        return data

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files nobody needs; the next start removes what cannot be."""
        given = list(paths)
        failed = delete_files(self._staging(), given) if given else {}
        for path, error in failed.items():
            _LOG.warning("%s: %s is kept until the next start: %s", self._name, path, error)

    def _get(self, path: str) -> bytes:
        try:
            return self._staging().get(path)
        except NotFoundError:
            raise self._lost(path, "staged elements are") from None

    def _lost(self, path: str, what: str) -> SinkError:
        return SinkError(
            f"{self._name}: {what} lost: {path} is no longer in {self._staging().uri}, and the "
            "target does not have them. It may have been removed by hand. Restore it, or start "
            "from an earlier checkpoint; nothing of the epoch was published"
        )

    def _staging(self) -> Storage:
        if self._storage is None:
            raise SinkError(
                f"{self._name}: a prepared transaction has staged files, but this job now stages "
                "in the driver's memory; start the job once with its previous checkpoint "
                "directory"
            )
        return self._storage

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return sink_errors(f"{self._name}: cannot {what} staged elements")
