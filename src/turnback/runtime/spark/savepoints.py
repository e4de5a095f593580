from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version

from pyspark.sql import SparkSession

from turnback.coordinator import (
    JobDirectory,
    Manifest,
    Progress,
    Request,
    RequestKind,
    RequestOrigin,
    Requests,
    SavepointCatalog,
    SavepointEntry,
    SavepointSettings,
    surplus,
)
from turnback.coordinator.manifest import encode
from turnback.core import Clock
from turnback.core.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    TurnbackError,
)
from turnback.runtime.spark.exporter import Exporter, ExportOrder
from turnback.runtime.storageref import StorageRef, storage_of
from turnback.savepoint import Origin, SavepointDirectory, SavepointMetadata
from turnback.storage import digest

_LOG = logging.getLogger(__name__)
_BEFORE_UPGRADE = "before-upgrade"


class Savepoints:
    """The savepoints of one job: takes them, remembers them, and drops old scheduled ones.

    Args:
        spark: The session.
        directory: The job directory.
        storage: The same, for tasks.
        settings: Where they go, and how many scheduled ones are kept.
        requests: Where progress is shown.
        clock: Where time comes from.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: JobDirectory,
        storage: StorageRef,
        settings: SavepointSettings,
        requests: Requests,
        clock: Clock,
    ) -> None:
        self._name = directory.name
        self._storage = storage
        self._settings = settings
        self._requests = requests
        self._clock = clock
        self._catalog = SavepointCatalog(directory.storage)
        self._exporter = Exporter(spark, storage)

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

        Its id follows from the checkpoint, so that whoever starts the same upgrade again finds it.

        Args:
            manifest: The checkpoint, whose sinks are settled.
            origin: What the job itself was started from.
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
        """When the last scheduled one was taken."""
        return max((e.created_ms for e in self._catalog.list() if e.scheduled), default=default)

    def _write(
        self,
        request: Request,
        manifest: Manifest,
        origin: Origin | None,
        show: Callable[[Progress], None],
    ) -> tuple[SavepointMetadata, str]:
        """Write a savepoint, or find it complete; returns what it says of itself, and where."""
        target = StorageRef(self._target(request), self._storage.options)
        directory = SavepointDirectory(storage_of(target))
        metadata = directory.begin(request.id)
        if metadata is None:  # else a driver has written it, and died before it could say so
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
                version=version("turnback"),
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
