"""Which snapshot did you mean: from what people write to the checkpoint or savepoint.

Of a job: "latest", 7, "chk-7", a time, or the id or label of a savepoint. Of any job: the path of a
savepoint or of a checkpoint's file. On the command line besides: ``JOB@`` with one of the first, or
the id of a savepoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from turnback.checkpoint.log import DIRECTORY, CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.errors import (
    AmbiguousJobError,
    CheckpointNotFoundError,
    ConfigurationError,
    JobNotFoundError,
)
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.directory import JobDirectory
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef, storage_of
from turnback.storage.locations import canonical_directory

_NUMBER = re.compile(r"(?:chk-)?([0-9]+)")
_PATH = re.compile(rf"(?:(?P<root>.*)/)?{DIRECTORY}/chk-(?P<number>[0-9]+)\.json")
_MIN_PREFIX = 4
_FORMS = (
    "use the directory of a savepoint, the file of a checkpoint, or JOB@ followed by 'latest', "
    "'chk-7', a time such as 2026-01-31T12:00, or the id or label of a savepoint"
)


class JobLookup(Protocol):
    """All jobs, as far as their snapshots are concerned."""

    def find_directory(self, text: str, /, *, whole: bool = False) -> JobDirectory:
        """Find a job by what people call it; `whole`: not by the beginning of that."""

    def savepoints(self) -> Sequence[SavepointEntry]:
        """Savepoints of all jobs."""


def open_snapshot(
    text: str,
    jobs: JobLookup,
    options: Mapping[str, str] | None = None,
    *,
    whole: bool = False,
) -> Snapshot:
    """Find the snapshot that is meant on a command line; errors list what there is instead.

    The text is the directory of a savepoint or its `_metadata.json`, the file of a checkpoint, the
    id of a savepoint, or ``JOB@`` with what `find_snapshot` takes. Names and ids have to be `whole`
    for what deletes the snapshot.
    """
    given = _stripped(text)
    known = dict(options or {})
    if _is_path(given):
        try:
            return load_snapshot(given, known)
        except CheckpointNotFoundError:
            if "@" not in given or split_slot_path(given) is not None:
                raise
    if "@" in given:
        return _of_some_job(given, jobs, known, whole)
    for entry in jobs.savepoints():
        if entry.id == given:
            return load_savepoint(entry.path, known)
    raise _unknown(given, jobs)


def locate(given: str | int, job: StorageRef) -> Snapshot:
    """Find what a job is to start from: a path, or what `find_snapshot` takes."""
    if isinstance(given, int) or not _is_path(given):
        return find_snapshot(given, job)
    slot = split_slot_path(given)
    if slot is None:
        return load_savepoint(given, job.options)
    log = CheckpointLog(storage_of(StorageRef(slot[0], job.options)))
    if canonical_directory(log.uri) == canonical_directory(storage_of(job).uri):
        return find_snapshot(slot[1], job)  # with what it has promised, however it is written
    # What another job has promised that job commits itself.
    return Snapshot(_manifest(log, slot[1]), StorageRef(log.uri, job.options))


def load_snapshot(path: str, options: dict[str, str]) -> Snapshot:
    """Read the metadata of a savepoint, or the manifest of a checkpoint at the path of its file."""
    slot = split_slot_path(path)
    if slot is not None:
        return find_snapshot(slot[1], StorageRef(slot[0], options))
    return load_savepoint(path, options)


def load_savepoint(location: str, options: dict[str, str]) -> Snapshot:
    """Read the metadata of the savepoint at a path or URI."""
    directory = SavepointDirectory.locate(location, options)
    return Snapshot(directory.load(), StorageRef(directory.uri, options))


def find_snapshot(given: str | int, job: StorageRef, *, whole: bool = False) -> Snapshot:
    """Find a checkpoint or savepoint of one job; errors list what there is. No path is followed.

    Given is "latest" or a time, for the newest checkpoint or savepoint at all or before that time;
    a number or "chk-7"; the id of a savepoint, or the beginning of it unless it has to be `whole`;
    its label.
    """
    storage = storage_of(job)
    log = CheckpointLog(storage)
    catalog = SavepointCatalog(storage)
    if isinstance(given, int):
        return _checkpoint(log, given, job)
    text = _stripped(given)
    if match := _NUMBER.fullmatch(text):
        return _checkpoint(log, int(match[1]), job)
    before_ms = None
    if text.lower() != "latest":
        entries = catalog.list()
        named = _named_savepoint(text, entries, job.uri, whole)
        if named is not None:
            return load_savepoint(named.path, job.options)
        before_ms = _time_ms(text)
        if before_ms is None:
            raise CheckpointNotFoundError(
                f"{text!r} is not a snapshot of {log.uri}: use 'latest', a number, 'chk-7', the "
                "id or label of a savepoint, or a time such as 2026-01-31T12:00:00. "
                f"{_what_there_is(log)}{_labels(text, entries)}"
            )
    return _newest(log, catalog, before_ms, job)


def _newest(
    log: CheckpointLog, catalog: SavepointCatalog, before_ms: int | None, job: StorageRef
) -> Snapshot:
    """The newest checkpoint, or the newest savepoint if that is newer; at all or before a time."""
    manifest = log.latest() if before_ms is None else log.find(before_ms=before_ms)
    saved = catalog.latest(before_ms)
    # Order follows the numbers of checkpoints, never the clock.
    if manifest is not None and (saved is None or saved.checkpoint <= manifest.number):
        return Snapshot(manifest, job, log.uncommitted(manifest))
    if saved is not None:
        return load_savepoint(saved.path, job.options)
    problem = "no checkpoint yet"
    if before_ms is not None:
        problem = f"there is no checkpoint from before {_iso(before_ms)}"
    raise CheckpointNotFoundError(f"{log.uri}: {problem}. {_what_there_is(log)}")


def _checkpoint(log: CheckpointLog, number: int, job: StorageRef) -> Snapshot:
    manifest = _manifest(log, number)
    return Snapshot(manifest, job, log.uncommitted(manifest))


def _manifest(log: CheckpointLog, number: int) -> Manifest:
    try:
        slot = log.get(number)
    except CheckpointNotFoundError:
        slot = None
    if isinstance(slot, Manifest):
        return slot
    why = "the start of an attempt" if slot is not None else "missing, or no longer retained"
    raise CheckpointNotFoundError(f"{log.uri}: chk-{number} is {why}. {_what_there_is(log)}")


def _named_savepoint(
    text: str, entries: list[SavepointEntry], job: str, whole: bool
) -> SavepointEntry | None:
    """The savepoint with this id, label or beginning of its id."""
    for entry in entries:
        if entry.id == text:
            return entry
    labelled = [entry for entry in entries if entry.label == text]
    begins = [entry for entry in entries if entry.id.startswith(text)]
    matches = labelled or (begins if len(text) >= _MIN_PREFIX else [])
    if len(matches) > 1:
        raise ConfigurationError(
            f"{text!r} matches {len(matches)} savepoints of {job}: "
            f"{', '.join(entry.id for entry in matches)}. Use the full id of one"
        )
    if whole and matches and not labelled:
        raise CheckpointNotFoundError(
            f"{job} has no savepoint {text!r}. If you mean {matches[0].id}, use its full id"
        )
    return matches[0] if matches else None


def _of_some_job(given: str, jobs: JobLookup, options: dict[str, str], whole: bool) -> Snapshot:
    """Jobs and labels may have an @ in their names: whatever is a job stands before it."""
    failure: JobNotFoundError | None = None
    at = len(given)
    while (at := given.rfind("@", 0, at)) >= 0:
        name = given[:at].strip()
        what = given[at + 1 :].strip()
        if name and what:
            try:
                directory = jobs.find_directory(name, whole=whole)
            except JobNotFoundError as error:
                failure = failure or error
            else:
                job = StorageRef(directory.storage.uri, options)
                return find_snapshot(what, job, whole=whole)
    raise failure or ConfigurationError(f"{given!r} is not a snapshot: {_FORMS}")


def split_slot_path(path: str) -> tuple[str, int] | None:
    """Return the job directory and the number in the full path of a slot file, if it is one."""
    match = _PATH.fullmatch(path.strip())
    return (match["root"], int(match["number"])) if match and match["root"] else None


# -- where a job goes on


@dataclass(frozen=True)
class ResumePoint:
    """Where a job resumes by default: one of its own checkpoints, or where another snapshot is.

    `goes_on`: somebody wanted it to go on from there although event time had ended.
    """

    manifest: Manifest | None = None
    snapshot: str | None = None
    goes_on: bool = False


def resume_point(log: CheckpointLog, directory: JobDirectory) -> ResumePoint | None:
    """Return where the job resumes, `None` if it has to start empty.

    That is its newest checkpoint, unless an attempt was started from something else after that
    and did not live to take a checkpoint of its own: then it is what that attempt started from.
    Checkpoints from before a fresh start (`JobDirectory.renew`) do not count. Neither do fences of
    another lineage: a driver that began before a fresh start may put one above what came later.

    Raises:
        CheckpointNotFoundError: What that attempt started from does not exist any more.
        CorruptFileError: A slot on the way is damaged; nothing older is given instead.
    """
    info = directory.info()
    for number in reversed(log.numbers()):
        try:
            slot = log.get(number)
        except CheckpointNotFoundError:
            return resume_point(log, directory)  # dropped since, so a newer one is there
        if info is None:
            return None
        if isinstance(slot, Manifest):
            return ResumePoint(manifest=slot) if slot.job_id == info.job_id else None
        if slot.job_id != info.job_id:
            continue
        if slot.ended:
            return None
        if slot.start is not None:
            start = slot.start
            return ResumePoint(start.checkpoint, start.snapshot, start.goes_on)
        # Otherwise what is in the log decides, unless an older version has written it.
        started = directory.attempt(slot.attempt)
        if started is None:
            continue
        if started.snapshot is not None:
            return ResumePoint(snapshot=started.snapshot)
        if started.checkpoint is not None:
            checkpoint = _started_from(log, started.checkpoint, number)
            return ResumePoint(checkpoint, goes_on=started.goes_on)
        return None
    return None


def _started_from(log: CheckpointLog, number: int, fence: int) -> Manifest:
    """Return the checkpoint that the attempt with this fence has started from.

    If a driver that was replaced has dropped it since, an earlier attempt was told to start from
    it, and its slot holds a copy.
    """
    try:
        return _manifest(log, number)
    except CheckpointNotFoundError:
        for slot in map(log.get, reversed([n for n in log.numbers() if n < fence])):
            if isinstance(slot, Manifest):
                break
            if slot.start is not None:
                copy = slot.start.checkpoint
                if copy is not None and copy.number == number:
                    return copy
                break
        raise


# -- texts


def _is_path(text: str) -> bool:
    """Whether it can only be a path: a time or a name of a checkpoint has no slash in it."""
    return "/" in text or Path(text).is_dir()


def _stripped(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{text!r} is not a snapshot: {_FORMS}")
    return text.strip()


def _time_ms(text: str) -> int | None:
    """A time in ISO format; one without zone is local time."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _what_there_is(log: CheckpointLog) -> str:
    scan = log.scan()
    known = [f"{m.name} ({_iso(m.created_ms)}, epoch {m.epoch})" for m in scan.manifests]
    text = f"Available checkpoints: {', '.join(known)}" if known else "There are no checkpoints"
    if scan.unreadable:
        text += f"; unreadable: {'; '.join(map(str, scan.unreadable.values()))}"
    return text


def _labels(given: str, entries: Sequence[SavepointEntry]) -> str:
    """Which savepoints might have been meant, as the end of a message."""
    labels = list(dict.fromkeys(entry.label for entry in entries if entry.label))
    near = get_close_matches(given, labels, n=1)
    if near:
        return f". Did you mean the savepoint {near[0]!r}?"
    return f". Available savepoint labels: {', '.join(map(repr, labels[-10:]))}" if labels else ""


def _unknown(given: str, jobs: JobLookup) -> CheckpointNotFoundError:
    hint = f"there is no directory with this name; {_FORMS}"
    try:
        job = jobs.find_directory(given)
    except (JobNotFoundError, AmbiguousJobError):
        near = get_close_matches(given, [entry.id for entry in jobs.savepoints()], 1, 0.7)
        if near:
            hint = f"did you mean the savepoint {near[0]!r}?"
    else:
        hint = f"it is a job. For its newest snapshot, use '{job.name}@latest'"
    return CheckpointNotFoundError(f"{given!r} is not a snapshot: {hint}")
