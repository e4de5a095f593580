"""From what a user writes ("latest", 7, a path, a time) to the checkpoint that is meant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path

from turnback.checkpoint.log import DIRECTORY, CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import CheckpointNotFoundError
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.directory import JobDirectory
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef, storage_of

Spec = int | str | PathLike[str] | datetime

_NUMBER = re.compile(r"(?:chk-)?([0-9]+)")
_PATH = re.compile(rf"(?:(?P<root>.*)/)?{DIRECTORY}/chk-(?P<number>[0-9]+)\.json")


@dataclass(frozen=True)
class ResumePoint:
    """Where a job goes on when nobody says otherwise.

    Attributes:
        manifest: One of its own checkpoints.
        snapshot: Where another snapshot is, such as a savepoint.
    """

    manifest: Manifest | None = None
    snapshot: str | None = None


def resolve(log: CheckpointLog, spec: Spec) -> Manifest:
    """Find a checkpoint of a job.

    Args:
        log: The job's checkpoints.
        spec: "latest"; a number (7, "7", "chk-7"); the path of the slot file, from the job
            directory or in full; or a time, as `datetime` or in ISO format, for the last
            checkpoint before it. A time without zone is local time.

    Raises:
        CheckpointNotFoundError: There is none; the message lists those there are.
        CorruptFileError: The one that is meant is damaged.
    """
    if isinstance(spec, datetime):
        return _before(log, spec)
    if isinstance(spec, int):
        return _numbered(log, spec)
    text = fspath(spec).strip()
    if text.lower() == "latest":
        return _or_explain(log, log.latest(), "no checkpoint yet")
    if match := _NUMBER.fullmatch(text):
        return _numbered(log, int(match[1]))
    if match := _PATH.fullmatch(text):
        root = match["root"]
        if root is not None and _plain(root) != _plain(log.uri):
            raise CheckpointNotFoundError(
                f"{text} is not in the job directory {log.uri}: open that job, or take a "
                "savepoint of it"
            )
        return _numbered(log, int(match["number"]))
    try:
        return _before(log, datetime.fromisoformat(text))
    except ValueError:
        raise CheckpointNotFoundError(
            f"{text!r} names no checkpoint: write 'latest', a number, 'chk-7', the path of its "
            f"file, or a time such as 2026-01-31T12:00:00. {_what_there_is(log)}"
        ) from None


def split_slot_path(path: str | PathLike[str]) -> tuple[str, int] | None:
    """Return the job directory and the number in the full path of a slot file, if it is one."""
    match = _PATH.fullmatch(fspath(path).strip())
    return (match["root"], int(match["number"])) if match and match["root"] else None


def resume_point(log: CheckpointLog, directory: JobDirectory) -> ResumePoint | None:
    """Return where the job goes on, `None` if it has to start from nothing.

    That is its newest checkpoint, unless an attempt was started from something else after that
    and did not live to take a checkpoint of its own: then it is what that attempt started from.
    Checkpoints from before a fresh start (`JobDirectory.renew`) do not count.

    Raises:
        CheckpointNotFoundError: What that attempt started from is gone.
        CorruptFileError: A slot on the way is damaged; nothing older is given instead.
    """
    info = directory.info()
    for number in reversed(log.numbers()):
        try:
            slot = log.get(number)
        except CheckpointNotFoundError:
            return resume_point(log, directory)  # dropped since, so a newer one is there
        if info is None or slot.job_id != info.job_id:
            return None
        if isinstance(slot, Manifest):
            return ResumePoint(manifest=slot)
        if slot.ended:
            return None
        started = directory.attempt(slot.attempt)
        if started is None:
            continue
        if started.snapshot is not None:
            return ResumePoint(snapshot=started.snapshot)
        if started.checkpoint is not None:
            return ResumePoint(manifest=_numbered(log, started.checkpoint))
        return None
    return None


def _numbered(log: CheckpointLog, number: int) -> Manifest:
    try:
        slot = log.get(number)
    except CheckpointNotFoundError:
        slot = None
    found = slot if isinstance(slot, Manifest) else None
    why = "the start of an attempt" if slot is not None else "not there, or no longer kept"
    return _or_explain(log, found, f"chk-{number} is {why}")


def _before(log: CheckpointLog, time: datetime) -> Manifest:
    found = log.find(before_ms=int(time.timestamp() * 1000))
    return _or_explain(log, found, f"no checkpoint is from before {time.isoformat()}")


def _or_explain(log: CheckpointLog, found: Manifest | None, problem: str) -> Manifest:
    if found is None:
        raise CheckpointNotFoundError(f"{log.uri}: {problem}. {_what_there_is(log)}")
    return found


def _what_there_is(log: CheckpointLog) -> str:
    scan = log.scan()
    known = [f"{m.name} ({_when(m.created_ms)}, epoch {m.epoch})" for m in scan.manifests]
    text = f"There is {', '.join(known)}" if known else "There are no checkpoints"
    if scan.unreadable:
        text += f"; unreadable: {'; '.join(map(str, scan.unreadable.values()))}"
    return text


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _plain(uri: str) -> str:
    return uri.removeprefix("file://").rstrip("/")


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
