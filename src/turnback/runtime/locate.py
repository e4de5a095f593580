"""From what a user writes ("latest", 7, a path, a time) to the snapshot that is meant."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from turnback.coordinator.catalog import SavepointCatalog, SavepointEntry
from turnback.coordinator.find import resolve, split_slot_path
from turnback.coordinator.log import CheckpointLog
from turnback.coordinator.manifest import Manifest
from turnback.core.errors import CheckpointNotFoundError
from turnback.runtime.snapshot import Snapshot
from turnback.runtime.storageref import StorageRef, storage_of
from turnback.savepoint.directory import SavepointDirectory


def locate(given: str | int, job: StorageRef) -> Snapshot:
    """Find a snapshot.

    Args:
        given: "latest" or a time, for the newest checkpoint or savepoint of the job, at all or
            before that time; a number or "chk-7", for one of its checkpoints; the path of a
            checkpoint's file, of any job; the path of a savepoint or of its metadata file.
        job: The directory of the job.

    Raises:
        CheckpointNotFoundError: There is none, or only a part of one.
        CorruptFileError: It is damaged.
        FormatVersionError: It was written by a newer version.
        ConfigurationError: The path cannot be used.
    """
    if isinstance(given, int):
        return snapshot_of_job(given, job)
    slot = split_slot_path(given)
    if slot is not None:
        return _checkpoint(*slot, job)
    if _is_path(given):
        return load_savepoint(given, job.options)
    return snapshot_of_job(given, job)


def load_savepoint(location: str, options: dict[str, str]) -> Snapshot:
    """Read what the savepoint at a path or URI says of itself."""
    directory = SavepointDirectory.locate(location, options)
    return Snapshot.of_savepoint(directory.load(), StorageRef(directory.uri, options))


def snapshot_of_job(given: str | int, job: StorageRef) -> Snapshot:
    """Find a checkpoint of the job, or one of its savepoints if that is newer.

    Args:
        given: As for `locate`, but never a path.
        job: The directory of the job.
    """
    storage = storage_of(job)
    saved, log = _savepoint(given, SavepointCatalog(storage)), CheckpointLog(storage)
    try:
        manifest = resolve(log, given)
    except CheckpointNotFoundError:
        if saved is None:
            raise
    else:
        # Order follows the numbers of checkpoints, never the clock.
        if saved is None or saved.checkpoint <= manifest.number:
            return Snapshot.of_manifest(manifest, job, log.uncommitted(manifest))
    return load_savepoint(saved.path, job.options)


def _savepoint(given: str | int, catalog: SavepointCatalog) -> SavepointEntry | None:
    if isinstance(given, int):
        return None
    if given.strip().lower() == "latest":
        return catalog.latest()
    try:
        time = datetime.fromisoformat(given.strip())
    except ValueError:
        return None
    return catalog.find(int(time.timestamp() * 1000))


def _checkpoint(root: str, number: int, job: StorageRef) -> Snapshot:
    other = StorageRef(root, job.options)
    if storage_of(other).uri == storage_of(job).uri:
        return snapshot_of_job(number, job)
    log = CheckpointLog(storage_of(other))
    found = log.get(number)
    if not isinstance(found, Manifest):
        raise CheckpointNotFoundError(f"chk-{number} in {log.uri} is the start of an attempt")
    return Snapshot.of_manifest(found, StorageRef(log.uri, job.options))


def _is_path(text: str) -> bool:
    """Whether it can only be a path: a time or a name of a checkpoint has no slash in it."""
    return "/" in text or Path(text).is_dir()
