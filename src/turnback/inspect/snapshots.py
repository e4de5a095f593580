"""Reading a checkpoint while its job goes on and drops it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from turnback.checkpoint.log import CheckpointLog
from turnback.core.errors import (
    AmbiguousJobError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    JobNotFoundError,
    NotFoundError,
    UnsupportedTypeError,
)
from turnback.inspect.model import OperatorNode, SavepointRow, SnapshotView, StateRow
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.directory import JobDirectory
from turnback.snapshot.claims import StoredState
from turnback.snapshot.directory import FileProblem
from turnback.snapshot.find import load_savepoint, locate, snapshot_of_job, split_slot_path
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef, storage_of
from turnback.storage.envelope import check
from turnback.types.typeinfo import type_from_descriptor


@contextmanager
def while_kept(*snapshots: Snapshot) -> Iterator[None]:
    """Tell a checkpoint that was dropped meanwhile from one with a file missing.

    Raises:
        CheckpointNotFoundError: One of them is not kept any more.
        NotFoundError: It is, and a file of it is missing: it is damaged.
    """
    try:
        yield
    except NotFoundError:
        for snapshot in snapshots:
            if _is_dropped(snapshot):
                raise CheckpointNotFoundError(
                    f"{snapshot.name} of job {snapshot.job!r} is not kept any more, because newer "
                    "checkpoints have been taken. Choose a newer one, take a savepoint, or keep "
                    "more with execution.checkpointing.num-retained"
                ) from None
        raise


def _is_dropped(snapshot: Snapshot) -> bool:
    from turnback.state.files import storage_of

    if snapshot.manifest is None:
        return False
    try:
        CheckpointLog(storage_of(snapshot.storage)).get(snapshot.manifest.number)
    except CheckpointNotFoundError:
        return True
    return False


_LEAST_PREFIX = 4
_CHECKPOINT = re.compile(r"(chk-)?[0-9]+|latest", re.IGNORECASE)
_FORMS = (
    "write the directory of a savepoint, the file of a checkpoint, or JOB@ with 'latest', "
    "'chk-7', a time such as 2026-01-31T12:00, or the id or label of a savepoint"
)

OnProgress = Callable[[int, int], None]
"""Told after every file: bytes read so far, and all bytes."""


class FoundJob(Protocol):
    """A job, as far as its snapshots are concerned."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def directory(self) -> JobDirectory:
        """Its directory."""


class JobFinder(Protocol):
    """All jobs, as far as their snapshots are concerned."""

    def find(self, text: str, /, *, whole: bool = False) -> FoundJob:
        """Find a job by what people call it; `whole`: not by the beginning of that."""

    def savepoints(self) -> list[SavepointRow]:
        """Savepoints of all jobs."""


def open_snapshot(
    text: str,
    jobs: JobFinder,
    options: Mapping[str, str] | None = None,
    *,
    whole: bool = False,
) -> Snapshot:
    """Find the snapshot that is meant on a command line.

    Args:
        text: The directory of a savepoint or its `_metadata.json`, the file of a checkpoint, the
            id of a savepoint, or ``JOB@`` with what `find_snapshot` takes.
        jobs: The jobs that are known.
        options: Credentials and endpoints of object stores.
        whole: Names and ids have to be whole: for what deletes the snapshot.

    Raises:
        CheckpointNotFoundError: There is none; the message says what there is.
        JobNotFoundError: There is no such job.
        AmbiguousJobError: Several jobs fit.
        CorruptFileError: It is damaged.
        FormatVersionError: It was written by a newer version.
        ConfigurationError: The text cannot mean a snapshot.
    """
    given = _text(text)
    known = dict(options or {})
    slot = split_slot_path(given)
    if slot is not None:
        return locate(slot[1], StorageRef(slot[0], known))
    if "/" in given or Path(given).is_dir():
        try:
            return load_savepoint(given, known)
        except CheckpointNotFoundError:
            if "@" not in given:
                raise
    if "@" in given:
        return _of_some_job(given, jobs, known, whole)
    for row in jobs.savepoints():
        if row.id == given:
            return load_savepoint(row.path, known)
    raise _unknown(given, jobs)


def find_snapshot(
    directory: JobDirectory,
    text: str,
    options: Mapping[str, str] | None = None,
    *,
    whole: bool = False,
) -> Snapshot:
    """Find a checkpoint or savepoint of one job. A path is never followed.

    Args:
        directory: The job.
        text: "latest" or a time, for the newest checkpoint or savepoint at all or before that
            time; "chk-7" or "7"; the id of a savepoint, or the beginning of it; its label.
        options: Credentials and endpoints of object stores.
        whole: The beginning of an id is not enough.

    Raises:
        CheckpointNotFoundError: There is none; the message says what there is.
        ConfigurationError: Several savepoints fit.
        CorruptFileError: It is damaged.
        FormatVersionError: It was written by a newer version.
    """
    given = _text(text)
    job = StorageRef(directory.storage.uri, dict(options or {}))
    if _CHECKPOINT.fullmatch(given):
        return snapshot_of_job(given, job)  # no need to read about all savepoints
    entries = SavepointCatalog(directory.storage).list()
    saved = _savepoint(given, entries, directory.name, whole)
    if saved is not None:
        return load_savepoint(saved.path, job.options)
    if "/" in given:
        raise CheckpointNotFoundError(f"job {directory.name!r} has no snapshot {given!r}")
    try:
        return snapshot_of_job(given, job)
    except CheckpointNotFoundError as error:
        raise CheckpointNotFoundError(f"{error}{_labels(given, entries)}") from None


def _labels(given: str, entries: Sequence[SavepointEntry]) -> str:
    """Which savepoints might have been meant, as the end of a message."""
    labels = list(dict.fromkeys(entry.label for entry in entries if entry.label))
    near = get_close_matches(given, labels, n=1)
    if near:
        return f". Did you mean the savepoint {near[0]!r}?"
    return f". There are savepoints labelled {', '.join(map(repr, labels[-10:]))}" if labels else ""


def view(snapshot: Snapshot) -> SnapshotView:
    """What a snapshot says of itself; no state is read."""
    manifest, metadata = snapshot.manifest, snapshot.metadata
    about = manifest or metadata
    assert about is not None
    files = about.files()
    inline = [file for file in manifest.state if file.inline is not None] if manifest else []
    saved = metadata is not None
    return SnapshotView(
        id=metadata.id if metadata else snapshot.name,
        kind="savepoint" if saved else "checkpoint",
        location=snapshot.origin.uri,
        job=snapshot.job,
        job_id=snapshot.job_id,
        attempt=about.attempt,
        checkpoint=metadata.checkpoint if metadata else snapshot.origin.checkpoint or 0,
        epoch=snapshot.epoch,
        created_ms=snapshot.created_ms,
        trigger=about.trigger,
        format=metadata.type.value if metadata else None,
        label=metadata.label if metadata else None,
        note=metadata.note if metadata else None,
        drained=snapshot.drained,
        max_parallelism=snapshot.max_parallelism,
        bytes=sum(files.values()) + sum(file.length for file in inline),
        files=len(files) + len(inline),
        sources={leaf: position.offset for leaf, position in snapshot.sources.items()},
        operators=_operators(snapshot, about.watermarks),
        states=tuple(_state(s) for s in sorted(snapshot.states, key=lambda s: s.id)),
        transactions={u: len(t) for u, t in manifest.transactions.items()} if manifest else {},
        started_from=_started_from(snapshot),
    )


def verify_snapshot(snapshot: Snapshot, on_progress: OnProgress | None = None) -> list[FileProblem]:
    """Read every file of a snapshot and compare it with what was recorded.

    Args:
        snapshot: The checkpoint or savepoint.
        on_progress: Told after every file.

    Returns:
        What is wrong, nothing if it can be restored.

    Raises:
        StorageError: The storage does not answer, so nothing can be said.
    """
    storage = storage_of(snapshot.storage)
    files = _files(snapshot)
    total, done, problems = sum(length for _, length, _, _ in files), 0, []
    for path, length, digest, inline in files:
        name = f"{storage.uri}/{path}"
        try:
            check(storage.get(path) if inline is None else inline, length, digest, name)
        except NotFoundError:
            problems.append(FileProblem(path, f"{name} is missing"))
        except CorruptFileError as error:
            problems.append(FileProblem(path, str(error)))
        done += length
        if on_progress is not None:
            on_progress(done, total)
    return problems


# -- which one is meant


def _text(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{text!r} names no snapshot: {_FORMS}")
    return text.strip()


def _of_some_job(given: str, jobs: JobFinder, options: dict[str, str], whole: bool) -> Snapshot:
    """Jobs and labels may have an @ in their names: whatever is a job stands before it."""
    failure: JobNotFoundError | None = None
    at = len(given)
    while (at := given.rfind("@", 0, at)) >= 0:
        name, what = given[:at].strip(), given[at + 1 :].strip()
        if name and what:
            try:
                job = jobs.find(name, whole=whole)
            except JobNotFoundError as error:
                failure = failure or error
            else:
                return find_snapshot(job.directory, what, options, whole=whole)
    raise failure or ConfigurationError(f"{given!r} names no snapshot: {_FORMS}")


def _unknown(given: str, jobs: JobFinder) -> CheckpointNotFoundError:
    hint = f"there is no directory of this name; {_FORMS}"
    try:
        job = jobs.find(given)
    except (JobNotFoundError, AmbiguousJobError):
        near = get_close_matches(given, [row.id for row in jobs.savepoints()], 1, 0.7)
        if near:
            hint = f"did you mean the savepoint {near[0]!r}?"
    else:
        hint = f"it is a job. Write '{job.name}@latest' for the newest snapshot of it"
    return CheckpointNotFoundError(f"{given!r} is no snapshot: {hint}")


def _savepoint(
    given: str, entries: list[SavepointEntry], job: str, whole: bool
) -> SavepointEntry | None:
    for entry in entries:
        if entry.id == given:
            return entry
    labelled = [entry for entry in entries if entry.label == given]
    begins = [entry for entry in entries if entry.id.startswith(given)]
    found = labelled or (begins if len(given) >= _LEAST_PREFIX else [])
    if len(found) > 1:
        raise ConfigurationError(
            f"{given!r} fits {len(found)} savepoints of job {job!r}: "
            f"{', '.join(entry.id for entry in found)}. Name one by its whole id"
        )
    if whole and found and not labelled:
        raise CheckpointNotFoundError(
            f"job {job!r} has no savepoint {given!r}. If you mean {found[0].id}, write its whole id"
        )
    return found[0] if found else None


# -- what it says of itself


def _operators(snapshot: Snapshot, watermarks: Mapping[str, int]) -> tuple[OperatorNode, ...]:
    def bytes_of(uid: str) -> int | None:
        sizes = [state.length for state in snapshot.states if state.schema.uid == uid]
        return sum(size or 0 for size in sizes) if any(sizes) else None

    return tuple(
        OperatorNode(
            uid=op.uid,
            name=op.name,
            kind=op.kind,
            parallelism=op.parallelism,
            level=-1,
            states=tuple(s.schema.name for s in snapshot.states if s.schema.uid == op.uid),
            state_bytes=bytes_of(op.uid),
            watermark_ms=watermarks.get(op.uid),
        )
        for op in snapshot.operators
    )


def _state(state: StoredState) -> StateRow:
    schema = state.schema
    return StateRow(
        uid=schema.uid,
        name=schema.name,
        kind=schema.kind,
        key_type=", ".join(map(type_name, schema.key.types)),
        map_key_type=None if schema.sub is None else type_name(schema.sub),
        value_type=type_name(schema.value),
        rows=state.rows,
        bytes=state.length,
    )


def type_name(descriptor: object) -> str:
    """A type as Spark writes it; of a newer version's types, what is stored of them."""
    if descriptor == "pickled":
        return "pickled object"
    try:
        return str(type_from_descriptor(descriptor))
    except UnsupportedTypeError:
        return str(descriptor)


def _started_from(snapshot: Snapshot) -> str | None:
    if snapshot.metadata is not None:
        return snapshot.metadata.origin.uri if snapshot.metadata.origin else None
    assert snapshot.manifest is not None
    job = JobDirectory(storage_of(snapshot.storage), snapshot.job)
    started = job.attempt(snapshot.manifest.attempt)
    return started.snapshot if started is not None else None


def _files(snapshot: Snapshot) -> list[tuple[str, int, str, bytes | None]]:
    if snapshot.metadata is not None:
        return [(*entry, None) for entry in snapshot.metadata.entries()]
    assert snapshot.manifest is not None
    state = snapshot.manifest.state
    found = {file.path: (file.path, file.length, file.digest, file.inline) for file in state}
    for source in snapshot.manifest.sources.values():
        found |= {log.path: (log.path, log.length, log.digest, None) for log in source.log}
    return list(found.values())
