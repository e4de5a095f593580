"""State of snapshots as DataFrames, and DataFrames as the state of new savepoints."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from turnback.checkpoint.manifest import SourcePosition
from turnback.driver.engine import Task
from turnback.errors import ConfigurationError, StateError, UnsupportedTypeError
from turnback.snapshot.diff import CHANGE_SQL, Change, ChangeDecoder, StatePair
from turnback.snapshot.metadata import SOURCES, SavedState, StatePart, file_name
from turnback.snapshot.numbering import NumberedReader
from turnback.snapshot.snapshot import StateReader, StoredRows, reading_spans
from turnback.snapshot.table import StateTable
from turnback.snapshot.writer import (
    PartCopier,
    RowEncoder,
    SpanCopier,
    StateWriter,
    copy_source_log,
)
from turnback.spark.internals import only_reads
from turnback.spark.worker import map_batches, numbers_frame, run_tasks, spark_job
from turnback.state.files import StorageRef
from turnback.state.schema import LIST_KINDS, SINGLE_KINDS, StateSchema
from turnback.values.hints import as_type
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types, quote_name

_AS_TEXT = (Types.BIG_INT(), Types.SQL_TIME())


def state_frame(
    spark: SparkSession,
    stored: StoredRows,
    max_parallelism: int,
    reader: StateReader | None = None,
) -> DataFrame:
    """A state as a table; read when the DataFrame is used, by tasks only.

    It has typed columns, list elements with their place in the list. A reader may give it others:
    `StateReader` what the list sorts by, `EntryReader` bytes that can be compared.
    """
    spans = tuple(reading_spans(stored, max_parallelism))
    reader = replace(reader or NumberedReader(stored, ()), spans=spans)
    return map_batches(numbers_frame(spark, len(spans)), reader)


def view_session(
    spark: SparkSession, views: Mapping[str, StoredRows], max_parallelism: int
) -> SparkSession:
    """A session of its own that knows states under these names."""
    active = SparkSession.getActiveSession() or spark
    session = spark.newSession()
    zone = "spark.sql.session.timeZone"
    session.conf.set(zone, spark.conf.get(zone) or "UTC")
    for view, stored in views.items():
        state_frame(session, stored, max_parallelism).createOrReplaceTempView(view)
    # Whichever session made a DataFrame last is the active one, which others find and use.
    active.createDataFrame([], "number int")
    return session


def check_only_reads(spark: SparkSession, sql: str) -> None:
    """Refuse SQL that would write, create or set something: `ConfigurationError`."""
    if not only_reads(spark, sql):
        raise ConfigurationError("snapshots are read-only: use a single SELECT")


def check_columns(
    frame: DataFrame, schema: StateSchema, key_columns: tuple[str, ...] | None = None
) -> DataFrame:
    """The columns of a state, without key groups, out of a user's DataFrame, if they fit.

    The key is one column, ``key``, unless `key_columns` make it up. Other columns are left out.
    """
    wanted = {field.name: as_type(field.type) for field in StateTable(schema).arrow_schema}
    del wanted["key_group"]
    selected: list[Column] = []
    if key_columns is not None:
        del wanted["key"]
        selected.append(_key_column(frame, schema, key_columns))
    for name, type_ in wanted.items():
        actual = column_type(frame, name, schema.title)
        if actual != type_:
            raise StateError(
                f"{schema.title}: column {name!r} is {actual}, expected {type_}; cast it, or "
                "declare the state with that type"
            )
        selected.append(F.col(quote_name(name)))
    return frame.select(*selected)


def column_type(frame: DataFrame, name: str, state: str) -> TypeInfo:
    """The type of a user's column, if it is there and state can have it."""
    if name not in frame.columns:
        raise StateError(
            f"{state}: there is no column {name!r}; the columns are "
            f"{', '.join(map(repr, frame.columns)) or 'none'}; rename or add it"
        )
    try:
        return as_type(frame.schema[name].dataType)
    except UnsupportedTypeError as e:
        raise StateError(f"{state}: column {name!r} cannot be state: {e}") from e


def _key_column(frame: DataFrame, schema: StateSchema, columns: tuple[str, ...]) -> Column:
    types = schema.key.type_infos()
    for name, type_ in zip(columns, types, strict=True):
        if column_type(frame, name, schema.title) != type_ or not _is_native(type_):
            raise StateError(
                f"{schema.title}: {name!r} cannot be a key column, because a savepoint stores "
                f"{type_} as text; key the stream by another column"
            )
    if len(columns) == 1:
        return F.col(quote_name(columns[0])).alias("key")
    parts = [F.col(quote_name(name)).alias(f"f{i}") for i, name in enumerate(columns)]
    return F.struct(*parts).alias("key")


def with_key_groups(
    frame: DataFrame, schema: StateSchema, max_parallelism: int
) -> tuple[DataFrame, bool]:
    """Put the key group before the columns of a state, if Spark can compute it.

    Returns the columns, and whether the key group is right; if not, tasks compute it, row by row.
    """
    types = schema.key.type_infos()
    by_spark = schema.key.columns and all(map(_is_native, types))
    keys = [f"key.f{i}" for i in range(len(types))] if len(types) > 1 else ["key"]
    group = f"pmod(xxhash64({', '.join(keys)}), {max_parallelism})" if by_spark else "0"
    return frame.select(F.expr(f"CAST({group} AS INT)").alias("key_group"), "*"), by_spark


def _is_native(type_: TypeInfo) -> bool:
    """Whether a column of a savepoint has the type that the column of a stream has."""
    if isinstance(type_, RowTypeInfo):
        return all(map(_is_native, type_.types))
    return type_ not in _AS_TEXT


def changes_frame(spark: SparkSession, pair: StatePair) -> DataFrame:
    """What changed in a state: key, position or map_key, change, old and new."""
    joined = _joined(spark, pair).where(F.col("change") != Change.UNCHANGED.value)
    return map_batches(joined, ChangeDecoder(pair.schema))


def _joined(spark: SparkSession, pair: StatePair) -> DataFrame:
    old_reader, new_reader = pair.readers
    old = state_frame(spark, pair.old, pair.old_groups, old_reader)
    new = state_frame(spark, pair.new, pair.new_groups, new_reader)
    place = F.lit(None).cast("int")
    if pair.schema.kind in LIST_KINDS:
        place = F.row_number().over(Window.partitionBy("key").orderBy("sub")) - 1
    old = old.withColumn("place", place).alias("a")
    new = new.withColumn("place", place).alias("b")
    same = F.col("a.key") == F.col("b.key")
    if pair.schema.kind not in SINGLE_KINDS:
        same = same & (F.col("a.sub") == F.col("b.sub"))
    rows = old.join(new, same, "full_outer").select(
        F.coalesce("a.key", "b.key").alias("key"),
        F.coalesce("a.sub", "b.sub").alias("sub"),
        F.col("a.value").alias("old"),
        F.col("b.value").alias("new"),
        F.coalesce("b.place", "a.place").cast("bigint").alias("place"),
    )
    return rows.withColumn("change", F.expr(CHANGE_SQL))


def count_changes(spark: SparkSession, pairs: Sequence[StatePair]) -> list[dict[Change, int]]:
    """How many rows of each state were added, removed, changed and not changed; one Spark job."""
    if not pairs:
        return []
    frames = [
        _joined(spark, pair).groupBy("change").count().withColumn("pair", F.lit(i))
        for i, pair in enumerate(pairs)
    ]
    union = reduce(DataFrame.unionByName, frames)
    with spark_job(spark, "diff of savepoints"):
        counts = Counter({(r["pair"], Change(r["change"])): r["count"] for r in union.collect()})
    return [{change: counts[i, change] for change in Change} for i in range(len(pairs))]


# -- savepoints that no job takes: state that users bring, or take over from other snapshots


@dataclass(frozen=True)
class CopiedState:
    """State of another snapshot, unchanged, and the number of key groups there."""

    stored: StoredRows
    max_parallelism: int

    def frame(self, spark: SparkSession) -> DataFrame:
        reader = StateReader(self.stored, ())
        return state_frame(spark, self.stored, self.max_parallelism, reader).drop("key_group")


StateContent = CopiedState | DataFrame
"""Copied, or what the user gives: the columns of the state without key groups, checked."""


@dataclass(frozen=True)
class SavepointPosition:
    """Where a source goes on, and where the list of files it has seen is, if it keeps one."""

    position: SourcePosition
    storage: StorageRef | None = None


@dataclass(frozen=True)
class SavepointFiles:
    """Writes the state and the positions of a savepoint that no job has taken."""

    spark: SparkSession
    target: StorageRef
    max_parallelism: int
    epoch: int
    writer: str

    def write_state(self, schema: StateSchema, content: StateContent) -> SavedState:
        """Write a state; its files are durable when this returns."""
        if not isinstance(content, CopiedState):
            parts = self._write(schema, content, self.epoch)
        elif content.max_parallelism != self.max_parallelism:
            parts = self._write(schema, content.frame(self.spark), None)
        else:
            parts = self._copy(schema, content)
        return SavedState(schema, sum(part.rows for part in parts), parts)

    def copy_source(self, source: SavepointPosition) -> SourcePosition:
        """Copy what belongs to the position of a source."""
        if source.storage is None:  # an offset alone
            return source.position
        return copy_source_log(
            source.position,
            source.storage,
            self.target,
            lambda _: f"{SOURCES}/{file_name(self.writer, uuid.uuid4().hex)}",
        )

    def _copy(self, schema: StateSchema, copied: CopiedState) -> tuple[StatePart, ...]:
        stored = copied.stored
        target = self.target
        writer = self.writer
        tasks: list[Task[tuple[StatePart, ...]]] = [
            PartCopier(schema, part, stored.storage, target, writer) for part in stored.parts
        ]
        for span in reading_spans(stored, copied.max_parallelism) if stored.files else ():
            tasks.append(SpanCopier(schema, stored, span, target, writer))
        results = run_tasks(self.spark, f"savepoint: copy {schema.title}", tasks)
        return tuple(part for parts in results for part in parts)

    def _write(
        self, schema: StateSchema, frame: DataFrame, epoch: int | None
    ) -> tuple[StatePart, ...]:
        """Encode, bring the rows of a key group together, sort, write."""
        groups = self.max_parallelism
        frame, by_spark = with_key_groups(frame, schema, groups)
        rows = map_batches(frame, RowEncoder(schema, groups, by_spark, epoch))
        setting = self.spark.conf.get("spark.sql.shuffle.partitions", "200")
        size = min(groups, int(setting or "200"))
        partition = F.expr(f"CAST(`group` * {size} DIV {groups} AS INT)")
        rows = rows.repartitionById(size, partition).sortWithinPartitions("group", "key", "sub")
        with spark_job(self.spark, f"savepoint: write {schema.title}"):
            records = map_batches(rows, StateWriter(schema, self.target, self.writer)).collect()
        return tuple(msgspec.json.decode(row["part"], type=StatePart) for row in records)
