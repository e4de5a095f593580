"""Savepoints that will never be complete, and records of savepoints that are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from turnback.core.errors import NotFoundError, StillNeededError, StorageError
from turnback.inspect.garbage_files import Garbage, GarbageKind, Skipped, why_busy
from turnback.inspect.job import Job
from turnback.inspect.locations import plain, shown
from turnback.inspect.snapshots import exists
from turnback.job.catalog import SavepointCatalog
from turnback.snapshot.metadata import METADATA
from turnback.storage.base import Storage
from turnback.storage.local import LocalStorage
from turnback.storage.open import open_storage

WRITING = "_writing"
_OURS = ("state", "sources", "files")
_ENDED = ("COMPLETED", "FAILED")


def partial_savepoints(
    directory: str, jobs: Sequence[Job], root: str, options: Mapping[str, str] | None
) -> tuple[list[Garbage], list[Skipped]]:
    """Return the savepoints in a directory that nobody will complete.

    Only those that a job here was asked for: the directory may be shared with jobs elsewhere,
    whose drivers cannot be seen.

    Args:
        directory: Where savepoints are.
        jobs: The jobs of this root.
        root: The directory of those jobs.
        options: Settings of the storage.

    Raises:
        StorageError: The storage does not answer.
    """
    storage = open_storage(directory, options)
    found: list[Garbage] = []
    skipped: list[Skipped] = []
    for folder in storage.folders():
        place = shown(storage.uri).rstrip("/") + f"/{folder}"
        files = storage.sizes(folder)
        marks = _marks(folder, files)
        if not marks or f"{folder}/{METADATA}" in files:
            continue
        try:
            owner = _owner(_id(storage, marks[0]), jobs)
        except StillNeededError as error:
            skipped.append(Skipped(path=place, reason=str(error)))
            continue
        found.append(
            Garbage(
                kind=GarbageKind.SAVEPOINT,
                path=place,
                bytes=sum(files.values()),
                reason=f"job {owner.name!r} began it and gave it up",
                job=owner.name,
                root=root,
            )
        )
    return found, skipped


def remove_partial(garbage: Garbage, jobs: Sequence[Job], options: Mapping[str, str]) -> None:
    """Delete a partial savepoint, the marks that it is one last.

    Raises:
        StillNeededError: It is complete, or somebody may complete it.
    """
    parent, _, folder = garbage.path.rpartition("/")
    storage = open_storage(parent, options)
    files = storage.list(folder)
    if f"{folder}/{METADATA}" in files:
        raise StillNeededError(f"{garbage.path} is a complete savepoint")
    marks = _marks(folder, files)
    if not marks:
        raise StillNeededError(f"{garbage.path} is being completed or removed right now")
    _owner(_id(storage, marks[0]), jobs)
    for path in files:
        if path.split("/")[1] in _OURS:
            storage.delete(path)
    for mark in marks:
        storage.delete(mark)
    inside = open_storage(garbage.path, options)
    if isinstance(inside, LocalStorage):
        inside.remove_leftovers()


def stale_records(
    job: Job, root: str, started_from: Collection[str], options: Mapping[str, str] | None
) -> list[Garbage]:
    """Return the records of savepoints of a job that are gone.

    Args:
        job: The job.
        root: The directory of all jobs.
        started_from: Where the snapshots are that jobs have started from; their records stay,
            because they tell where those jobs come from.
        options: Settings of the storage.
    """
    storage = job.directory.storage
    sizes = storage.sizes("savepoints")
    found = []
    for entry in SavepointCatalog(storage).list():
        if plain(entry.path) in started_from or not _is_gone(entry.path, options):
            continue
        path = f"savepoints/{entry.id}.json"
        found.append(
            Garbage(
                kind=GarbageKind.RECORD,
                path=f"{shown(storage.uri)}/{path}",
                bytes=sizes.get(path, 0),
                reason=f"the savepoint is gone from {shown(entry.path)}",
                job=job.name,
                root=root,
            )
        )
    return found


def remove_record(job: Job, garbage: Garbage, options: Mapping[str, str]) -> None:
    """Forget a savepoint that is gone.

    Raises:
        StillNeededError: It is there again.
    """
    catalog = SavepointCatalog(job.directory.storage)
    id_ = garbage.path.rpartition("/")[2].removesuffix(".json")
    try:
        entry = catalog.get(id_)
    except NotFoundError:
        return
    if not _is_gone(entry.path, options):
        raise StillNeededError(f"savepoint {id_} is at {shown(entry.path)}")
    catalog.forget(id_)


def _is_gone(path: str, options: Mapping[str, str] | None) -> bool:
    if exists(path, options) is not False:
        return False
    place = shown(path)
    # A disk that is not mounted holds no savepoints either.
    return not place.startswith("/") or Path(place).parent.is_dir()


def _marks(folder: str, files: Iterable[str]) -> list[str]:
    """Return the marks of all who began to write a savepoint; they all began the same one."""
    mark = f"{folder}/{WRITING}"
    return [path for path in files if path == mark or path.startswith(f"{mark}-")]


def _id(storage: Storage, path: str) -> str:
    try:
        mark = storage.get(path)
    except NotFoundError:
        raise StillNeededError(f"{path} is being completed or removed right now") from None
    return mark.split(b" ")[0].decode("ascii", "replace")


def _owner(id_: str, jobs: Sequence[Job]) -> Job:
    """Return the job that began a savepoint and cannot complete it any more."""
    for job in jobs:
        try:
            request = job.request(id_)
        except NotFoundError:
            continue
        except StorageError as error:
            raise StillNeededError(f"job {job.name!r} may be writing it: {error}") from error
        busy = why_busy(job)
        if busy is not None:
            raise StillNeededError(f"job {job.name!r} may be writing it: {busy}")
        if request.state not in _ENDED:
            raise StillNeededError(f"job {job.name!r} will write it anew when it is started again")
        return job
    raise StillNeededError("no job here was asked for it, so nobody here can tell who writes it")
