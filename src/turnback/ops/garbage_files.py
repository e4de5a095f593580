"""Files in a job directory that nothing needs: unreferenced ones and half-written ones."""

from __future__ import annotations

import re
from collections import defaultdict

from turnback.coordinator.log import CheckpointLog
from turnback.coordinator.retention import attempt_of
from turnback.core.errors import CheckpointError, StillNeededError, StorageError
from turnback.ops.garbage_item import Garbage, GarbageKind
from turnback.ops.job import Job
from turnback.ops.liveness import LOST, UNREADABLE, is_terminal
from turnback.ops.place import shown
from turnback.storage.local import LocalStorage

_FOLDER = re.compile(r"(state|offsets)/([0-9]+)")


def why_busy(job: Job) -> str | None:
    """Return why the files of a job have to be left alone, None if no driver can need them."""
    summary = job.summary()
    if summary.state == UNREADABLE:
        return f"it cannot be read: {summary.problem}"
    if is_terminal(summary.state):
        return None
    driver = summary.driver
    if driver is None:
        return "no driver has said a word yet; one may just be starting"
    where = f"pid {driver.pid} on {driver.host}"
    if driver.alive:
        return f"it is {summary.state} ({where})"
    if driver.alive is None:
        return f"it is {summary.state} by its driver's last word ({where}), which may still run"
    return None if summary.state == LOST else "its supervisor starts it again"


def unused_files(job: Job, root: str) -> list[Garbage]:
    """Return what attempts of a job that does not run have left, by attempt.

    Raises:
        StillNeededError: A checkpoint cannot be read, so nothing is certain.
        StorageError: The storage does not answer.
    """
    by_folder: dict[str, list[int]] = defaultdict(list)
    for path, size in _unreferenced(job).items():
        by_folder["/".join(path.split("/")[:2])].append(size)
    directory = shown(job.directory.storage.uri)
    return [
        Garbage(
            kind=GarbageKind.FILES,
            path=f"{directory}/{folder}",
            bytes=sum(sizes),
            reason=f"no checkpoint needs these {len(sizes)} files of attempt "
            f"{folder.rpartition('/')[2]}",
            job=job.name,
            root=root,
        )
        for folder, sizes in sorted(by_folder.items(), key=lambda item: _order(item[0]))
    ]


def remove_unused_files(job: Job, garbage: Garbage) -> None:
    """Delete what no checkpoint needs, by a new look at the checkpoints."""
    _require_idle(job)
    folder = garbage.path.removeprefix(f"{shown(job.directory.storage.uri)}/")
    if not _FOLDER.fullmatch(folder):
        raise StillNeededError(f"{garbage.path} holds no state of job {job.name!r}")
    unneeded = _unreferenced(job, folder)
    # Once more: a driver says that it starts before it writes, so nothing of it is in the list.
    _require_idle(job)
    for path in unneeded:
        job.directory.storage.delete(path)


def half_written(job: Job, root: str) -> list[Garbage]:
    """Return the files whose writers were killed, of a job that does not run."""
    storage = job.directory.storage
    found = storage.leftovers() if isinstance(storage, LocalStorage) else {}
    if not found:
        return []
    return [
        Garbage(
            kind=GarbageKind.HALF_WRITTEN,
            path=shown(storage.uri),
            bytes=sum(found.values()),
            reason=f"the writers of {len(found)} files were killed",
            job=job.name,
            root=root,
        )
    ]


def remove_half_written(job: Job) -> None:
    """Delete the files whose writers were killed."""
    _require_idle(job)
    storage = job.directory.storage
    if isinstance(storage, LocalStorage):
        storage.remove_leftovers()


def _require_idle(job: Job) -> None:
    busy = why_busy(job)
    if busy is not None:
        raise StillNeededError(f"the files of job {job.name!r} are left alone: {busy}")


def _unreferenced(job: Job, folder: str | None = None) -> dict[str, int]:
    """Return the files that no checkpoint references, with their sizes.

    Only those of attempts that the log knows: a driver that starts right now writes those of the
    next attempt, and needs nothing else that no checkpoint references.
    """
    storage = job.directory.storage
    # Listed before the log is read: what is written later is not looked at.
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
    except (StorageError, CheckpointError) as error:
        raise StillNeededError(f"its newest attempt is not known: {error}") from error
    needed = {path for manifest in scan.manifests for path in manifest.files()}
    return {
        path: size
        for path, size in listed.items()
        if path not in needed and 1 <= (attempt_of(path) or 0) <= newest
    }


def _order(folder: str) -> tuple[str, int]:
    kind, _, attempt = folder.partition("/")
    return kind, int(attempt)
