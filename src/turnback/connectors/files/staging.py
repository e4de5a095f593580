"""The hidden directory of a file sink: staged files, and a record of what was published."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from turnback.errors import NotFoundError, SinkError, TurnbackError
from turnback.sinks.base import (
    CommitterContext,
    TransactionInfo,
    WriterContext,
    read_handle,
    seal_handle,
    sink_label,
)
from turnback.sinks.ownership import HIDDEN, SUFFIX, SinkIdentity, homes_of, job_home
from turnback.storage.directory import Access
from turnback.storage.envelope import decode_document, encode_document
from turnback.storage.local import LocalStorage

KIND = "file"
_VERSION = 2
_STAGED_NAME = re.compile(
    r"-(\d{10,})-(\d{5,})-\d+-[0-9a-f]{16}(?P<number>-\d{6,})?\.[a-z]+\.inprogress$"
)
"""Only files of partitioned sinks, of which a task writes several, have a number."""


class StagedFile(msgspec.Struct, frozen=True):
    """A finished file that waits for its commit; `staged` is where it is, `final` its name then."""

    staged: str
    final: str
    length: int
    rows: int
    epoch: int
    partition: int

    @property
    def name(self) -> str:
        """Its name without its directory."""
        return PurePosixPath(self.final).name

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
        return seal_handle(KIND, 1, msgspec.msgpack.encode(self))

    def check(self, sink: str) -> None:
        """Refuse names that lead out of the sink's directory, or that no writer would give."""
        staged = PurePosixPath(self.staged)
        final = PurePosixPath(self.final)
        if (
            staged.parts[:1] != (HIDDEN,)
            or ".." in (*staged.parts, *final.parts)
            or final.is_absolute()
            or any("=" not in part for part in final.parent.parts)
            or staged.name != final.name + SUFFIX
            or "\0" in self.staged + self.final
        ):
            raise SinkError(
                f"{sink}: a prepared transaction names files outside of the sink's directory "
                f"({self.staged!r} -> {self.final!r}); nothing was touched"
            )


class _NamedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a task, with what it does not share with the others."""

    final: str
    length: int
    rows: int


class _PartitionedFiles(msgspec.Struct, frozen=True):
    """What a task of a partitioned sink has written, all in one directory for the time being."""

    directory: str
    epoch: int
    partition: int
    files: tuple[_NamedFile, ...]


def encode_files(files: Sequence[StagedFile]) -> bytes:
    """The transaction of a task of a partitioned sink."""
    first = files[0]
    directory = str(PurePosixPath(first.staged).parent)
    named = tuple(_NamedFile(file.final, file.length, file.rows) for file in files)
    body = _PartitionedFiles(directory, first.epoch, first.partition, named)
    return seal_handle(KIND, _VERSION, msgspec.msgpack.encode(body))


def decode_files(data: bytes, ctx: CommitterContext) -> list[StagedFile]:
    """Read a transaction: the file of a task, or its files if the sink is partitioned."""
    sink = sink_label(ctx.job, ctx.uid)
    if read_handle(KIND, _VERSION, data, dict, sink).keys() >= {"files"}:
        body = read_handle(KIND, _VERSION, data, _PartitionedFiles, sink)
        files = [
            StagedFile(
                f"{body.directory}/{PurePosixPath(named.final).name}{SUFFIX}",
                named.final,
                named.length,
                named.rows,
                body.epoch,
                body.partition,
            )
            for named in body.files
        ]
    else:
        files = [read_handle(KIND, _VERSION, data, StagedFile, sink)]
    if not files:
        raise SinkError(f"{sink}: a prepared transaction names no files; nothing was touched")
    for file in files:
        file.check(sink)
    return files


def attempt_directory(root: Path, ctx: WriterContext | CommitterContext) -> Path:
    """Where this attempt of the job stages."""
    return root / SinkIdentity.of(ctx).home / str(ctx.attempt)


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

    @property
    def final(self) -> str:
        """The name it was to get in the sink's directory."""
        return self.path.name.removesuffix(SUFFIX)


def left_files(root: Path, ctx: CommitterContext) -> Iterator[LeftFile]:
    """What a sink has staged and nobody has committed or removed; links are not followed."""
    own = SinkIdentity.of(ctx)
    for home in sorted({own.home, own.without_directory.home}):
        for attempt in attempt_directories(root, root / home):
            yield from staged_files(attempt)


def all_homes(root: Path, ctx: CommitterContext) -> list[Path]:
    """Where sinks of this job have staged, under whatever uid and id; links are not followed."""
    bases = {root / job_home(ctx.job), root / job_home(ctx.job, ctx.directory_id)}
    found = [
        PurePosixPath(path.relative_to(root))
        for base in bases
        for path in base.glob("*/*")
        if path.is_dir() and path.resolve().is_relative_to(root.resolve())
    ]
    return sorted(root / home for home in homes_of(ctx, found) if not (root / home).is_symlink())


def attempt_directories(root: Path, home: Path) -> list[Path]:
    """The directories of attempts in the home of a sink; links are not followed."""
    if not home.is_dir() or not home.resolve().is_relative_to(root.resolve()):
        return []
    return [
        path
        for path in sorted(home.iterdir())
        if path.name.isdecimal() and path.is_dir() and not path.is_symlink()
    ]


def staged_files(directory: Path) -> Iterator[LeftFile]:
    """The files in the directory of an attempt."""
    for path in sorted(directory.iterdir()):
        task = task_of(path.name)
        if task is not None and not path.is_symlink():
            yield LeftFile(path, path.stat().st_size, int(directory.name), task[0])


def explain_files(files: Sequence[StagedFile], root: Path | None) -> TransactionInfo:
    """Describe what waits for its commit; `root` is the sink's directory, if known."""
    first = files[0]
    path = None if root is None else str(root / first.staged)
    many = len(files) > 1
    return TransactionInfo(
        what=f"{first.final} and {len(files) - 1} more" if many else first.final,
        id=None if path is None else writer_id(path),
        epoch=first.epoch,
        rows=sum(file.rows for file in files),
        bytes=sum(file.length for file in files),
        path=path,
        problem=next(filter(None, (_problem(file, root) for file in files)), None),
    )


def writer_id(path: str) -> str:
    """What all files have in common that one task has staged."""
    match = _STAGED_NAME.search(path)
    return path if match is None or match["number"] is None else path[: match.start("number")]


def _problem(file: StagedFile, root: Path | None) -> str | None:
    if root is None:
        return "its staging location is not recorded"
    staged = root / file.staged
    final = root / file.final
    try:
        if staged.is_file():
            return None
        if final.is_file():
            return "already published, but not recorded"
        if PublishRecord(root, 0).covers(file):
            return "already published and removed by its reader, but not recorded"
    except OSError as error:
        return f"cannot read {staged}: {error.strerror or error}"
    except TurnbackError as error:
        return str(error)
    return f"neither {staged} nor {final} exists on this machine"


_PUBLISHED = "published"
_PUBLISHED_FORMAT = 1
_NAME = re.compile(r"published-([1-9][0-9]*)")  # no reader of *.json takes it for data
_ATTEMPTS = 1000
"""How many attempts a record covers; files of others are never taken for published."""

Epochs = dict[int, int]
"""By the attempt that staged files, the newest epoch of which some may have been published.

Attempts are kept apart because epochs are counted again when a job turns back.
"""


class _Record(msgspec.Struct, frozen=True):
    """`dropped` has, by attempt, files of these epochs that were rolled back instead."""

    epochs: Epochs
    dropped: dict[int, tuple[str, ...]] = {}

    def joined(self, other: _Record) -> _Record:
        epochs = dict(self.epochs)
        for attempt, epoch in other.epochs.items():
            epochs[attempt] = max(epoch, epochs.get(attempt, epoch))
        dropped = dict(self.dropped)
        for attempt, names in other.dropped.items():
            dropped[attempt] = tuple(sorted({*names, *dropped.get(attempt, ())}))
        newest = sorted(epochs)[-_ATTEMPTS:]
        return _Record(
            {attempt: epochs[attempt] for attempt in newest},
            {attempt: dropped[attempt] for attempt in newest if attempt in dropped},
        )

    def covers(self, attempt: int, epoch: int) -> bool:
        return self.epochs.get(attempt, -1) >= epoch


class PublishRecord:
    """What attempts of a sink may have published.

    Each attempt that commits writes a file of its own, beside the directories where attempts stage:
    one that was replaced without knowing it cannot turn the record of its successor back.
    """

    def __init__(self, root: Path, attempt: int) -> None:
        self._root = root
        self._storage = LocalStorage(root, Access.UMASK)
        self._attempt = attempt
        self._own: dict[PurePosixPath, _Record] = {}

    def covers(self, file: StagedFile) -> bool:
        """Whether a file may have been published; raises `StorageError` if a record is bad."""
        if file.attempt is None:
            return False
        record = self._read(file.home)
        rolled_back = file.name in record.dropped.get(file.attempt, ())
        return record.covers(file.attempt, file.epoch) and not rolled_back

    def newest(self, home: PurePosixPath) -> tuple[int, int] | None:
        """The newest attempt of which files may have been published, and its newest epoch."""
        return max(self._read(home).epochs.items(), default=None)

    def cut(self, home: PurePosixPath, attempt: int, epoch: int | None) -> None:
        """Forget what the newest attempt has published, after an epoch or, without one, at all."""
        for path in self._paths(home):
            record = self._get(path)
            epochs = dict(record.epochs)
            known = epochs.pop(attempt, None)
            if known is not None and epoch is not None:
                epochs[attempt] = min(known, epoch)
            self._put(path, _Record(epochs, record.dropped))

    def extend(self, files: Iterable[StagedFile]) -> None:
        """Record that files are about to be published; if it raises, nothing may be."""
        new: dict[PurePosixPath, _Record] = {}
        for file in files:
            if file.attempt is not None:
                known = new.get(file.home, _Record({}))
                new[file.home] = known.joined(_Record({file.attempt: file.epoch}))
        for home, record in new.items():
            self._write(home, record)

    def drop(self, home: PurePosixPath, files: Iterable[LeftFile]) -> None:
        """Record that staged files are about to be rolled back; if it raises, none may be.

        Otherwise one that is gone would count as published and taken away by its reader, if its
        driver was killed in the middle of the renames of its epoch.
        """
        record = self._read(home)
        dropped: dict[int, tuple[str, ...]] = {}
        for file in files:
            if record.covers(file.attempt, file.epoch):
                dropped[file.attempt] = (*dropped.get(file.attempt, ()), file.final)
        if dropped:
            self._write(home, _Record({}, dropped))

    def _write(self, home: PurePosixPath, new: _Record) -> None:
        first = home not in self._own
        known = self._read(home) if first else self._own[home]
        joined = known.joined(new)
        if joined == known:
            return
        self._put(str(home / f"published-{self._attempt}"), joined)
        self._own[home] = joined
        if first:
            for older, writer in self._paths(home).items():
                if writer < self._attempt:
                    self._storage.delete(older)

    def _read(self, home: PurePosixPath) -> _Record:
        while True:
            record = _Record({})
            try:
                for path in self._paths(home):
                    record = record.joined(self._get(path))
                return record
            except NotFoundError:
                continue  # it was joined into a newer one meanwhile

    def _get(self, path: str) -> _Record:
        name = f"{self._storage.uri}/{path}"
        data = self._storage.get(path)
        return decode_document(_PUBLISHED, _PUBLISHED_FORMAT, data, name, _Record)

    def _put(self, path: str, record: _Record) -> None:
        self._storage.put(path, encode_document(_PUBLISHED, _PUBLISHED_FORMAT, record))

    def _paths(self, home: PurePosixPath) -> dict[str, int]:
        """The files there are, and the attempts that wrote them."""
        directory = self._root / home
        names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        return {str(home / m[0]): int(m[1]) for m in map(_NAME.fullmatch, names) if m}
