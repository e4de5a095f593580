"""Sources: files, lists and any streaming DataFrame, united in one query.

One query reads all sources of a job, so that one offset log holds every position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from turnback.driver.collection import GivenElements
from turnback.driver.engine import stream_names
from turnback.errors import MalformedRecordError, PlanError
from turnback.plan.bad_records import MALFORMED_COLUMN, ErrorPolicy, malformed_error
from turnback.plan.plan import Plan, SourcePlan
from turnback.plan.sources import OFFSET_COLUMN, PARTITION_COLUMN
from turnback.spark.internals import keeps_order, kept_columns, source_directories, streaming_nodes
from turnback.spark.session import refuse_connect
from turnback.values.columns import stream_columns
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, quote_name
from turnback.worker.event_time import PARTITION
from turnback.worker.program import CHANNEL, CONTROL, STAMPS, TO, RowLayout, source_layout

CORRUPT_COLUMN = "_turnback_corrupt"
"""The text of a record that Spark cannot parse."""

PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
"""The options with which Spark fills that column."""

_CARRIED = 1_000
"""So many characters of a record go into the error; what is shown of them is less."""
_MARK = re.compile(r"<<turnback malformed (?P<body>[0-9A-F]*) demroflam>>")


def placed_text(is_malformed: Column, place: Column, text: Column) -> Column:
    """The column that tells of malformed records where they are, and what they say."""
    # Bytes of any kind may be there, and Arrow takes what Spark calls a string for UTF-8.
    placed = F.struct(place.alias("place"), F.make_valid_utf8(text).alias("text"))
    return F.when(is_malformed, placed).alias(MALFORMED_COLUMN)


def malformed_column(source: SourcePlan) -> Column:
    """Place and text of each record of a source that is malformed, null of others."""
    if MALFORMED_COLUMN in source.dataframe.columns:
        return F.col(MALFORMED_COLUMN)
    corrupt = F.col(CORRUPT_COLUMN)
    names = [quote_name(name) for name, _ in stream_columns(source.type)]
    # Never taken, but Spark has to read all columns for it.
    text = F.coalesce(corrupt, F.struct(*names).cast("string"))
    return placed_text(corrupt.isNotNull(), F.input_file_name(), text)


def refusing_malformed(source: SourcePlan, column: Column, type: TypeInfo) -> Column:
    """The same column, but reading it fails at a malformed record, if that is the policy."""
    if source.on_malformed is not ErrorPolicy.FAIL:
        return column
    malformed = malformed_column(source)
    found = F.struct(
        F.lit(source.uid).alias("uid"),
        malformed["place"].alias("place"),
        F.substring(malformed["text"], 1, _CARRIED).alias("text"),
    )
    marks = F.lit("<<turnback malformed "), F.hex(F.to_json(found)), F.lit(" demroflam>>")
    refuse = F.raise_error(F.concat(*marks)).cast(type.ddl())
    return F.when(malformed.isNull(), column).otherwise(refuse)


def malformed_record(error: BaseException) -> MalformedRecordError | None:
    """What to say of an error of Spark that is about a malformed record; None if it is not."""
    match = _MARK.search(str(error))
    if match is None:
        return None
    found = json.loads(bytes.fromhex(match["body"]))
    return malformed_error(found["uid"], found.get("place"), found.get("text"))


FORMATS = ("csv", "json", "orc", "parquet", "text")
_COLLECTION = "turnback-collection"


def check_files(path: str, format: str, type: TypeInfo) -> RowTypeInfo:
    """Refuse files that cannot be read; return the type of their records."""
    if format not in FORMATS:
        raise PlanError(f"from_files: unknown format {format!r}; available: {', '.join(FORMATS)}")
    if not isinstance(type, RowTypeInfo):
        raise PlanError(f"from_files: the schema must have named columns, got {type}")
    if single_file(path):
        if Path(path).name[0] in "._":
            raise PlanError(
                f"from_files: {path} is hidden: Spark does not read files whose names begin with "
                "'.' or '_'; rename it"
            )
    elif "://" not in path and not Path(path).is_dir():
        raise PlanError(
            f"from_files: {path} does not exist; specify a file, or the directory in which "
            "the files arrive"
        )
    return type


def single_file(path: str) -> bool:
    """Whether a path names one file of this machine, instead of a directory."""
    return "://" not in path and Path(path).is_file()


def literal_pattern(text: str) -> str:
    """The pattern for Spark's file source that fits a text and no other."""
    return re.sub(r"([\\*?\[\]{}^])", r"\\\1", text)


class SourceFrame(NamedTuple):
    """A DataFrame as a source of a job.

    All of its columns are read, whoever needs them, if it is `whole`; every row says from which
    partition it comes if it is `partitioned`; rows come in a known order if it is `ordered`.
    """

    frame: Any
    whole: bool
    partitioned: bool
    ordered: bool


def check_streaming(frame: Any) -> None:
    """Refuse what is no streaming DataFrame."""
    refuse_connect(frame)
    if not hasattr(frame, "isStreaming"):
        raise PlanError(f"from_dataframe takes a DataFrame, got {type(frame).__name__}")
    if not frame.isStreaming:
        raise PlanError(
            "from_dataframe takes a streaming DataFrame, but this one is static; use "
            "spark.readStream instead of spark.read, or from_collection for small data"
        )


def source_frame(frame: Any) -> SourceFrame:
    """Take a DataFrame, or what another engine has in its place, as a source."""
    names = [name.lower() for name in frame.columns]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise PlanError(f"the DataFrame has more than one column named {', '.join(twice)}")
    if not isinstance(frame, DataFrame):
        return SourceFrame(frame, False, _has_partitions(frame), True)
    frame = _with_partitions(frame)
    order = bool(_file_columns(frame))
    return SourceFrame(frame, _needs_all_columns(frame), _has_partitions(frame), order)


def _needs_all_columns(frame: DataFrame) -> bool:
    """Whether what becomes of a malformed record depends on the columns that Spark reads.

    It does if such records are dropped, fail the job, or are kept as text in a column of their own.
    """
    files = [leaf for leaf in streaming_nodes(frame)[0] if leaf.nodeName() == "StreamingRelation"]
    for leaf in files:
        chosen = _options(leaf)
        of_corrupt = chosen.get("columnnameofcorruptrecord", "_corrupt_record")
        if chosen.get("mode", "PERMISSIVE").upper() != "PERMISSIVE":
            return True
        if of_corrupt in list(leaf.schema().fieldNames()):
            return True
    return False


def _with_partitions(frame: DataFrame) -> DataFrame:
    """The same stream, with the partition of each row if it has kept those of Kafka.

    Its own columns say it, unless they were left out, computed or renamed.
    """
    if _has_partitions(frame) or not keeps_order(frame):
        return frame
    ((leaf,), _) = streaming_nodes(frame)
    if leaf.nodeName() != "StreamingRelationV2" or leaf.sourceName() != "kafka":
        return frame
    kept = kept_columns(frame, leaf)
    columns = [kept[name] for name in ("topic", "partition", "offset") if name in kept]
    return frame.select("*", *partition_columns(*columns)) if len(columns) == 3 else frame


def _has_partitions(frame: Any) -> bool:
    """Whether every row says from which partition it comes."""
    return PARTITION_COLUMN in frame.columns


def _options(leaf: Any) -> dict[str, str]:
    """The options of a file source, by their names in lower case."""
    found = {}
    pairs = leaf.dataSource().options().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1()).lower()] = str(pair._2())
    return found


class CollectionSource(DataSource):
    """A list as a Spark streaming source."""

    @classmethod
    def name(cls) -> str:
        return _COLLECTION

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _CollectionReader(self.options["data"])


class _CollectionReader(DataSourceStreamReader):
    """Reads a list; the offset is the number of elements read."""

    def __init__(self, data: str) -> None:
        self._elements = GivenElements(data)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"index": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"index": len(self._elements)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self._elements.check(start["index"])
        return [InputPartition((start["index"], end["index"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end = partition.value
        yield from self._elements.between(start, end)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to give back."""


# -- all sources as one DataFrame


def union_sources(plan: Plan) -> DataFrame:
    """The union of all sources, in the plan's order, with the columns of `source_layout`."""
    layout = source_layout(plan)
    channel_of = {w.producer: w.id for w in layout.channels}
    frames = [_tagged(s, channel_of[s.id], layout) for s in plan.sources]
    return reduce(DataFrame.union, frames)


def no_sources(spark: SparkSession, plan: Plan) -> DataFrame:
    """What `union_sources` would give without any element, in one task, and not as a stream."""
    layout = source_layout(plan)
    tags = [] if layout.bare else control(None, layout)
    columns = [*tags, *nulls(layout)]
    # Spark would leave out a task if it knew that there is nothing to read.
    return spark.range(0, 1, 1, 1).where("id > 0").select(*columns)


def nulls(layout: RowLayout) -> list[Column]:
    """The data columns of a layout, all null."""
    return [F.lit(None).cast(type.ddl()).alias(name) for name, type in layout.fields]


def control(channel: int | None, layout: RowLayout, file: Sequence[Column] = ()) -> list[Column]:
    """The control columns of a layout; `file` and its block are where an element comes from."""
    columns = [
        F.lit(None).cast("int").alias(TO),
        F.lit(channel).cast("int").alias(CHANNEL),
        F.lit(None).cast("binary").alias(CONTROL),
    ]
    if layout.timed:
        segment, block = file or (F.lit(None), F.lit(None))
        zero = segment if not file else F.lit(0)
        stamps = (zero, block, segment, zero)
        columns += [c.cast("bigint").alias(n) for c, n in zip(stamps, STAMPS, strict=True)]
    return columns


def stream_counts(plan: Plan) -> dict[str, int]:
    """How many streams each source reads; one, if it is no DataFrame but of another engine."""
    return {
        s.uid: len(_streams(s)) if isinstance(s.dataframe, DataFrame) else 1 for s in plan.sources
    }


def leaf_directories(plan: Plan) -> dict[str, str]:
    """The directory of every stream in Spark's checkpoint, by name, in Spark's order."""
    streams = [stream for source in plan.sources for stream in _streams(source)]
    return dict(zip(stream_names(stream_counts(plan)), source_directories(streams), strict=True))


def _tagged(source: SourcePlan, channel: int, layout: RowLayout) -> DataFrame:
    columns = nulls(layout)
    span = layout.spans[channel]
    for i, (name, type) in enumerate(stream_columns(source.read)):
        column = F.col(quote_name(name))
        if i == 0:
            column = refusing_malformed(source, column, type)
        columns[span.start + i] = column.alias(layout.fields[span.start + i][0])
    if source.malformed_from:
        columns[span.stop - 1] = malformed_column(source).alias(layout.fields[span.stop - 1][0])
    frame: DataFrame = source.dataframe
    file = _file_columns(frame) if layout.timed else ()
    tags = [] if layout.bare else control(channel, layout, file)
    return frame.select(*tags, *columns)


def _file_columns(frame: DataFrame) -> tuple[Column, ...]:
    """From which file and block, or which partition, each row comes; nothing if not known."""
    if _has_partitions(frame):
        return F.col(PARTITION_COLUMN), F.lit(PARTITION) - F.col(OFFSET_COLUMN)
    if not keeps_order(frame):
        return ()
    columns = F.xxhash64("_metadata.file_path"), F.col("_metadata.file_block_start")
    try:
        frame.select(*columns)
    except AnalysisException:
        return ()  # no file source, or a selection from one
    return columns


def _streams(source: SourcePlan) -> list[Any]:
    streams, stateful = streaming_nodes(source.dataframe)
    if stateful:
        raise PlanError(
            f"source {source.uid!r}: its DataFrame has Spark's own state "
            f"({', '.join(stateful)}), which cannot be part of a checkpoint; use key_by and "
            "process for that step"
        )
    return streams


def partition_columns(topic: str, partition: str, offset: str) -> list[Column]:
    """From which partition a record of Kafka comes, and where it is in it, by these columns."""
    name = F.concat_ws("-", quote_name(topic), quote_name(partition))
    number = F.shiftright(F.xxhash64(name), 2)
    return [number.alias(PARTITION_COLUMN), F.col(quote_name(offset)).alias(OFFSET_COLUMN)]
