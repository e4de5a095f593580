"""Local stores on this machine that no job below a root uses any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from turnback.core.errors import StillNeededError, StorageError
from turnback.ops.garbage_files import why_busy
from turnback.ops.garbage_item import Garbage, GarbageKind, Skipped
from turnback.ops.job import Job
from turnback.ops.place import is_below, resolved, shown
from turnback.runtime.localstores import LocalStores, StoreOwner, all_stores

_LOCAL_DIR = "state.backend.local-dir"


def unused_stores(
    jobs: Sequence[Job], root: str, local_dirs: Iterable[str]
) -> tuple[list[Garbage], list[Skipped]]:
    """Return the local stores whose job is below a root and does not use them.

    Those of a job that may run are not mentioned: they are in use, as the job is.

    Args:
        jobs: All jobs below the root.
        root: The directory of all jobs.
        local_dirs: Where to look, besides the machine's default places and those the jobs name.
    """
    garbage: list[Garbage] = []
    skipped: list[Skipped] = []
    named = [place for job in jobs for place in _local_dirs_of(job)]
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
            skipped.append(Skipped(path=path, reason=reason, job=owner.job))
            continue
        garbage.append(
            Garbage(
                kind=GarbageKind.STORES,
                path=path,
                bytes=stores.size(),
                reason=reason,
                job=owner.job,
                root=root,
            )
        )
    return garbage, skipped


def remove_unused_stores(garbage: Garbage, jobs: Sequence[Job]) -> None:
    """Remove local stores, by a new look at the job.

    Raises:
        StillNeededError: The job uses them again, or a process has them open.
        StorageError: The file system refused.
    """
    stores = LocalStores(Path(garbage.path))
    owner = stores.owner()
    if owner is None:
        return  # somebody else was quicker
    if not is_below(owner.directory, garbage.root) or _why_unused(owner, jobs) is None:
        raise StillNeededError(f"job {owner.job!r} uses them, or may do so")
    try:
        if stores.is_open() or not stores.remove():
            raise StillNeededError(f"a process has them open, of job {owner.job!r}")
    except OSError as error:
        raise StorageError(f"{stores.path} cannot be removed: {error.strerror}") from error


def _why_unused(owner: StoreOwner, jobs: Sequence[Job]) -> str | None:
    """Return why nobody needs the stores of a job, None if somebody may."""
    place = resolved(owner.directory)
    job = next((job for job in jobs if resolved(job.directory.storage.uri) == place), None)
    if job is None:
        return f"there is no job in {shown(owner.directory)} any more"
    try:
        if job.info().job_id != owner.job_id:
            return f"they are of an earlier job {owner.job!r}, with the id {owner.job_id}"
    except StorageError:
        return None
    return "the job has ended" if why_busy(job) is None else None


def _local_dirs_of(job: Job) -> list[str]:
    """Return where a job says that its local stores are."""
    try:
        program = job.directory.program()
    except StorageError:
        return []
    return [s.value for s in program.settings if s.key == _LOCAL_DIR] if program else []
