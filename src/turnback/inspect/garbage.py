"""What nothing needs any more, found first and removed after another look."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from turnback.core.errors import (
    ConfigurationError,
    JobNotFoundError,
    StillNeededError,
    StorageError,
)
from turnback.inspect.garbage_files import (
    Garbage,
    GarbageKind,
    Skipped,
    half_written,
    remove_half_written,
    remove_unused_files,
    remove_unused_stores,
    unused_files,
    unused_stores,
    why_busy,
)
from turnback.inspect.garbage_savepoints import (
    partial_savepoints,
    remove_partial,
    remove_record,
    stale_records,
)
from turnback.inspect.job import Job
from turnback.inspect.jobs import Jobs
from turnback.inspect.locations import plain, shown
from turnback.inspect.model import View

__all__ = [
    "Findings",
    "Garbage",
    "GarbageKind",
    "Skipped",
    "find_garbage",
    "remove",
    "scan",
]


class Findings(View, frozen=True, kw_only=True):
    """What a look for garbage found, and what it left alone."""

    garbage: tuple[Garbage, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def find_garbage(
    jobs: Jobs, savepoints_dir: str | None = None, runs: Iterable[Path] | None = None
) -> list[Garbage]:
    """Return what nothing needs; see `scan`, which also tells what was left alone."""
    return list(scan(jobs, savepoints_dir, runs).garbage)


def scan(
    jobs: Jobs,
    savepoints_dir: str | None = None,
    runs: Iterable[Path] | None = None,
    local_dirs: Iterable[str] | None = None,
) -> Findings:
    """Look for what nothing needs. Nothing is changed, and no clock decides.

    Args:
        jobs: The jobs; those that may be running are left alone.
        savepoints_dir: Where savepoints are written to, to find those that were given up.
        runs: Directories of launches of jobs below this root that are over.
        local_dirs: Where local stores are on this machine, besides its default places and those
            the jobs name; None to look for none.

    Raises:
        StorageError: The root does not answer; a job or a savepoint directory that does not is
            left alone.
    """
    every = jobs.all()
    garbage: list[Garbage] = []
    skipped: list[Skipped] = []
    try:
        started_from = {plain(place) for job in every for place in _origins(job)}
    except StorageError as error:
        started_from = None
        skipped.append(Skipped(path=jobs.root, reason=f"records of savepoints: {error}"))
    for job in every:
        try:
            if started_from is not None:
                garbage += stale_records(job, jobs.root, started_from, jobs.options)
            busy = why_busy(job)
            if busy is not None:
                raise StillNeededError(busy)
            garbage += unused_files(job, jobs.root) + half_written(job, jobs.root)
        except (StorageError, StillNeededError) as error:
            path = shown(job.directory.storage.uri)
            skipped.append(Skipped(path=path, reason=str(error), job=job.name))
    if savepoints_dir is not None:
        found, left = _partial(savepoints_dir, every, jobs)
        garbage += found
        skipped += left
    if local_dirs is not None:
        found, left = unused_stores(every, jobs.root, local_dirs)
        garbage += found
        skipped += left
    garbage += _runs(runs or (), every, jobs.root)
    return Findings(garbage=tuple(garbage), skipped=tuple(skipped))


def remove(
    garbage: Garbage,
    options: Mapping[str, str] | None = None,
    remove_run: Callable[[Path], None] | None = None,
) -> None:
    """Remove something, after another look at whether it is needed.

    Args:
        garbage: From `scan`.
        options: Settings of the storage.
        remove_run: Removes the directory of a launch that is over; needed for those only.

    Raises:
        StillNeededError: Something may need it by now; it was left alone.
        StorageError: The storage refused; what was not deleted is found again.
    """
    if garbage.kind is GarbageKind.RUN:
        if remove_run is None:
            raise ConfigurationError(f"{garbage.path} cannot be removed without `remove_run`")
        remove_run(Path(garbage.path))
        return
    jobs = Jobs(garbage.root, options)
    if garbage.kind is GarbageKind.SAVEPOINT:
        remove_partial(garbage, jobs.all(), jobs.options)
        return
    if garbage.kind is GarbageKind.STORES:
        remove_unused_stores(garbage, jobs.all())
        return
    job = _owner(jobs, garbage)
    if garbage.kind is GarbageKind.FILES:
        remove_unused_files(job, garbage)
    elif garbage.kind is GarbageKind.HALF_WRITTEN:
        remove_half_written(job)
    else:
        remove_record(job, garbage, jobs.options)


def _owner(jobs: Jobs, garbage: Garbage) -> Job:
    try:
        return jobs.get(garbage.job or "")
    except JobNotFoundError as error:
        raise StillNeededError(f"{garbage.path} is left alone: {error}") from error


def _partial(
    directory: str, every: Sequence[Job], jobs: Jobs
) -> tuple[list[Garbage], list[Skipped]]:
    try:
        return partial_savepoints(directory, every, jobs.root, jobs.options)
    except (StorageError, ConfigurationError) as error:
        return [], [Skipped(path=shown(directory), reason=str(error))]


def _runs(runs: Iterable[Path], every: Sequence[Job], root: str) -> list[Garbage]:
    """Return the launches that are over, but for those that hold the last log of a job."""
    logs = [Path(log) for job in every if (log := job.summary().log) is not None]
    found = []
    for run in runs:
        if any(log.is_relative_to(run) for log in logs):
            continue
        found.append(
            Garbage(
                kind=GarbageKind.RUN,
                path=str(run),
                bytes=sum(_size(path) for path in run.rglob("*")),
                reason="the launch is over, and no job has its log there",
                job=None,
                root=root,
            )
        )
    return found


def _size(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0  # gone a moment ago
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _origins(job: Job) -> list[str]:
    directory = job.directory
    infos = [directory.attempt(number) for number in directory.attempts()]
    return [info.snapshot for info in infos if info is not None and info.snapshot is not None]
