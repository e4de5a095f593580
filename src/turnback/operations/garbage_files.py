"""Files of jobs, and local stores, that nothing needs any more."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.retention import attempt_of
from turnback.core.errors import CheckpointError, StillNeededError, StorageError
from turnback.job.liveness import LOST, is_terminal
from turnback.snapshot.find import resume_point
from turnback.storage.local import LocalStorage
from turnback.storage.locations import display_path, is_below, resolved
from turnback.views.job import Job
from turnback.views.model import View
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
        return "no driver has reported yet; one may just be starting"
    where = f"pid {driver.pid} on {driver.host}"
    if driver.alive:
        return f"it is {summary.state} ({where})"
    if driver.alive is None:
        return f"it is {summary.state} by its driver's last report ({where}), which may still run"
    return None if summary.state == LOST else "its supervisor starts it again"


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
        raise StillNeededError(f"{unused.path} holds no state of job {job.name!r}")
    unneeded = _unreferenced(job, folder)
    # Once more: a driver says that it starts before it writes, so nothing of it is in the list.
    _require_idle(job)
    for path in unneeded:
        job.directory.storage.delete(path)


def half_written(job: Job, root: str) -> Iterator[Garbage]:
    """Find the files whose writers were killed, of a job that does not run."""
    storage = job.directory.storage
    sizes = storage.leftovers() if isinstance(storage, LocalStorage) else {}
    if sizes:
        reason = f"the writers of {len(sizes)} files were killed"
        path = display_path(storage.uri)
        size = sum(sizes.values())
        yield Garbage(GarbageKind.HALF_WRITTEN, path, size, reason, job.name, root)


def remove_half_written(job: Job) -> None:
    """Delete the files whose writers were killed."""
    _require_idle(job)
    storage = job.directory.storage
    if isinstance(storage, LocalStorage):
        storage.leftovers(remove=True)


def _require_idle(job: Job) -> None:
    busy = why_in_use(job)
    if busy is not None:
        raise StillNeededError(f"the files of job {job.name!r} are left alone: {busy}")


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
        raise StillNeededError(f"what it goes on from is not known: {error}") from error
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
        raise StillNeededError(f"job {owner.job!r} uses them, or may do so")
    try:
        if stores.is_open() or not stores.remove():
            raise StillNeededError(f"a process has them open, of job {owner.job!r}")
    except OSError as error:
        raise StorageError(f"{stores.path} cannot be removed: {error.strerror}") from error


def _why_unused(owner: StoreOwner, jobs: Sequence[Job]) -> str | None:
    """Return why nobody needs the stores of a job, None if somebody may."""
    directory = resolved(owner.directory)
    job = next((job for job in jobs if resolved(job.directory.storage.uri) == directory), None)
    if job is None:
        return f"there is no job in {display_path(owner.directory)} any more"
    try:
        if job.info().job_id != owner.job_id:
            return f"they are of an earlier job {owner.job!r}, with the id {owner.job_id}"
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
