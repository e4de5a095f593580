"""What nothing needs any more: found first, and removed after another check."""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from turnback.core.errors import (
    ConfigurationError,
    JobNotFoundError,
    NotFoundError,
    StillNeededError,
    StorageError,
)
from turnback.job.catalog import SavepointCatalog
from turnback.operations.garbage_files import (
    Garbage,
    GarbageKind,
    Skipped,
    half_written,
    remove_half_written,
    remove_unused_files,
    remove_unused_stores,
    unused_files,
    unused_stores,
    why_in_use,
)
from turnback.snapshot.directory import is_mark
from turnback.snapshot.metadata import FILES, METADATA, SOURCES, STATE
from turnback.storage.base import Storage
from turnback.storage.local import LocalStorage
from turnback.storage.locations import display_path, resolved
from turnback.storage.open import open_storage
from turnback.views.job import ENDED, Job
from turnback.views.jobs import Jobs
from turnback.views.model import View
from turnback.views.snapshots import exists


class Findings(View, frozen=True, kw_only=True):
    """The garbage that a scan has found, and what it left alone."""

    garbage: tuple[Garbage, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def scan(
    jobs: Jobs,
    savepoints_dir: str | None = None,
    runs: Iterable[Path] | None = None,
    local_dirs: Iterable[str] | None = None,
) -> Findings:
    """Find what nothing needs. Nothing is changed, and no clock decides.

    Jobs that may be running, or cannot be read, are left alone. In `savepoints_dir` are savepoints
    that may have been given up, in `local_dirs` local stores, besides those in the machine's
    default directories and those the jobs name; None to search for none. `runs` are directories of
    launches that are over.
    """
    findings = list(_scan(jobs, savepoints_dir, runs or (), local_dirs))
    return Findings(
        garbage=tuple(item for item in findings if isinstance(item, Garbage)),
        skipped=tuple(item for item in findings if isinstance(item, Skipped)),
    )


def _scan(
    jobs: Jobs, savepoints_dir: str | None, runs: Iterable[Path], local_dirs: Iterable[str] | None
) -> Iterator[Garbage | Skipped]:
    every = jobs.all()
    try:
        attempts = [job.directory.attempt(n) for job in every for n in job.directory.attempts()]
        started_from = {resolved(info.snapshot) for info in attempts if info and info.snapshot}
    except StorageError as error:
        started_from = None
        yield Skipped(path=jobs.root, reason=f"records of savepoints: {error}")
    for job in every:
        try:
            if started_from is not None:
                yield from _stale_records(job, jobs.root, started_from, jobs.options)
            in_use = why_in_use(job)
            if in_use is not None:
                raise StillNeededError(in_use)
            yield from unused_files(job, jobs.root)
            yield from half_written(job, jobs.root)
        except (StorageError, StillNeededError) as error:
            path = display_path(job.directory.storage.uri)
            yield Skipped(path=path, reason=str(error), job=job.name)
    if savepoints_dir is not None:
        try:
            yield from _partial_savepoints(savepoints_dir, every, jobs.root, jobs.options)
        except (StorageError, ConfigurationError) as error:
            yield Skipped(path=display_path(savepoints_dir), reason=str(error))
    if local_dirs is not None:
        yield from unused_stores(every, jobs.root, local_dirs)
    yield from _runs(runs, every, jobs.root)


def remove(
    unneeded: Garbage,
    options: Mapping[str, str] | None = None,
    remove_run: Callable[[Path], None] | None = None,
) -> None:
    """Remove what a scan has found, after another check whether it is needed.

    `remove_run` removes the directory of a launch. Raises `StillNeededError` if something may need
    it by now; what could not be deleted is found again by the next scan.
    """
    if unneeded.kind is GarbageKind.RUN:
        if remove_run is None:
            raise ConfigurationError(f"{unneeded.path} cannot be removed without `remove_run`")
        remove_run(Path(unneeded.path))
        return
    jobs = Jobs(unneeded.root, options)
    if unneeded.kind is GarbageKind.SAVEPOINT:
        _remove_partial(unneeded, jobs.all(), jobs.options)
    elif unneeded.kind is GarbageKind.STORES:
        remove_unused_stores(unneeded, jobs.all())
    elif unneeded.kind is GarbageKind.FILES:
        remove_unused_files(_owner(jobs, unneeded), unneeded)
    elif unneeded.kind is GarbageKind.HALF_WRITTEN:
        remove_half_written(_owner(jobs, unneeded))
    else:
        _remove_record(_owner(jobs, unneeded), unneeded, jobs.options)


def _owner(jobs: Jobs, unneeded: Garbage) -> Job:
    try:
        return jobs.get(unneeded.job or "")
    except JobNotFoundError as error:
        raise StillNeededError(f"{unneeded.path} is left alone: {error}") from error


def _runs(runs: Iterable[Path], every: Sequence[Job], root: str) -> Iterator[Garbage]:
    """Find the launches that are over, but for those that hold the last log of a job."""
    logs = [Path(log) for job in every if (log := job.summary().log) is not None]
    reason = "the launch is over, and no job has its log there"
    for run in runs:
        if not any(log.is_relative_to(run) for log in logs):
            size = sum(_size(path) for path in run.rglob("*"))
            yield Garbage(GarbageKind.RUN, str(run), size, reason, None, root)


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:
        return 0  # gone a moment ago
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


# -- savepoints


def _partial_savepoints(
    directory: str, jobs: Sequence[Job], root: str, options: Mapping[str, str] | None
) -> Iterator[Garbage | Skipped]:
    """Find the savepoints in a directory that nobody will complete.

    Only those that were requested of a job here: the directory may be shared with jobs elsewhere,
    whose drivers cannot be seen.
    """
    storage = open_storage(directory, options)
    for folder in storage.folders():
        path = display_path(storage.uri).rstrip("/") + f"/{folder}"
        files = storage.sizes(folder)
        marks = _marks(folder, files)
        if not marks or f"{folder}/{METADATA}" in files:
            continue
        try:
            owner = _job_that_began(_savepoint_id(storage, marks[0]), jobs)
        except StillNeededError as error:
            yield Skipped(path=path, reason=str(error))
            continue
        reason = f"job {owner.name!r} began it and gave it up"
        size = sum(files.values())
        yield Garbage(GarbageKind.SAVEPOINT, path, size, reason, owner.name, root)


def _remove_partial(partial: Garbage, jobs: Sequence[Job], options: Mapping[str, str]) -> None:
    """Delete a partial savepoint, the marks that it is one last."""
    parent, _, folder = partial.path.rpartition("/")
    storage = open_storage(parent, options)
    files = storage.list(folder)
    if f"{folder}/{METADATA}" in files:
        raise StillNeededError(f"{partial.path} is a complete savepoint")
    marks = _marks(folder, files)
    if not marks:
        raise StillNeededError(f"{partial.path} is being completed or removed right now")
    _job_that_began(_savepoint_id(storage, marks[0]), jobs)
    for path in files:
        if path.split("/")[1] in (STATE, SOURCES, FILES):
            storage.delete(path)
    for mark in marks:
        storage.delete(mark)
    inside = open_storage(partial.path, options)
    if isinstance(inside, LocalStorage):
        inside.leftovers(remove=True)


def _stale_records(
    job: Job, root: str, started_from: Collection[str], options: Mapping[str, str] | None
) -> Iterator[Garbage]:
    """Find a job's records of savepoints that are gone.

    Those that jobs have started from stay, because they tell where those jobs come from.
    """
    storage = job.directory.storage
    sizes = storage.sizes("savepoints")
    for entry in SavepointCatalog(storage).list():
        if resolved(entry.path) in started_from or not _is_gone(entry.path, options):
            continue
        path = f"savepoints/{entry.id}.json"
        size = sizes.get(path, 0)
        reason = f"the savepoint is gone from {display_path(entry.path)}"
        path = f"{display_path(storage.uri)}/{path}"
        yield Garbage(GarbageKind.RECORD, path, size, reason, job.name, root)


def _remove_record(job: Job, stale: Garbage, options: Mapping[str, str]) -> None:
    """Forget a savepoint that is gone, unless it is there again."""
    catalog = SavepointCatalog(job.directory.storage)
    id_ = stale.path.rpartition("/")[2].removesuffix(".json")
    try:
        entry = catalog.get(id_)
    except NotFoundError:
        return
    if not _is_gone(entry.path, options):
        raise StillNeededError(f"savepoint {id_} is at {display_path(entry.path)}")
    catalog.forget(id_)


def _is_gone(path: str, options: Mapping[str, str] | None) -> bool:
    if exists(path, options) is not False:
        return False
    location = display_path(path)
    # A disk that is not mounted holds no savepoints either.
    return not location.startswith("/") or Path(location).parent.is_dir()


def _marks(folder: str, files: Iterable[str]) -> list[str]:
    """Return the marks of all who began to write a savepoint; they all began the same one."""
    prefix = f"{folder}/"
    return [path for path in files if is_mark(path.removeprefix(prefix))]


def _savepoint_id(storage: Storage, path: str) -> str:
    try:
        mark = storage.get(path)
    except NotFoundError:
        raise StillNeededError(f"{path} is being completed or removed right now") from None
    return mark.split(b" ")[0].decode("ascii", "replace")


def _job_that_began(id_: str, jobs: Sequence[Job]) -> Job:
    """Return the job that began a savepoint and cannot complete it any more."""
    for job in jobs:
        try:
            request = job.request(id_)
        except NotFoundError:
            continue
        except StorageError as error:
            raise StillNeededError(f"job {job.name!r} may be writing it: {error}") from error
        busy = why_in_use(job)
        if busy is not None:
            raise StillNeededError(f"job {job.name!r} may be writing it: {busy}")
        if request.state not in ENDED:
            raise StillNeededError(f"job {job.name!r} will write it anew when it is started again")
        return job
    raise StillNeededError(
        "no job here has a request for it, so nobody here can tell who writes it"
    )
