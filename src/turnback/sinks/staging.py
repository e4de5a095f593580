"""The hidden directory of a file sink: staged files, and a record of what was published."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from turnback.core.errors import NotFoundError, SinkError, TurnbackError
from turnback.core.ids import path_segment
from turnback.sinks.base import (
    CommitterContext,
    TransactionInfo,
    WriterContext,
    name_sink,
    open_handle,
    seal_handle,
)
from turnback.sinks.ownership import HIDDEN, SUFFIX
from turnback.storage.directory import Access
from turnback.storage.envelope import seal, unseal
from turnback.storage.local import LocalStorage

KIND, _VERSION = "file", 1
_STAGED_NAME = re.compile(r"-(\d{10,})-(\d{5,})-\d+-[0-9a-f]{16}\.[a-z]+\.inprogress$")


class StagedFile(msgspec.Struct, frozen=True):
    """One finished file that waits for its commit.

    Attributes:
        staged: Where it is, relative to the sink's directory.
        final: The name it gets in the sink's directory.
        length: Its size in bytes.
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
        """The attempt that staged it; None if its path does not have it."""
        name = PurePosixPath(self.staged).parent.name
        return int(name) if name.isdecimal() else None

    def encode(self) -> bytes:
        return seal_handle(KIND, _VERSION, msgspec.msgpack.encode(self))

    @classmethod
    def decode(cls, data: bytes, ctx: CommitterContext) -> StagedFile:
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
    """Where this sink stages, one directory per attempt; the id tells jobs of one name apart."""
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
    """A staged file in the directory of the attempt that wrote it; `length` is in bytes."""

    path: Path
    length: int
    attempt: int
    epoch: int


def left_files(root: Path, ctx: CommitterContext) -> Iterator[LeftFile]:
    """What a sink has staged and nobody has committed or removed; links are not followed."""
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


def explain_file(file: StagedFile, root: Path | None) -> TransactionInfo:
    """Describe a file that waits for its commit; `root` is the sink's directory, if known."""
    path = None if root is None else str(root / file.staged)
    return TransactionInfo(
        what=file.final,
        id=path,
        epoch=file.epoch,
        rows=file.rows,
        bytes=file.length,
        path=path,
        problem=_problem(file, root),
    )


def _problem(file: StagedFile, root: Path | None) -> str | None:
    if root is None:
        return "where it is staged is not recorded"
    staged, final = root / file.staged, root / file.final
    try:
        if staged.is_file():
            return None
        if final.is_file():
            return "published already, only the record of it is missing"
        if PublishRecord(root, 0).covers(file):
            return "published already and taken away by its reader, only the record is missing"
    except OSError as error:
        return f"{staged} cannot be read: {error.strerror or error}"
    except TurnbackError as error:
        return str(error)
    return f"neither {staged} nor {final} is on this machine"


_PUBLISHED, _PUBLISHED_FORMAT = "published", 1
_NAME = re.compile(r"published-([1-9][0-9]*)")  # no reader of *.json takes it for data
_ATTEMPTS = 1000
"""How many attempts a record covers; files of others are never taken for published."""

Epochs = dict[int, int]
"""By the attempt that staged files, the newest epoch of which some may have been published.

Attempts are kept apart because epochs are counted again when a job turns back.
"""


class _Record(msgspec.Struct, frozen=True):
    epochs: Epochs


class PublishRecord:
    """What attempts of a sink may have published.

    Each attempt that commits writes a file of its own, beside the directories where attempts stage:
    one that was replaced without knowing it cannot turn the record of its successor back.
    """

    def __init__(self, root: Path, attempt: int) -> None:
        self._root = root
        self._storage = LocalStorage(root, Access.UMASK)
        self._attempt = attempt
        self._own: dict[PurePosixPath, Epochs] = {}

    def covers(self, file: StagedFile) -> bool:
        """Whether a file may have been published; raises `StorageError` if a record is bad."""
        if file.attempt is None:
            return False
        return self._read(file.home).get(file.attempt, -1) >= file.epoch

    def extend(self, files: Iterable[StagedFile]) -> None:
        """Record that files are about to be published; if it raises, nothing may be."""
        new: dict[PurePosixPath, Epochs] = {}
        for file in files:
            if file.attempt is not None:
                _join(new.setdefault(file.home, {}), {file.attempt: file.epoch})
        for home, epochs in new.items():
            self._write(home, epochs)

    def _write(self, home: PurePosixPath, epochs: Epochs) -> None:
        first = home not in self._own
        known = self._read(home) if first else self._own[home]
        joined = _join(dict(known), epochs)
        if joined == known:
            return
        newest = dict(sorted(joined.items())[-_ATTEMPTS:])
        path = home / f"published-{self._attempt}"
        data = seal(_PUBLISHED, _PUBLISHED_FORMAT, msgspec.json.encode(_Record(newest)))
        self._storage.put(str(path), data)
        self._own[home] = newest
        if first:
            for older, writer in self._paths(home).items():
                if writer < self._attempt:
                    self._storage.delete(older)

    def _read(self, home: PurePosixPath) -> Epochs:
        while True:
            epochs: Epochs = {}
            try:
                for path in self._paths(home):
                    name = f"{self._storage.uri}/{path}"
                    _, body = unseal(_PUBLISHED, _PUBLISHED_FORMAT, self._storage.get(path), name)
                    _join(epochs, msgspec.json.decode(body, type=_Record).epochs)
                return epochs
            except NotFoundError:
                continue  # it was joined into a newer one meanwhile

    def _paths(self, home: PurePosixPath) -> dict[str, int]:
        """The files there are, and the attempts that wrote them."""
        directory = self._root / home
        names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        return {str(home / m[0]): int(m[1]) for m in map(_NAME.fullmatch, names) if m}


def _join(into: Epochs, other: Epochs) -> Epochs:
    for attempt, epoch in other.items():
        into[attempt] = max(epoch, into.get(attempt, epoch))
    return into
