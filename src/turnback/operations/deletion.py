"""Deleting for good: jobs, with their directory and local stores, and savepoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from turnback.checkpoint.log import CheckpointLog
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    JobInUseError,
    NotFoundError,
    StillNeededError,
    StorageError,
)
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JOB
from turnback.operations.garbage import why_in_use
from turnback.operations.transactions import list_transactions
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.find import open_snapshot, resume_point
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import storage_of
from turnback.storage.locations import display_path, is_below, resolved
from turnback.views.job import Job
from turnback.views.jobs import Jobs
from turnback.views.model import View
from turnback.worker.local_state import all_stores


class Deleted(View, frozen=True, kw_only=True):
    """A job that is gone; `savepoints` are the paths of those that were deleted too."""

    job: str
    directory: str
    files: int
    bytes: int
    savepoints: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def delete_job(job: Job, jobs: Jobs, *, savepoints: bool = False, force: bool = False) -> Deleted:
    """Delete a job that does not run; its savepoints only if `savepoints` says so.

    Output that its sinks have written stays. `force` is for a job whose driver cannot be asked, and
    for one with output that it has promised and not committed.
    """
    refuse_to_delete(job, force=force)
    taken = [row for row in job.savepoints() if row.exists is not False]
    disposed = []
    if savepoints:
        for row in taken:
            dispose(open_snapshot(row.path, jobs, jobs.options), jobs, force=force)
            disposed.append(row.path)
    kept = tuple(row.path for row in taken if row.path not in disposed)
    storage = job.directory.storage
    directory = display_path(storage.uri)
    inside = [path for path in kept if is_below(path, directory)]
    if inside:
        raise StillNeededError(
            f"the savepoint {inside[0]} is inside the directory of job {job.name!r}: copy it "
            "elsewhere and dispose of it, or delete savepoints too with --savepoints"
        )
    sizes = storage.sizes()
    # Last of all that by which it is found, so that what could not be deleted can be tried again.
    for path in sorted(sizes, key=lambda path: (path == JOB, path)):
        storage.delete(path)
    if "://" not in directory:
        with suppress(OSError):
            Path(directory).rmdir()
    for stores in all_stores([]):
        owner = stores.owner()
        if owner is not None and resolved(owner.directory) == resolved(storage.uri):
            stores.discard(f"job {job.name!r} was deleted")
    return Deleted(
        job=job.name,
        directory=directory,
        files=len(sizes),
        bytes=sum(sizes.values()),
        savepoints=tuple(disposed),
        kept=kept,
    )


def refuse_to_delete(job: Job, *, force: bool = False) -> None:
    """Raise an error if a job must not be deleted."""
    alive = job.liveness()
    if alive.driver is not None and alive.driver.alive and alive.takes_requests:
        raise JobInUseError(
            f"job {job.name!r} is {alive.state} (pid {alive.driver.pid}): stop it first with "
            f"`turnback stop {job.name}` or `turnback cancel {job.name}`"
        )
    if force:
        return
    in_use = why_in_use(job)
    if in_use is not None:
        raise JobInUseError(
            f"job {job.name!r} may be in use: {in_use}. Stop it first; if you are sure that "
            "nothing runs it, use --force"
        )
    promised = list_transactions(job)
    if promised:
        raise StillNeededError(
            f"job {job.name!r} has {len(promised)} unresolved sink transactions, one of them of "
            f"{promised[0].sink!r}: see `turnback transactions list {job.name}`, or use --force "
            "to lose that output"
        )


def dispose(snapshot: Snapshot, jobs: Jobs, *, force: bool = False) -> None:
    """Delete a savepoint for good, unless a job needs it; the job that took it forgets it.

    If not all of it can be deleted, what is left is no savepoint any more.
    """
    if snapshot.metadata is None:
        raise ConfigurationError(
            f"{snapshot.origin.uri} is a checkpoint, and only savepoints can be disposed of: job "
            f"{snapshot.job!r} deletes checkpoints that it no longer retains"
        )
    known = jobs.all()
    if not force:
        for job in known:
            _refuse_if_needed(snapshot, job)
    try:
        SavepointDirectory(storage_of(snapshot.storage)).delete()
    finally:
        _forget(snapshot, known)


def _refuse_if_needed(snapshot: Snapshot, job: Job) -> None:
    location = snapshot.origin.uri
    try:
        point = resume_point(CheckpointLog(job.directory.storage), job.directory)
    except CheckpointNotFoundError:
        return  # it would go on from a checkpoint, which is another matter
    except StorageError as error:
        raise ConfigurationError(
            f"it is unknown whether job {job.name!r} needs {location}, because the job cannot be "
            f"read: {error}. Nothing was deleted; force the deletion if you are sure"
        ) from error
    needed = point.snapshot if point is not None else None
    if needed is not None and resolved(needed) == resolved(location):
        raise ConfigurationError(
            f"job {job.name!r} was started from {location} and has not taken a checkpoint since, "
            "so it could not start again without it. Let it take a checkpoint first, or force "
            "the deletion"
        )


def _forget(snapshot: Snapshot, jobs: Sequence[Job]) -> None:
    """Drop the record of a savepoint that is gone; one of a copy elsewhere stays."""
    assert snapshot.metadata is not None
    id = snapshot.metadata.id
    directory = SavepointDirectory(storage_of(snapshot.storage))
    for job in jobs:
        if job.name != snapshot.job:
            continue
        catalog = SavepointCatalog(job.directory.storage)
        try:
            entry = catalog.get(id)
            if resolved(entry.path) != resolved(snapshot.origin.uri):
                return
            directory.load()
        except CheckpointNotFoundError:
            catalog.forget(id)
        except (NotFoundError, ConfigurationError):
            return  # it was never recorded, or its id cannot be that of a record
