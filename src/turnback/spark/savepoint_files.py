"""Savepoints that no job takes: state that users bring, or take over from other snapshots."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from turnback.checkpoint.manifest import SourcePosition
from turnback.snapshot.metadata import SOURCES, SavedState, StatePart, file_name
from turnback.snapshot.snapshot import StoredRows, reading_spans
from turnback.snapshot.writer import (
    PartCopier,
    RowEncoder,
    SpanCopier,
    StateWriter,
    copy_source_log,
)
from turnback.spark.state_frames import described, grouped, plain_errors, state_frame, through
from turnback.spark.worker import Task, run_tasks
from turnback.state.files import StorageRef
from turnback.state.schema import StateSchema


@dataclass(frozen=True)
class CopiedState:
    """State of another snapshot, unchanged.

    Attributes:
        stored: Its rows.
        max_parallelism: Number of key groups there.
    """

    stored: StoredRows
    max_parallelism: int

    def frame(self, spark: SparkSession) -> DataFrame:
        return state_frame(spark, self.stored, self.max_parallelism).drop("key_group")


@dataclass(frozen=True)
class NewState:
    """State that the user gives as a DataFrame.

    Attributes:
        rows: Its columns without key groups, checked.
    """

    rows: DataFrame

    def frame(self, spark: SparkSession) -> DataFrame:
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


class SavepointFiles:
    """Writes the state and the positions of a savepoint that no job has taken."""

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

    def write_state(self, schema: StateSchema, content: CopiedState | NewState) -> SavedState:
        """Write a state; its files are durable when this returns."""
        if isinstance(content, CopiedState) and content.max_parallelism == self._max_parallelism:
            parts = self._copied(schema, content)
        else:
            parts = self._written(schema, content)
        return SavedState(schema, sum(part.rows for part in parts), parts)

    def copy_sources(self, positions: Mapping[str, SavepointPosition]) -> dict[str, SourcePosition]:
        """Copy what belongs to the positions of sources."""
        return {leaf: self._source(position) for leaf, position in positions.items()}

    def _copied(self, schema: StateSchema, copied: CopiedState) -> tuple[StatePart, ...]:
        stored, target, writer = copied.stored, self._target, self._writer
        tasks: list[Task[tuple[StatePart, ...]]] = [
            PartCopier(schema, part, stored.storage, target, writer) for part in stored.parts
        ]
        for span in reading_spans(stored, copied.max_parallelism) if stored.files else ():
            tasks.append(SpanCopier(schema, stored, span, target, writer))
        results = run_tasks(self._spark, _description("copy", schema), tasks)
        return tuple(part for parts in results for part in parts)

    def _written(
        self, schema: StateSchema, content: CopiedState | NewState
    ) -> tuple[StatePart, ...]:
        """Encode, bring the rows of a key group together, sort, write."""
        groups = self._max_parallelism
        frame, by_spark = grouped(content.frame(self._spark), schema, groups)
        epoch = self._epoch if isinstance(content, NewState) else None
        rows = through(frame, RowEncoder(schema, groups, by_spark, epoch))
        setting = self._spark.conf.get("spark.sql.shuffle.partitions", "200")
        size = min(groups, int(setting or "200"))
        partition = F.expr(f"CAST(`group` * {size} DIV {groups} AS INT)")
        rows = rows.repartitionById(size, partition).sortWithinPartitions("group", "key", "sub")
        with plain_errors(), described(self._spark, _description("write", schema)):
            records = through(rows, StateWriter(schema, self._target, self._writer)).collect()
        return tuple(msgspec.json.decode(row["part"], type=StatePart) for row in records)

    def _source(self, source: SavepointPosition) -> SourcePosition:
        if source.storage is None:  # an offset alone
            return source.position
        return copy_source_log(
            source.position,
            source.storage,
            self._target,
            lambda _: f"{SOURCES}/{file_name(self._writer, uuid.uuid4().hex)}",
        )


def _description(verb: str, schema: StateSchema) -> str:
    return f"savepoint: {verb} state {schema.name!r} of operator {schema.uid!r}"
