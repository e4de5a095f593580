"""The savepoints of a job, for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from turnback.coordinator.catalog import SavepointEntry
from turnback.core.errors import ConfigurationError, NotFoundError, StorageError
from turnback.ops.model import SavepointRow
from turnback.ops.place import shown

METADATA = "_metadata.json"


def savepoint_rows(
    entries: Iterable[SavepointEntry],
    job: str,
    script: tuple[str, ...],
    options: Mapping[str, str] | None,
) -> list[SavepointRow]:
    """Return the savepoints of a job, newest first.

    Args:
        entries: Their records, oldest first.
        job: The job.
        script: The program that took them, with its arguments; empty if that is not known.
        options: Settings of the storage they are in.
    """
    rows = [_row(entry, job, script, options) for entry in entries]
    return rows[::-1]


def exists(path: str, options: Mapping[str, str] | None) -> bool | None:
    """Return whether a complete savepoint is at a location; None if that cannot be told."""
    from turnback.savepoint.directory import SavepointDirectory

    try:
        SavepointDirectory.locate(path, options).storage.get(METADATA)
    except NotFoundError:
        return False
    except (StorageError, ConfigurationError):
        return None
    return True


def restore_command(path: str, script: tuple[str, ...]) -> str:
    """Return the command that starts a job from a savepoint."""
    return shlex.join(["turnback", "run", "-s", shown(path), *(script or ("job.py",))])


def _row(
    entry: SavepointEntry, job: str, script: tuple[str, ...], options: Mapping[str, str] | None
) -> SavepointRow:
    return SavepointRow(
        id=entry.id,
        job=job,
        path=shown(entry.path),
        created_ms=entry.created_ms,
        checkpoint=entry.checkpoint,
        epoch=entry.epoch,
        label=entry.label,
        note=entry.note,
        scheduled=entry.scheduled,
        bytes=entry.bytes,
        exists=exists(entry.path, options),
        restore=restore_command(entry.path, script),
    )
