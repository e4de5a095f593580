"""Deletes savepoints that nobody needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turnback.coordinator.catalog import SavepointCatalog
from turnback.coordinator.find import resume_point
from turnback.coordinator.jobdir import JobDirectory
from turnback.coordinator.log import CheckpointLog
from turnback.core.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    NotFoundError,
    StorageError,
)
from turnback.ops.place import plain
from turnback.runtime.snapshot import Snapshot
from turnback.runtime.storageref import storage_of
from turnback.savepoint.directory import SavepointDirectory


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
