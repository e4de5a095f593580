"""Deleting a job: its directory and its local stores, for good."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from turnback.core.errors import JobInUseError, StillNeededError
from turnback.inspect.garbage_files import why_in_use
from turnback.inspect.job import Job
from turnback.inspect.jobs import Deleted, Jobs, dispose
from turnback.inspect.locations import display_path, is_below
from turnback.inspect.transactions import list_transactions
from turnback.job.directory import JOB
from turnback.snapshot.find import open_snapshot
from turnback.worker.local_state import all_stores


def delete_job(job: Job, jobs: Jobs, *, savepoints: bool = False, force: bool = False) -> Deleted:
    """Delete a job that does not run; its savepoints only if `savepoints` says so.

    Output that its sinks have written stays. `force` is for a job whose driver cannot be asked, and
    for one with output that it has promised and not committed.

    Raises:
        JobInUseError: It runs, or may do so.
        StillNeededError: Somebody has yet to settle what its sinks have promised, or another job
            needs one of the savepoints.
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
        if owner is not None and owner.directory == storage.uri:
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
            f"job {job.name!r} may be in use: {in_use}. Stop it first; if you know that nothing "
            "runs it, give --force"
        )
    promised = list_transactions(job)
    if promised:
        raise StillNeededError(
            f"job {job.name!r} has {len(promised)} transactions of sinks that are not settled, one "
            f"of them of {promised[0].sink!r}: see `turnback transactions {job.name}`, or give "
            "--force to lose that output"
        )
