"""From the state files of a checkpoint to the files of a savepoint, some key groups at a time."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

import msgspec

from turnback.coordinator import Manifest
from turnback.runtime.spans import spans_of
from turnback.runtime.storageref import StorageRef, read_state, storage_of
from turnback.savepoint import FILES, PartsWriter, StateId, StatePart, StateTable, file_name
from turnback.state import StateFile, StateSchema, live_rows, share
from turnback.storage import check

COPY_BYTES = 64 << 20
SPAN_ROWS = 250_000
SPAN_BYTES = 16 << 20
"""A task folds about as much: little enough to give its place to an epoch soon."""


@dataclass(frozen=True)
class ExportTask:
    """Writes the state of some key groups as Parquet.

    Attributes:
        files: What holds it, as `share` gives it.
        source: The job directory.
        target: The savepoint.
        writer: Who writes it, see `file_name`.
    """

    files: tuple[StateFile, ...]
    source: StorageRef
    target: StorageRef
    writer: str = ""

    def run(self) -> list[tuple[StateSchema, tuple[StatePart, ...]]]:
        """Write; the files are durable when this returns."""
        storage = storage_of(self.target)
        writers: dict[StateId, tuple[StateTable, PartsWriter]] = {}
        for schema, rows in live_rows(self.files, lambda f: read_state(self.source, f)):
            if schema.id not in writers:
                writers[schema.id] = (
                    StateTable(schema),
                    PartsWriter(storage, schema, writer=self.writer),
                )
            codec, writer = writers[schema.id]
            writer.add(codec.to_typed(rows))
        return [(codec.schema, writer.finish()) for codec, writer in writers.values()]


@dataclass(frozen=True)
class CopyTask:
    """Copies state files into a savepoint as they are."""

    files: tuple[StateFile, ...]
    source: StorageRef
    target: StorageRef
    writer: str = ""

    def run(self) -> list[StateFile]:
        """Copy; returns what the savepoint says of the files."""
        return [self._copy(file) for file in self.files]

    def _copy(self, file: StateFile) -> StateFile:
        data = read_state(self.source, file)
        check(data, file.length, file.digest, file.path)
        path = f"{FILES}/{file_name(self.writer, posixpath.basename(file.path))}"
        storage_of(self.target).put(path, data)
        return msgspec.structs.replace(file, path=path, inline=None)


def export_tasks(
    manifest: Manifest, source: StorageRef, target: StorageRef, writer: str = ""
) -> list[ExportTask]:
    """Cut the work into tasks of bounded size."""
    uids = {uid for file in manifest.state for uid in file.operators}
    tasks = []
    for span in spans_of(manifest.max_parallelism, manifest.state, SPAN_ROWS, SPAN_BYTES):
        files = share(manifest.state, dict.fromkeys(uids, span))
        if files:
            tasks.append(ExportTask(files, source, target, writer))
    return tasks


def copy_tasks(
    manifest: Manifest, source: StorageRef, target: StorageRef, writer: str = ""
) -> list[CopyTask]:
    """Deal the files out to tasks of bounded size; most files are small."""
    tasks: list[CopyTask] = []
    held: list[StateFile] = []
    for file in manifest.state:
        held.append(file)
        if sum(f.length for f in held) >= COPY_BYTES:
            tasks.append(CopyTask(tuple(held), source, target, writer))
            held = []
    return [*tasks, CopyTask(tuple(held), source, target, writer)] if held else tasks
