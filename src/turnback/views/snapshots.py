"""What is in a snapshot without its rows, and the savepoints of a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    NotFoundError,
    StorageError,
)
from turnback.job.catalog import SavepointEntry, SavepointReplay
from turnback.job.directory import JobDirectory
from turnback.job.run import StartedProgram
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import METADATA, SavepointMetadata, decode
from turnback.snapshot.snapshot import Snapshot, state_rows
from turnback.state.files import storage_of
from turnback.storage.locations import display_path
from turnback.views.model import OperatorNode, SavepointRow, SnapshotView


@contextmanager
def reading(*snapshots: Snapshot) -> Iterator[None]:
    """While snapshots are read: report one that was dropped as such, not as a missing file."""
    try:
        yield
    except NotFoundError:
        for snapshot in snapshots:
            if _is_dropped(snapshot):
                raise CheckpointNotFoundError(
                    f"{snapshot.name} of job {snapshot.job!r} is no longer retained, because "
                    "newer checkpoints have been taken. Choose a newer one, take a savepoint, "
                    "or retain more with execution.checkpointing.num-retained"
                ) from None
        raise


def _is_dropped(snapshot: Snapshot) -> bool:
    if snapshot.manifest is None:
        return False
    try:
        CheckpointLog(storage_of(snapshot.storage)).get(snapshot.manifest.number)
    except CheckpointNotFoundError:
        return True
    return False


def describe(snapshot: Snapshot) -> SnapshotView:
    """Return what is in a snapshot; no state is read."""
    document = snapshot.document
    metadata = snapshot.metadata
    manifest = snapshot.manifest
    files = snapshot.files()
    return SnapshotView(
        id=metadata.id if metadata else snapshot.name,
        kind="savepoint" if metadata else "checkpoint",
        location=snapshot.origin.uri,
        job=document.job,
        job_id=document.job_id,
        attempt=document.attempt,
        checkpoint=snapshot.origin.checkpoint or 0,
        epoch=document.epoch,
        created_ms=document.created_ms,
        trigger=document.trigger,
        format=metadata.type.value if metadata else None,
        label=metadata.label if metadata else None,
        note=metadata.note if metadata else None,
        drained=snapshot.drained,
        max_parallelism=document.max_parallelism,
        bytes=sum(file.length for file in files),
        files=len(files),
        sources={leaf: position.offset for leaf, position in document.sources.items()},
        operators=_operators(snapshot),
        states=tuple(state_rows(snapshot)),
        transactions={u: len(t) for u, t in manifest.transactions.items()} if manifest else {},
        targets=_targets(snapshot),
        started_from=_started_from(snapshot),
        started=(started := _started(snapshot)),
        script_changed=started.has_changed() if started is not None else None,
    )


def _targets(snapshot: Snapshot) -> dict[str, str]:
    if snapshot.metadata is not None:
        return snapshot.metadata.targets
    return CheckpointLog(storage_of(snapshot.storage)).targets(snapshot.origin.checkpoint or 0)


def _operators(snapshot: Snapshot) -> tuple[OperatorNode, ...]:
    nodes = []
    sources = snapshot.document.sources
    for op in snapshot.operators:
        states = [state for state in snapshot.states if state.schema.uid == op.uid]
        node = OperatorNode(
            **msgspec.structs.asdict(op),
            level=-1,
            states=tuple(state.schema.name for state in states),
            state_bytes=sum(state.size for state in states) or None,
            watermark_ms=snapshot.document.watermarks.get(op.uid),
            malformed=sources[op.uid].malformed if op.uid in sources else 0,
        )
        nodes.append(node)
    return tuple(nodes)


def _started_from(snapshot: Snapshot) -> str | None:
    if snapshot.metadata is not None:
        return snapshot.metadata.origin.uri if snapshot.metadata.origin else None
    job = JobDirectory(storage_of(snapshot.storage), snapshot.job)
    started = job.attempt(snapshot.document.attempt)
    return started.snapshot if started is not None else None


def _started(snapshot: Snapshot) -> StartedProgram | None:
    if snapshot.metadata is not None:
        return snapshot.metadata.started
    job = JobDirectory(storage_of(snapshot.storage), snapshot.job)
    return job.started(snapshot.document.attempt)


def savepoint_rows(
    entries: Iterable[SavepointEntry],
    job: str,
    script: tuple[str, ...],
    options: Mapping[str, str] | None,
    replays: Mapping[str, SavepointReplay],
) -> list[SavepointRow]:
    """Return the savepoints of a job, newest first."""
    rows = []
    for entry in entries:
        path = display_path(entry.path)
        metadata, there = _metadata(entry.path, options)
        started = metadata.started if metadata is not None else None
        # Older versions did not write down what a savepoint was taken of: it may be another script.
        command = shlex.join(["turnback", "run", "-s", path, *(script or ("job.py",))])
        row = SavepointRow(
            **msgspec.structs.asdict(msgspec.structs.replace(entry, path=path)),
            job=job,
            replay=replays.get(entry.id),
            exists=there,
            restore=started.restore_command(path) if started and started.script else command,
            script_changed=started.has_changed() if started is not None else None,
        )
        rows.append(row)
    return rows[::-1]


def exists(path: str, options: Mapping[str, str] | None) -> bool | None:
    """Return whether a complete savepoint is at a location; None if that cannot be told."""
    return _metadata(path, options)[1]


def _metadata(
    path: str, options: Mapping[str, str] | None
) -> tuple[SavepointMetadata | None, bool | None]:
    """Return what can be read about a savepoint, and whether it is there, if that can be told."""
    try:
        data = SavepointDirectory.locate(path, options).storage.get(METADATA)
    except NotFoundError:
        return None, False
    except (StorageError, ConfigurationError):
        return None, None
    try:
        return decode(data, path), True
    except StorageError:  # damaged, or written by a newer version
        return None, True
