from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from turnback.checkpoint.manifest import LogFile, Manifest, SourcePosition, encode
from turnback.config.savepoints import SavepointSettings
from turnback.core.clock import Clock
from turnback.core.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    TurnbackError,
)
from turnback.job.catalog import SavepointCatalog, SavepointEntry, surplus
from turnback.job.directory import JobDirectory
from turnback.job.request import Progress, Request, RequestKind, RequestOrigin
from turnback.job.requests import Requests
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import (
    SOURCES,
    Origin,
    SavedState,
    SavepointMetadata,
    StatePart,
    file_name,
)
from turnback.snapshot.reader import reading_spans
from turnback.snapshot.snapshot import StoredRows
from turnback.snapshot.writer import PartCopier, RowEncoder, SpanCopier, StateWriter
from turnback.spark.engine import Engine
from turnback.spark.exporter import Exporter, ExportOrder
from turnback.spark.state_frames import described, grouped, plain_errors, state_frame, through
from turnback.spark.worker import Task, run_tasks
from turnback.state.files import StorageRef, storage_of
from turnback.state.schema import StateSchema
from turnback.storage.envelope import check, digest


@dataclass(frozen=True)
class Kept:
    """State of another snapshot, taken over as it is.

    Attributes:
        stored: Its rows.
        max_parallelism: Number of key groups there.
    """

    stored: StoredRows
    max_parallelism: int

    def frame(self, spark: SparkSession) -> DataFrame:
        """Its columns without key groups."""
        return state_frame(spark, self.stored, self.max_parallelism).drop("key_group")


@dataclass(frozen=True)
class GivenFiles:
    """State that a user brings.

    Attributes:
        rows: Its columns without key groups, checked.
    """

    rows: DataFrame

    def frame(self, spark: SparkSession) -> DataFrame:
        """Its columns without key groups."""
        return self.rows


@dataclass(frozen=True)
class SavepointPosition:
    """Where a source goes on.

    Attributes:
        position: The offset, and the list of files seen, if it keeps one.
        storage: Where the files of that list are.
    """

    position: SourcePosition
    storage: StorageRef | None = None


class Savepointer:
    """Writes the state and the positions of a savepoint that no job has taken.

    Args:
        spark: Where the work is done.
        target: The savepoint.
        max_parallelism: Number of key groups.
        epoch: The last epoch in it.
        writer: Who writes it, see `file_name`.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: StorageRef,
        max_parallelism: int,
        epoch: int,
        writer: str,
    ) -> None:
        self._spark = spark
        self._target = target
        self._max_parallelism = max_parallelism
        self._epoch = epoch
        self._writer = writer

    def state(self, schema: StateSchema, content: Kept | GivenFiles) -> SavedState:
        """Write a state; its files are durable when this returns."""
        if isinstance(content, Kept) and content.max_parallelism == self._max_parallelism:
            parts = self._copied(schema, content)
        else:
            parts = self._written(schema, content)
        return SavedState(schema, sum(part.rows for part in parts), parts)

    def sources(self, positions: Mapping[str, SavepointPosition]) -> dict[str, SourcePosition]:
        """Copy what belongs to the positions of sources."""
        return {leaf: self._source(position) for leaf, position in positions.items()}

    def _copied(self, schema: StateSchema, kept: Kept) -> tuple[StatePart, ...]:
        stored, target, writer = kept.stored, self._target, self._writer
        tasks: list[Task[tuple[StatePart, ...]]] = [
            PartCopier(schema, part, stored.storage, target, writer) for part in stored.parts
        ]
        for span in reading_spans(stored, kept.max_parallelism) if stored.files else ():
            tasks.append(SpanCopier(schema, stored, span, target, writer))
        results = run_tasks(self._spark, _what("copy", schema), tasks)
        return tuple(part for parts in results for part in parts)

    def _written(self, schema: StateSchema, content: Kept | GivenFiles) -> tuple[StatePart, ...]:
        """Encode, bring the rows of a key group together, sort, write."""
        groups = self._max_parallelism
        frame, by_spark = grouped(content.frame(self._spark), schema, groups)
        epoch = self._epoch if isinstance(content, GivenFiles) else None
        rows = through(frame, RowEncoder(schema, groups, by_spark, epoch))
        setting = self._spark.conf.get("spark.sql.shuffle.partitions", "200")
        size = min(groups, int(setting or "200"))
        partition = F.expr(f"CAST(`group` * {size} DIV {groups} AS INT)")
        rows = rows.repartitionById(size, partition).sortWithinPartitions("group", "key", "sub")
        with plain_errors(), described(self._spark, _what("write", schema)):
            records = through(rows, StateWriter(schema, self._target, self._writer)).collect()
        return tuple(msgspec.json.decode(row["part"], type=StatePart) for row in records)

    def _source(self, source: SavepointPosition) -> SourcePosition:
        log: list[LogFile] = []
        for entry in source.position.log:
            assert source.storage is not None
            data = storage_of(source.storage).get(entry.path)
            check(data, entry.length, entry.digest, f"{source.storage.uri}/{entry.path}")
            path = f"{SOURCES}/{file_name(self._writer, uuid.uuid4().hex)}"
            storage_of(self._target).put(path, data)
            log.append(msgspec.structs.replace(entry, path=path))
        return SourcePosition(source.position.offset, tuple(log))


def _what(verb: str, schema: StateSchema) -> str:
    return f"savepoint: {verb} state {schema.name!r} of operator {schema.uid!r}"


_LOG = logging.getLogger(__name__)
_BEFORE_UPGRADE = "before-upgrade"


class Savepoints:
    """The savepoints of one job: takes them, remembers them, and drops old scheduled ones.

    Args:
        engine: Runs the tasks that write them.
        directory: The job directory.
        storage: The same, for tasks.
        settings: Where they go, and how many scheduled ones are kept.
        requests: Where progress is shown.
        clock: Where time comes from.
    """

    def __init__(
        self,
        engine: Engine,
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
        self._exporter = Exporter(engine, storage)

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
