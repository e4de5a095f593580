"""The savepoints of a job, for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from turnback.checkpoint.log import CheckpointLog
from turnback.core.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    NotFoundError,
    StorageError,
)
from turnback.inspect.locations import plain, shown
from turnback.inspect.model import SavepointRow
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.directory import JobDirectory
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.find import resume_point
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import storage_of

METADATA = "_metadata.json"


def savepoint_rows(
    entries: Iterable[SavepointEntry],
    job: str,
    script: tuple[str, ...],
    options: Mapping[str, str] | None,
) -> list[SavepointRow]:
    """Return the savepoints of a job, newest first.

    Args:
        entries: Their records, oldest first.
        job: The job.
        script: The program that took them, with its arguments; empty if that is not known.
        options: Settings of the storage they are in.
    """
    rows = [_row(entry, job, script, options) for entry in entries]
    return rows[::-1]


def exists(path: str, options: Mapping[str, str] | None) -> bool | None:
    """Return whether a complete savepoint is at a location; None if that cannot be told."""
    from turnback.snapshot.directory import SavepointDirectory

    try:
        SavepointDirectory.locate(path, options).storage.get(METADATA)
    except NotFoundError:
        return False
    except (StorageError, ConfigurationError):
        return None
    return True


def restore_command(path: str, script: tuple[str, ...]) -> str:
    """Return the command that starts a job from a savepoint."""
    return shlex.join(["turnback", "run", "-s", shown(path), *(script or ("job.py",))])


def _row(
    entry: SavepointEntry, job: str, script: tuple[str, ...], options: Mapping[str, str] | None
) -> SavepointRow:
    return SavepointRow(
        id=entry.id,
        job=job,
        path=shown(entry.path),
        created_ms=entry.created_ms,
        checkpoint=entry.checkpoint,
        epoch=entry.epoch,
        label=entry.label,
        note=entry.note,
        scheduled=entry.scheduled,
        bytes=entry.bytes,
        exists=exists(entry.path, options),
        restore=restore_command(entry.path, script),
    )


class OneJob(Protocol):
    """A job, as far as its directory is concerned."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def directory(self) -> JobDirectory:
        """Its directory."""


class AllJobs(Protocol):
    """The jobs that may need a savepoint."""

    def all(self) -> Sequence[OneJob]:
        """All of them."""


def dispose(snapshot: Snapshot, jobs: AllJobs, *, force: bool = False) -> None:
    """Delete a savepoint for good; the job that took it forgets it.

    Args:
        snapshot: The savepoint.
        jobs: The jobs that may need it.
        force: Delete it even if a job would go on from it, or may do so.

    Raises:
        ConfigurationError: It is a checkpoint, or a job needs it.
        CheckpointNotFoundError: It is gone already; what the job remembers of it is, too.
        StorageError: Not all of it could be deleted. What is left is no savepoint any more.
    """
    if snapshot.metadata is None:
        raise ConfigurationError(
            f"{snapshot.origin.uri} is a checkpoint: job {snapshot.job!r} itself deletes those it "
            "does not retain any more. Only savepoints can be disposed of"
        )
    known = jobs.all()
    if not force:
        for job in known:
            _refuse_if_needed(snapshot, job)
    try:
        SavepointDirectory(storage_of(snapshot.storage)).delete()
    finally:
        _forget(snapshot, known)


def _refuse_if_needed(snapshot: Snapshot, job: OneJob) -> None:
    location = snapshot.origin.uri
    try:
        point = resume_point(CheckpointLog(job.directory.storage), job.directory)
    except CheckpointNotFoundError:
        return  # it would go on from a checkpoint, which is another matter
    except StorageError as error:
        raise ConfigurationError(
            f"whether job {job.name!r} needs {location} is not known, because it cannot be read: "
            f"{error}. Nothing was deleted; force it if you are sure"
        ) from error
    if (
        point is not None
        and point.snapshot is not None
        and plain(point.snapshot) == plain(location)
    ):
        raise ConfigurationError(
            f"job {job.name!r} was started from {location} and has taken no checkpoint since: it "
            "could not be started again without it. Let it take a checkpoint first, or force it"
        )


def _forget(snapshot: Snapshot, jobs: Sequence[OneJob]) -> None:
    """Drop the record of a savepoint that is gone; a copy of it elsewhere is not meant by it."""
    assert snapshot.metadata is not None
    id, directory = snapshot.metadata.id, SavepointDirectory(storage_of(snapshot.storage))
    for job in jobs:
        if job.name != snapshot.job:
            continue
        catalog = SavepointCatalog(job.directory.storage)
        try:
            entry = catalog.get(id)
            if plain(entry.path) != plain(snapshot.origin.uri):
                return
            directory.load()
        except CheckpointNotFoundError:
            catalog.forget(id)
        except (NotFoundError, ConfigurationError):
            return  # it was never recorded, or its id cannot be that of a record
