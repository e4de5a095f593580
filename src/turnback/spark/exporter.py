from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from turnback.checkpoint.manifest import LogFile, Manifest, SourcePosition
from turnback.config.savepoints import SavepointFormat
from turnback.core.errors import CheckpointError
from turnback.snapshot.claims import StateId
from turnback.snapshot.metadata import (
    END_OF_TIME,
    SOURCES,
    Origin,
    SavedState,
    SavepointMetadata,
    StatePart,
    file_name,
)
from turnback.snapshot.writer import copy_tasks, export_tasks
from turnback.spark.engine import Engine
from turnback.spark.worker import Task
from turnback.state.files import StateFile, StorageRef, storage_of
from turnback.state.schema import StateSchema
from turnback.storage.base import Storage
from turnback.storage.envelope import check

T = TypeVar("T")
Written = list[tuple[StateSchema, tuple[StatePart, ...]]]
"""What an `ExportTask` gives."""

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
        note: What the user says of it.
        origin: What the job itself was started from.
        version: Of Turnback.
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
    version: str
    drained: bool = False


class Exporter:
    """Writes checkpoints out as savepoints, beside the epochs.

    A few small tasks after the other: an epoch that starts meanwhile comes before the next of
    them, because Spark serves jobs in the order in which they were submitted.
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
        """Write the files of a savepoint, and return what there is to say about them.

        Args:
            manifest: The checkpoint; its files must not be deleted meanwhile.
            order: What is wanted.
            created_ms: When it was asked for.
            on_progress: Hears how far it is.
        """
        native = order.format is SavepointFormat.NATIVE
        states = [SavedState(schema) for schema in manifest.schemas]
        files: tuple[StateFile, ...] = ()
        if native:
            copies = copy_tasks(manifest, self._storage, order.target, order.writer)
            copied = self._few_by_few(manifest, copies, _size_of_copies, on_progress)
            files = tuple(file for some in copied for file in some)
        else:
            tasks = export_tasks(manifest, self._storage, order.target, order.writer)
            written = self._few_by_few(manifest, tasks, _size_of_parts, on_progress)
            states = self._gathered(manifest, written)
        target = storage_of(order.target)
        return SavepointMetadata(
            id=order.id,
            turnback_version=order.version,
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
            sources={
                leaf: self._copied(p, target, order.writer) for leaf, p in manifest.sources.items()
            },
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

    def _few_by_few(
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
                    f"the savepoint of {manifest.name} was given up: the job ends"
                )
            what = f"{manifest.job}: savepoint, part {start + 1} of {total}"
            done = self._engine.run_tasks(what, tasks[start : start + few])
            results += done
            written += sum(map(size_of, done))
            on_progress(len(results), total, written)
        return results

    def _gathered(self, manifest: Manifest, results: list[Written]) -> list[SavedState]:
        parts: dict[StateId, list[StatePart]] = defaultdict(list)
        for result in results:
            for schema, written in result:
                parts[schema.id] += written
        return [
            SavedState(schema, sum(p.rows for p in parts[schema.id]), tuple(parts[schema.id]))
            for schema in manifest.schemas
        ]

    def _copied(self, position: SourcePosition, target: Storage, writer: str) -> SourcePosition:
        """A source's position, with the files of its log in the savepoint."""
        log: list[LogFile] = []
        for entry in position.log:
            data = storage_of(self._storage).get(entry.path)
            check(data, entry.length, entry.digest, entry.path)
            path = f"{SOURCES}/{file_name(writer, entry.name)}"
            target.put(path, data)
            log.append(msgspec.structs.replace(entry, path=path))
        return SourcePosition(position.offset, tuple(log))


def _size_of_parts(written: Written) -> int:
    return sum(part.length for _, parts in written for part in parts)


def _size_of_copies(files: list[StateFile]) -> int:
    return sum(file.length for file in files)
