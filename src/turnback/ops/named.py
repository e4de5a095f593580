"""From what a person calls a snapshot of a job to the snapshot. Paths are never followed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from turnback.coordinator.catalog import SavepointCatalog, SavepointEntry
from turnback.coordinator.jobdir import JobDirectory
from turnback.core.errors import CheckpointNotFoundError
from turnback.ops.place import shown
from turnback.runtime.locate import load_savepoint, locate
from turnback.runtime.snapshot import Snapshot
from turnback.runtime.storageref import StorageRef

_CHECKPOINT = re.compile(r"(?:chk-)?[0-9]{1,18}|latest", re.IGNORECASE)


def named_snapshot(directory: JobDirectory, text: str, options: Mapping[str, str]) -> Snapshot:
    """Return a snapshot of a job; see `Job.snapshot`."""
    given = text.strip()
    ref = StorageRef(directory.storage.uri, dict(options))
    if _CHECKPOINT.fullmatch(given):
        return locate(given.lower(), ref)
    entry = _entry(SavepointCatalog(directory.storage), given)
    if entry is not None:
        return _savepoint(entry, ref)
    if not _is_time(given):
        raise CheckpointNotFoundError(
            f"job {directory.name!r} has no snapshot {given!r}: write 'latest', 'chk-7', the id "
            "or label of a savepoint, or a time such as 2026-01-31T12:00:00"
        )
    return locate(given, ref)


def _entry(catalog: SavepointCatalog, given: str) -> SavepointEntry | None:
    entries = catalog.list()[::-1]
    named = [e for e in entries if e.id == given] or [e for e in entries if e.label == given]
    return named[0] if named else None


def _savepoint(entry: SavepointEntry, ref: StorageRef) -> Snapshot:
    found = load_savepoint(entry.path, ref.options)
    if found.metadata is None or found.metadata.id != entry.id:
        raise CheckpointNotFoundError(
            f"savepoint {entry.id} is gone: {shown(entry.path)} holds another one"
        )
    return found


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
