"""The savepoints of a running job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from itertools import chain
from typing import TypeVar

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import END_OF_TIME, Manifest, encode
from turnback.config.checkpointing import SavepointFormat
from turnback.driver.context import JobContext
from turnback.driver.engine import Engine, Task
from turnback.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    TurnbackError,
)
from turnback.job.catalog import SavepointCatalog, SavepointEntry, surplus
from turnback.job.directory import JobDirectory
from turnback.job.request import Request, RequestKind, RequestOrigin, RequestProgress
from turnback.job.requests import Requests
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import (
    SOURCES,
    Origin,
    SavedState,
    SavepointMetadata,
    StateId,
    StatePart,
    file_name,
)
from turnback.snapshot.writer import copy_source_log, copy_tasks, export_tasks
from turnback.state.files import StateFile, StorageRef, storage_of
from turnback.state.schema import StateSchema
from turnback.storage.envelope import digest

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
OnProgress = Callable[[RequestProgress], None]

CORES_PER_TASK = 4
"""One in so many of Spark's cores writes savepoints, the others are left to the epochs."""


class Exporter:
    """Writes checkpoints out as savepoints, beside the epochs.

    It submits a few small tasks at a time. Spark serves jobs in the order in which they were
    submitted, so an epoch that starts meanwhile waits for those few, not for the whole savepoint.
    """

    def __init__(self, engine: Engine, storage: StorageRef) -> None:
        self._engine = engine
        self._storage = storage
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End an export under way, from another thread; what it wrote is no savepoint."""
        self._stopped.set()

    def export(
        self,
        request: Request,
        manifest: Manifest,
        origin: Origin | None,
        directory: SavepointDirectory,
        created_ms: int,
        on_progress: OnProgress,
    ) -> SavepointMetadata:
        """Write the files of a savepoint; returns the metadata that completes it.

        The files of the checkpoint must not be deleted meanwhile. `origin` is what the job itself
        was started from.
        """
        source = self._storage
        writer = directory.writer
        target = StorageRef(directory.uri, source.options)
        states = tuple(SavedState(schema) for schema in manifest.schemas)
        files: tuple[StateFile, ...] = ()

        def run(tasks: Sequence[Task[T]], size_of: Callable[[T], int]) -> list[T]:
            return self._run_few_at_a_time(manifest, tasks, size_of, created_ms, on_progress)

        if request.type is SavepointFormat.NATIVE:
            copies = copy_tasks(manifest, source, target, writer)
            copied = run(copies, lambda files: sum(file.length for file in files))
            files = tuple(chain.from_iterable(copied))
        else:
            tasks = export_tasks(manifest, source, target, writer)
            written = run(tasks, lambda states: sum(p.length for _, parts in states for p in parts))
            states = _saved_states(manifest, chain.from_iterable(written))
        sources = {
            leaf: copy_source_log(
                position, source, target, lambda log: f"{SOURCES}/{file_name(writer, log.name)}"
            )
            for leaf, position in manifest.sources.items()
        }
        uids = [info.uid for info in manifest.operators]
        return SavepointMetadata(
            id=request.id,
            turnback_version=version("turnback"),
            type=request.type,
            job=manifest.job,
            job_id=manifest.job_id,
            attempt=manifest.attempt,
            checkpoint=manifest.number,
            epoch=manifest.epoch,
            created_ms=created_ms,
            trigger=f"{request.kind.value} ({request.origin.value})",
            label=request.label,
            note=request.note,
            max_parallelism=manifest.max_parallelism,
            sources=sources,
            operators=manifest.operators,
            states=states,
            watermarks=dict.fromkeys(uids, END_OF_TIME) if request.drain else manifest.watermarks,
            native=files,
            origin=origin,
            targets=CheckpointLog(storage_of(source)).targets(manifest.number),
            redriven=manifest.redriven,
            started=JobDirectory(storage_of(source), manifest.job).started(manifest.attempt),
        )

    def _run_few_at_a_time(
        self,
        manifest: Manifest,
        tasks: Sequence[Task[T]],
        size_of: Callable[[T], int],
        started_ms: int,
        on_progress: OnProgress,
    ) -> list[T]:
        results: list[T] = []
        total = len(tasks)
        written = 0
        few = max(1, self._engine.cores // CORES_PER_TASK)
        on_progress(RequestProgress(0, total, 0, started_ms))
        for start in range(0, total, few):
            if self._stopped.is_set():
                raise CheckpointError(
                    f"the savepoint of {manifest.name} was abandoned because the job ends"
                )
            description = f"{manifest.job}: savepoint, part {start + 1} of {total}"
            done = self._engine.run_tasks(description, tasks[start : start + few])
            results += done
            written += sum(map(size_of, done))
            on_progress(RequestProgress(len(results), total, written, started_ms))
        return results


def _saved_states(
    manifest: Manifest, written: Iterable[tuple[StateSchema, tuple[StatePart, ...]]]
) -> tuple[SavedState, ...]:
    parts: dict[StateId, tuple[StatePart, ...]] = {schema.id: () for schema in manifest.schemas}
    for schema, some in written:
        parts[schema.id] += some
    return tuple(
        SavedState(schema, sum(part.rows for part in parts[schema.id]), parts[schema.id])
        for schema in manifest.schemas
    )


class JobSavepoints:
    """Takes savepoints of one job, records them, and deletes scheduled ones that are too old."""

    def __init__(self, context: JobContext, requests: Requests) -> None:
        self._name = context.directory.name
        self._storage = context.storage
        self._settings = context.spec.savepoints
        self._clock = context.clock
        self._requests = requests
        self._catalog = SavepointCatalog(context.directory.storage)
        self._exporter = Exporter(context.engine, self._storage)

    def check(self, request: Request) -> None:
        """Refuse a savepoint that could not even be begun, before anything is done for it."""
        directory = self._directory(request)
        if directory.begin(request.id) is None:
            directory.abandon()

    def take(self, request: Request, manifest: Manifest, origin: Origin | None) -> SavepointEntry:
        """Write a checkpoint out as the savepoint that was requested, see `Exporter.export`.

        Raises `CheckpointError` if the request ends the job, and has one of another checkpoint.
        """
        entry = self._take(
            request, manifest, origin, lambda progress: self._requests.report(request.id, progress)
        )
        if entry.scheduled:
            self._drop_surplus()
        return entry

    def take_once(self, manifest: Manifest, origin: Origin | None, label: str) -> SavepointEntry:
        """Write out a checkpoint without a request, unless that was done before.

        Its id follows from checkpoint and label, so that another start of the same upgrade, for
        example, finds it.
        """
        request = Request(
            id=f"{label}-{manifest.number}-{digest(encode(manifest))[-12:]}",
            kind=RequestKind.SAVEPOINT,
            created_ms=self._clock.now_ms(),
            type=self._settings.format,
            label=label,
        )
        return self._take(request, manifest, origin, lambda _: None)

    def give_up(self) -> None:
        """End what is being written, from another thread."""
        self._exporter.stop()

    def last_scheduled(self, default: int) -> int:
        return max((e.created_ms for e in self._catalog.list() if e.scheduled), default=default)

    def _take(
        self, request: Request, manifest: Manifest, origin: Origin | None, on_progress: OnProgress
    ) -> SavepointEntry:
        """Write a savepoint, unless it is complete, and record it."""
        directory = self._directory(request)
        metadata = directory.begin(request.id)
        if metadata is None:  # else a driver has written it and died before it recorded it
            try:
                metadata = directory.complete(
                    self._exporter.export(
                        request, manifest, origin, directory, self._clock.now_ms(), on_progress
                    )
                )
            except Exception:
                directory.abandon()
                raise
        ends_job = request.kind is not RequestKind.SAVEPOINT
        if ends_job and metadata.checkpoint != manifest.number:
            raise CheckpointError(
                f"{directory.uri} holds a savepoint of chk-{metadata.checkpoint}, but the job "
                f"would end with {manifest.name}. Submit the request again"
            )
        entry = SavepointEntry(
            id=metadata.id,
            path=directory.uri,
            created_ms=metadata.created_ms,
            checkpoint=metadata.checkpoint,
            epoch=metadata.epoch,
            label=metadata.label,
            note=metadata.note,
            scheduled=request.origin is RequestOrigin.SCHEDULE,
            bytes=sum(metadata.files().values()),
        )
        self._catalog.add(entry)
        return entry

    def _directory(self, request: Request) -> SavepointDirectory:
        options = self._storage.options
        return SavepointDirectory(storage_of(StorageRef(self._target(request), options)))

    def _target(self, request: Request) -> str:
        if request.target is not None:
            return request.target
        if self._settings.directory is None:
            raise ConfigurationError(
                "no directory for the savepoint: specify one, or set state.savepoints.dir"
            )
        return f"{self._settings.directory.rstrip('/')}/savepoint-{self._name}-{request.id}"

    def _drop_surplus(self) -> None:
        for old in surplus(self._catalog.list(), self._settings.keep):
            try:
                SavepointDirectory.locate(old.path, self._storage.options).delete()
            except CheckpointNotFoundError:
                pass  # somebody else has deleted it
            except TurnbackError as e:
                _LOG.warning("cannot delete savepoint %s, retrying later: %s", old.path, e)
                continue
            self._catalog.forget(old.id)
