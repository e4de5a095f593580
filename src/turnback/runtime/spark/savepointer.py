from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from turnback.coordinator import LogFile, SourcePosition
from turnback.runtime.snapshot import StoredRows
from turnback.runtime.spark.stateframes import (
    described,
    grouped,
    plain_errors,
    state_frame,
    through,
)
from turnback.runtime.spark.tasks import Task, run_tasks
from turnback.runtime.statereader import reading_spans
from turnback.runtime.statewriter import PartCopier, RowEncoder, SpanCopier, StateWriter
from turnback.runtime.storageref import StorageRef, storage_of
from turnback.savepoint import (
    SOURCES,
    SavedState,
    StatePart,
    file_name,
)
from turnback.state import StateSchema
from turnback.storage import check


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
class Given:
    """State that a user brings.

    Attributes:
        rows: Its columns without key groups, checked.
    """

    rows: DataFrame

    def frame(self, spark: SparkSession) -> DataFrame:
        """Its columns without key groups."""
        return self.rows


@dataclass(frozen=True)
class Position:
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

    def state(self, schema: StateSchema, content: Kept | Given) -> SavedState:
        """Write a state; its files are durable when this returns."""
        if isinstance(content, Kept) and content.max_parallelism == self._max_parallelism:
            parts = self._copied(schema, content)
        else:
            parts = self._written(schema, content)
        return SavedState(schema, sum(part.rows for part in parts), parts)

    def sources(self, positions: Mapping[str, Position]) -> dict[str, SourcePosition]:
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

    def _written(self, schema: StateSchema, content: Kept | Given) -> tuple[StatePart, ...]:
        """Encode, bring the rows of a key group together, sort, write."""
        groups = self._max_parallelism
        frame, by_spark = grouped(content.frame(self._spark), schema, groups)
        epoch = self._epoch if isinstance(content, Given) else None
        rows = through(frame, RowEncoder(schema, groups, by_spark, epoch))
        setting = self._spark.conf.get("spark.sql.shuffle.partitions", "200")
        size = min(groups, int(setting or "200"))
        partition = F.expr(f"CAST(`group` * {size} DIV {groups} AS INT)")
        rows = rows.repartitionById(size, partition).sortWithinPartitions("group", "key", "sub")
        with plain_errors(), described(self._spark, _what("write", schema)):
            records = through(rows, StateWriter(schema, self._target, self._writer)).collect()
        return tuple(msgspec.json.decode(row["part"], type=StatePart) for row in records)

    def _source(self, source: Position) -> SourcePosition:
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
