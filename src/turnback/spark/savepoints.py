"""The savepoints of a running job."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

from turnback.checkpoint.manifest import Manifest, encode
from turnback.config.savepoints import SavepointFormat
from turnback.core.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    TurnbackError,
)
from turnback.job.catalog import SavepointCatalog, SavepointEntry, surplus
from turnback.job.request import Progress, Request, RequestKind, RequestOrigin
from turnback.job.requests import Requests
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import (
    END_OF_TIME,
    SOURCES,
    Origin,
    SavedState,
    SavepointMetadata,
    StateId,
    StatePart,
    file_name,
)
from turnback.snapshot.writer import copy_source_log, copy_tasks, export_tasks
from turnback.spark.driver import JobContext
from turnback.spark.engine import Engine
from turnback.spark.worker import Task
from turnback.state.files import StateFile, StorageRef, storage_of
from turnback.state.schema import StateSchema
from turnback.storage.envelope import digest

_LOG = logging.getLogger(__name__)
_BEFORE_UPGRADE = "before-upgrade"

T = TypeVar("T")
Written = list[tuple[StateSchema, tuple[StatePart, ...]]]
"""The result of an `ExportTask`."""

OnProgress = Callable[[int, int, int], None]
"""Called with the tasks done, the tasks there are, and the bytes written."""

CORES_PER_TASK = 4
"""One in so many of Spark's cores writes savepoints, the others are left to the epochs."""


@dataclass(frozen=True)
class ExportOrder:
    """What savepoint is wanted.

    Attributes:
        id: Unique.
        target: The directory.
        writer: Who writes into it, see `file_name`.
        format: What its files are.
        trigger: Who or what asked for it.
        label: What the user calls it.
        note: Why the user took it.
        origin: What the job itself was started from.
        drained: Event time is at its end: nothing in the savepoint waits for later events.
    """

    id: str
    target: StorageRef
    writer: str
    format: SavepointFormat
    trigger: str
    label: str | None
    note: str | None
    origin: Origin | None
    drained: bool = False


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
        self, manifest: Manifest, order: ExportOrder, created_ms: int, on_progress: OnProgress
    ) -> SavepointMetadata:
        """Write the files of a savepoint; returns the metadata that completes it.

        Args:
            manifest: The checkpoint; its files must not be deleted meanwhile.
            order: What is wanted.
            created_ms: When it was asked for.
            on_progress: Called after every few tasks.
        """
        native = order.format is SavepointFormat.NATIVE
        states = [SavedState(schema) for schema in manifest.schemas]
        files: tuple[StateFile, ...] = ()
        if native:
            copies = copy_tasks(manifest, self._storage, order.target, order.writer)
            copied = self._run_few_at_a_time(manifest, copies, _size_of_copies, on_progress)
            files = tuple(file for some in copied for file in some)
        else:
            tasks = export_tasks(manifest, self._storage, order.target, order.writer)
            written = self._run_few_at_a_time(manifest, tasks, _size_of_parts, on_progress)
            states = _saved_states(manifest, written)
        sources = {
            leaf: copy_source_log(
                position,
                self._storage,
                order.target,
                lambda entry: f"{SOURCES}/{file_name(order.writer, entry.name)}",
            )
            for leaf, position in manifest.sources.items()
        }
        return SavepointMetadata(
            id=order.id,
            turnback_version=version("turnback"),
            type=order.format,
            job=manifest.job,
            job_id=manifest.job_id,
            attempt=manifest.attempt,
            checkpoint=manifest.number,
            epoch=manifest.epoch,
            created_ms=created_ms,
            trigger=order.trigger,
            label=order.label,
            note=order.note,
            max_parallelism=manifest.max_parallelism,
            sources=sources,
            operators=manifest.operators,
            states=tuple(states),
            watermarks=(
                dict.fromkeys((info.uid for info in manifest.operators), END_OF_TIME)
                if order.drained
                else manifest.watermarks
            ),
            native=files,
            origin=order.origin,
        )

    def _run_few_at_a_time(
        self,
        manifest: Manifest,
        tasks: Sequence[Task[T]],
        size_of: Callable[[T], int],
        on_progress: OnProgress,
    ) -> list[T]:
        results: list[T] = []
        total, written = len(tasks), 0
        few = max(1, self._engine.cores // CORES_PER_TASK)
        on_progress(0, total, 0)
        for start in range(0, total, few):
            if self._stopped.is_set():
                raise CheckpointError(
                    f"the savepoint of {manifest.name} was given up because the job ends"
                )
            what = f"{manifest.job}: savepoint, part {start + 1} of {total}"
            done = self._engine.run_tasks(what, tasks[start : start + few])
            results += done
            written += sum(map(size_of, done))
            on_progress(len(results), total, written)
        return results


def _saved_states(manifest: Manifest, results: list[Written]) -> list[SavedState]:
    parts: dict[StateId, list[StatePart]] = defaultdict(list)
    for result in results:
        for schema, written in result:
            parts[schema.id] += written
    return [
        SavedState(schema, sum(p.rows for p in parts[schema.id]), tuple(parts[schema.id]))
        for schema in manifest.schemas
    ]


def _size_of_parts(written: Written) -> int:
    return sum(part.length for _, parts in written for part in parts)


def _size_of_copies(files: list[StateFile]) -> int:
    return sum(file.length for file in files)


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

    def take(self, request: Request, manifest: Manifest, origin: Origin | None) -> SavepointEntry:
        """Write a checkpoint out as the savepoint that was asked for.

        Args:
            request: What was asked for.
            manifest: The checkpoint, whose files must not be deleted meanwhile.
            origin: What the job itself was started from.

        Raises:
            ConfigurationError: There is no directory for it, or it is not empty.
            CheckpointError: The request ends the job, and has a savepoint of another checkpoint.
        """

        def show(progress: Progress) -> None:
            self._requests.report(request.id, progress)

        metadata, uri = self._write(request, manifest, origin, show)
        ends = request.kind is not RequestKind.SAVEPOINT
        if ends and metadata.checkpoint != manifest.number:
            raise CheckpointError(
                f"{uri} holds a savepoint of chk-{metadata.checkpoint}, but the job would end with "
                f"{manifest.name}. Ask again"
            )
        entry = _entry(metadata, uri, request)
        self._catalog.add(entry)
        if entry.scheduled:
            self._drop_surplus()
        return entry

    def take_before_upgrade(self, manifest: Manifest, origin: Origin | None) -> SavepointEntry:
        """Write out the checkpoint that a changed program starts from, unless that was done before.

        Its id follows from the checkpoint, so that another start of the same upgrade finds it.
        """
        what = Request(
            id=f"{_BEFORE_UPGRADE}-{manifest.number}-{digest(encode(manifest))[-12:]}",
            kind=RequestKind.SAVEPOINT,
            created_ms=self._clock.now_ms(),
            type=self._settings.format,
            label=_BEFORE_UPGRADE,
        )
        metadata, uri = self._write(what, manifest, origin, lambda _: None)
        entry = _entry(metadata, uri, what)
        self._catalog.add(entry)
        return entry

    def give_up(self) -> None:
        """End what is being written, from another thread."""
        self._exporter.stop()

    def last_scheduled(self, default: int) -> int:
        return max((e.created_ms for e in self._catalog.list() if e.scheduled), default=default)

    def _write(
        self,
        request: Request,
        manifest: Manifest,
        origin: Origin | None,
        show: Callable[[Progress], None],
    ) -> tuple[SavepointMetadata, str]:
        """Write a savepoint unless it is complete; returns its metadata and its URI."""
        target = StorageRef(self._target(request), self._storage.options)
        directory = SavepointDirectory(storage_of(target))
        metadata = directory.begin(request.id)
        if metadata is None:  # else a driver has written it and died before it recorded it
            started = self._clock.now_ms()
            order = ExportOrder(
                id=request.id,
                target=target,
                writer=directory.writer,
                format=request.type,
                trigger=f"{request.kind.value} ({request.origin.value})",
                label=request.label,
                note=request.note,
                origin=origin,
                drained=request.drain,
            )
            try:
                written = self._exporter.export(
                    manifest,
                    order,
                    started,
                    lambda done, total, size: show(Progress(done, total, size, started)),
                )
                metadata = directory.complete(written)
            except Exception:
                directory.abandon()
                raise
        return metadata, directory.uri

    def _target(self, request: Request) -> str:
        if request.target is not None:
            return request.target
        if self._settings.directory is None:
            raise ConfigurationError(
                "no directory for the savepoint: name one, or set state.savepoints.dir"
            )
        return f"{self._settings.directory.rstrip('/')}/savepoint-{self._name}-{request.id}"

    def _drop_surplus(self) -> None:
        for old in surplus(self._catalog.list(), self._settings.keep):
            try:
                SavepointDirectory.locate(old.path, self._storage.options).delete()
            except CheckpointNotFoundError:
                pass  # somebody else has deleted it
            except TurnbackError as e:
                _LOG.warning("savepoint %s was not deleted, trying again later: %s", old.path, e)
                continue
            self._catalog.forget(old.id)


def _entry(metadata: SavepointMetadata, uri: str, request: Request) -> SavepointEntry:
    return SavepointEntry(
        id=metadata.id,
        path=uri,
        created_ms=metadata.created_ms,
        checkpoint=metadata.checkpoint,
        epoch=metadata.epoch,
        label=metadata.label,
        note=metadata.note,
        scheduled=request.origin is RequestOrigin.SCHEDULE,
        bytes=sum(metadata.files().values()),
    )
