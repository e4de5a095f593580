"""What nothing needs any more: found first, and removed after another check."""

from __future__ import annotations

import re
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.retention import attempt_of
from turnback.errors import (
    CheckpointError,
    ConfigurationError,
    JobNotFoundError,
    NotFoundError,
    StillNeededError,
    StorageError,
)
from turnback.job.catalog import SavepointCatalog
from turnback.job.liveness import LOST, is_terminal
from turnback.snapshot.directory import is_mark
from turnback.snapshot.find import resume_point
from turnback.snapshot.metadata import FILES, METADATA, SOURCES, STATE
from turnback.storage.base import HasLeftovers, Storage
from turnback.storage.locations import display_path, is_below, resolved
from turnback.storage.open import open_storage
from turnback.views.job import ENDED, Job
from turnback.views.jobs import Jobs
from turnback.views.model import View
from turnback.views.snapshots import exists
from turnback.views.summary import UNREADABLE
from turnback.worker.local_state import LocalStores, StoreOwner, all_stores


class GarbageKind(StrEnum):
    """Why something is there that nothing needs."""

    FILES = "unused files"
    """State or offsets of an attempt, which no checkpoint references."""
    HALF_WRITTEN = "half-written files"
    """Files whose writers were killed."""
    SAVEPOINT = "partial savepoint"
    """A savepoint that was begun and will never be complete."""
    RECORD = "savepoint record"
    """The job's record of a savepoint that is gone."""
    STORES = "local stores"
    """Caches of state on this machine, of a job that does not use them any more."""
    RUN = "run directory"
    """What a launch that is over has left on this machine."""


class Garbage(View, frozen=True):
    """Something that nothing needs any more; `root` is the directory of the jobs it is of."""

    kind: GarbageKind
    path: str
    bytes: int
    reason: str
    job: str | None
    root: str


class Skipped(View, frozen=True, kw_only=True):
    """Something that was left alone, because it may still be needed."""

    path: str
    reason: str
    job: str | None = None


_FOLDER = re.compile(r"(state|offsets)/([0-9]+)")


def why_in_use(job: Job) -> str | None:
    """Return why the files of a job have to be left alone, None if no driver can need them."""
    summary = job.summary()
    if summary.state == UNREADABLE:
        return f"it cannot be read: {summary.problem}"
    if is_terminal(summary.state):
        return None
    driver = summary.driver
    if driver is None:
        return "no driver has reported yet; one may be starting"
    where = f"pid {driver.pid} on {driver.host}"
    if driver.alive:
        return f"it is {summary.state} ({where})"
    if driver.alive is None:
        return f"it is {summary.state} by its driver's last report ({where}), which may still run"
    return None if summary.state == LOST else "its supervisor is restarting it"


def unused_files(job: Job, root: str) -> Iterator[Garbage]:
    """Find what attempts of a job that does not run have left, by attempt.

    Raises `StillNeededError` if a checkpoint cannot be read, because it may need any file.
    """
    by_attempt: dict[tuple[str, int], list[int]] = defaultdict(list)
    for path, size in _unreferenced(job).items():
        folder, attempt, _ = path.split("/", 2)
        by_attempt[folder, int(attempt)].append(size)
    directory = display_path(job.directory.storage.uri)
    for (folder, number), sizes in sorted(by_attempt.items()):
        reason = f"no checkpoint needs these {len(sizes)} files of attempt {number}"
        path = f"{directory}/{folder}/{number}"
        yield Garbage(GarbageKind.FILES, path, sum(sizes), reason, job.name, root)


def remove_unused_files(job: Job, unused: Garbage) -> None:
    """Delete what no checkpoint needs, after reading the checkpoints again."""
    _require_idle(job)
    folder = unused.path.removeprefix(f"{display_path(job.directory.storage.uri)}/")
    if not _FOLDER.fullmatch(folder):
        raise StillNeededError(f"{unused.path} contains no state of job {job.name!r}")
    unneeded = _unreferenced(job, folder)
    # Once more: a driver says that it starts before it writes, so nothing of it is in the list.
    _require_idle(job)
    for path in unneeded:
        job.directory.storage.delete(path)


def half_written(job: Job, root: str) -> Iterator[Garbage]:
    """Find the files whose writers were killed, of a job that does not run."""
    storage = job.directory.storage
    sizes = storage.leftovers() if isinstance(storage, HasLeftovers) else {}
    if sizes:
        reason = f"the writers of {len(sizes)} files were killed"
        path = display_path(storage.uri)
        size = sum(sizes.values())
        yield Garbage(GarbageKind.HALF_WRITTEN, path, size, reason, job.name, root)


def remove_half_written(job: Job) -> None:
    """Delete the files whose writers were killed."""
    _require_idle(job)
    storage = job.directory.storage
    if isinstance(storage, HasLeftovers):
        storage.leftovers(remove=True)


def _require_idle(job: Job) -> None:
    busy = why_in_use(job)
    if busy is not None:
        raise StillNeededError(f"keeping the files of job {job.name!r}: {busy}")


def _unreferenced(job: Job, folder: str | None = None) -> dict[str, int]:
    """Return the files that no checkpoint references, with their sizes.

    Only those of attempts that the log knows: a driver that starts right now writes those of the
    next attempt, and needs nothing else that no checkpoint references.
    """
    storage = job.directory.storage
    # Listed before the log is read: what is written later is not considered.
    listed: dict[str, int] = {}
    for directory in (folder,) if folder is not None else ("state", "offsets"):
        listed |= storage.sizes(directory)
    log = CheckpointLog(storage)
    scan = log.scan()
    for number, error in scan.unreadable.items():
        raise StillNeededError(f"chk-{number} cannot be read, and may need any file: {error}")
    numbers = log.numbers()
    try:
        newest = log.get(numbers[-1]).attempt if numbers else 0
        point = resume_point(log, job.directory)
    except (StorageError, CheckpointError) as error:
        raise StillNeededError(f"the snapshot that it resumes from is unknown: {error}") from error
    needed = {path for manifest in scan.manifests for path in manifest.files()}
    if point is not None and point.manifest is not None:
        needed.update(point.manifest.files())  # the log may have dropped it
    return {
        path: size
        for path, size in listed.items()
        if path not in needed and 1 <= (attempt_of(path) or 0) <= newest
    }


_LOCAL_DIR = "state.backend.local-dir"


def unused_stores(
    jobs: Sequence[Job], root: str, local_dirs: Iterable[str]
) -> Iterator[Garbage | Skipped]:
    """Find the local stores whose job is below a root and does not use them.

    They are searched for in `local_dirs`, the machine's default places and those the jobs name.
    Those of a job that may run are not mentioned: they are in use, as the job is.
    """
    named = [directory for job in jobs for directory in _local_dirs_of(job)]
    for stores in all_stores([*local_dirs, *named]):
        owner = stores.owner()
        if owner is None or not is_below(owner.directory, root):
            continue
        reason = _why_unused(owner, jobs)
        if reason is None:
            continue
        path = str(stores.path)
        if stores.is_open():
            reason = f"a process has them open, although {reason}"
            yield Skipped(path=path, reason=reason, job=owner.job)
        else:
            yield Garbage(GarbageKind.STORES, path, stores.size(), reason, owner.job, root)


def remove_unused_stores(unused: Garbage, jobs: Sequence[Job]) -> None:
    """Remove local stores, unless the job uses them again or a process has them open."""
    stores = LocalStores(Path(unused.path))
    owner = stores.owner()
    if owner is None:
        return  # somebody else was quicker
    if not is_below(owner.directory, unused.root) or _why_unused(owner, jobs) is None:
        raise StillNeededError(f"job {owner.job!r} uses them or may use them")
    try:
        if stores.is_open() or not stores.remove():
            raise StillNeededError(f"a process of job {owner.job!r} has them open")
    except OSError as error:
        raise StorageError(f"cannot delete {stores.path}: {error.strerror}") from error


def _why_unused(owner: StoreOwner, jobs: Sequence[Job]) -> str | None:
    """Return why nobody needs the stores of a job, None if somebody may."""
    directory = resolved(owner.directory)
    job = next((job for job in jobs if resolved(job.directory.storage.uri) == directory), None)
    if job is None:
        return f"{display_path(owner.directory)} no longer contains a job"
    try:
        if job.info().job_id != owner.job_id:
            return f"they belong to an earlier job {owner.job!r} with the id {owner.job_id}"
    except StorageError:
        return None
    return "the job has ended" if why_in_use(job) is None else None


def _local_dirs_of(job: Job) -> list[str]:
    """Return where a job says that its local stores are."""
    try:
        program = job.directory.program()
    except StorageError:
        return []
    return [s.value for s in program.settings if s.key == _LOCAL_DIR] if program else []


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
        raise StillNeededError(f"keeping {unneeded.path}: {error}") from error


def _runs(runs: Iterable[Path], every: Sequence[Job], root: str) -> Iterator[Garbage]:
    """Find the launches that are over, but for those that hold the last log of a job."""
    logs = [Path(log) for job in every if (log := job.summary().log) is not None]
    reason = "the launch has ended, and no job has its log there"
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
        reason = f"job {owner.name!r} began and abandoned it"
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
        raise StillNeededError(f"{partial.path} is currently being completed or deleted")
    _job_that_began(_savepoint_id(storage, marks[0]), jobs)
    for path in files:
        if path.split("/")[1] in (STATE, SOURCES, FILES):
            storage.delete(path)
    for mark in marks:
        storage.delete(mark)
    inside = open_storage(partial.path, options)
    if isinstance(inside, HasLeftovers):
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
        reason = f"the savepoint no longer exists in {display_path(entry.path)}"
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
        raise StillNeededError(f"{path} is currently being completed or deleted") from None
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
            raise StillNeededError(f"job {job.name!r} will write it again when it is started")
        return job
    raise StillNeededError("no job here has a request for it, so its writer is unknown")
