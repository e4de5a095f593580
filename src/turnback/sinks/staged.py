"""Names of staged files, and the record of one that is ready to be committed."""

import re
import secrets
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from turnback.core.errors import SinkError
from turnback.core.ids import path_segment
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.sinks.handle import name_sink, open_handle, seal_handle

HIDDEN = ".turnback"
SUFFIX = ".inprogress"
KIND, _VERSION = "file", 1
_STAGED_NAME = re.compile(r"-(\d{10,})-(\d{5,})-\d+-[0-9a-f]{16}\.[a-z]+\.inprogress$")


class StagedFile(msgspec.Struct, frozen=True):
    """One finished file that waits for its commit.

    Attributes:
        staged: Where it is, relative to the sink's directory.
        final: The name it gets in the sink's directory.
        length: Its size in bytes.
        rows: Number of elements in it.
        epoch: The epoch it belongs to.
        partition: The task it was written by.
    """

    staged: str
    final: str
    length: int
    rows: int
    epoch: int
    partition: int

    @property
    def home(self) -> PurePosixPath:
        """Where its sink has one directory per attempt, relative to the sink's directory."""
        return PurePosixPath(self.staged).parent.parent

    @property
    def attempt(self) -> int | None:
        """The attempt that staged it; None if its path does not tell."""
        name = PurePosixPath(self.staged).parent.name
        return int(name) if name.isdecimal() else None

    def encode(self) -> bytes:
        """The transaction's bytes."""
        return seal_handle(KIND, _VERSION, msgspec.msgpack.encode(self))

    @classmethod
    def decode(cls, data: bytes, ctx: CommitterContext) -> "StagedFile":
        """Read a transaction, and refuse names that lead out of the sink's directory."""
        sink = name_sink(ctx.job, ctx.uid)
        body = open_handle(KIND, _VERSION, data, sink)
        try:
            file = msgspec.msgpack.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise SinkError(f"{sink}: a prepared transaction cannot be read: {error}") from error
        staged = PurePosixPath(file.staged)
        if (
            staged.parts[:1] != (HIDDEN,)
            or ".." in staged.parts
            or staged.name != file.final + SUFFIX
            or "\0" in file.staged + file.final
        ):
            raise SinkError(
                f"{sink}: a prepared transaction names files outside of the sink's directory "
                f"({file.staged!r} -> {file.final!r}); nothing was touched"
            )
        return file


def sink_directory(root: Path, ctx: WriterContext | CommitterContext) -> Path:
    """Where this sink of this job stages, one directory per attempt.

    The job's id is part of it: a job of the same name in another root is somebody else.
    """
    return root / HIDDEN / path_segment(ctx.job) / path_segment(ctx.job_id) / path_segment(ctx.uid)


def attempt_directory(root: Path, ctx: WriterContext | CommitterContext) -> Path:
    """Where this attempt of the job stages."""
    return sink_directory(root, ctx) / str(ctx.attempt)


def new_name(prefix: str, ctx: WriterContext, extension: str) -> str:
    """A final name nobody else has, not even another attempt of the same task."""
    unique = f"{ctx.task_attempt_id}-{secrets.token_hex(8)}"
    return f"{prefix}-{ctx.epoch:010d}-{ctx.partition:05d}-{unique}.{extension}"


def task_of(name: str) -> tuple[int, int] | None:
    """Epoch and partition in the name of a staged file; None when it is not one."""
    match = _STAGED_NAME.search(name)
    return (int(match[1]), int(match[2])) if match else None


class LeftFile(msgspec.Struct, frozen=True):
    """A staged file that lies in the directory of an attempt.

    Attributes:
        path: Where it is.
        length: Its size in bytes.
        attempt: The attempt that wrote it.
        epoch: The epoch it belongs to.
    """

    path: Path
    length: int
    attempt: int
    epoch: int


def left_files(root: Path, ctx: CommitterContext) -> Iterator[LeftFile]:
    """Find what attempts of this job's sink have staged and nobody has committed or removed.

    Links are not followed.
    """
    home = sink_directory(root, ctx)
    if not home.is_dir() or not home.resolve().is_relative_to(root.resolve()):
        return
    for directory in sorted(home.iterdir()):
        if not directory.name.isdecimal() or directory.is_symlink():
            continue
        for path in sorted(directory.iterdir()):
            task = task_of(path.name)
            if task is not None and not path.is_symlink():
                yield LeftFile(path, path.stat().st_size, int(directory.name), task[0])
