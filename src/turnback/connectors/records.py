"""Records of other systems as streams: columns of their values, then of what else is wanted."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from turnback.connectors.schemas import DeserializationSchema, JsonRowDeserializationSchema
from turnback.errors import ConfigurationError, TurnbackError
from turnback.plan.sources import OFFSET_COLUMN, PARTITION_COLUMN, partition_number
from turnback.spark.sources import CORRUPT_COLUMN, PERMISSIVE, placed_text
from turnback.values.columns import stream_ddl
from turnback.values.typeinfo import quote_name
from turnback.worker.message import encode_error

_PARSED = "_turnback_row"
_PLACE = {PARTITION_COLUMN: "bigint", OFFSET_COLUMN: "bigint"}
_ARROW = {
    "binary": pa.binary(),
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<struct<key string, value binary>>": pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    ),
}
F_ = TypeVar("F_", bound=Callable[..., Any])


def with_values(
    records: DataFrame, schema: DeserializationSchema, wanted: Sequence[Column], place: Column
) -> DataFrame:
    """The column `value` of records as a schema says, followed by other columns.

    If it is parsed, a last column tells what is malformed; `place` is where a record is.
    """
    if isinstance(schema, JsonRowDeserializationSchema):
        return _parsed(records, schema, wanted, place)
    return records.select(F.col("value").cast("string").alias("value"), *wanted)


def _parsed(
    records: DataFrame,
    schema: JsonRowDeserializationSchema,
    wanted: Sequence[Column],
    place: Column,
) -> DataFrame:
    """Values as JSON. With options, Spark parses all of it, whatever is read."""
    ddl = f"{stream_ddl(schema.type_info)}, {CORRUPT_COLUMN} string"
    text = F.col("value").cast("string")
    parsed = records.select("*", F.from_json(text, ddl, PERMISSIVE).alias(_PARSED))
    row = F.col(_PARSED)
    # An empty text becomes no row at all.
    is_malformed = row.isNull() | row[CORRUPT_COLUMN].isNotNull()
    fields = [row.getField(name).alias(name) for name in schema.type_info.names]
    return parsed.select(*fields, *wanted, placed_text(is_malformed, place, text))


def place_of(columns: Mapping[str, str]) -> Column:
    """Where a record is, for people: its columns, and what they are called."""
    pattern = ", ".join(f"{called} %s" for called in columns.values())
    return F.format_string(pattern, *(F.col(quote_name(name)) for name in columns))


# -- sources that are written in Python


def python_source(module: str, name: str, version: str) -> type[DataSource]:
    """A data source of Turnback, by its module and name, if this version of Spark can run it."""
    if not hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
        raise ConfigurationError(
            f"RabbitMQSource and KinesisSource need Spark 4.2 or newer, but this is {version}: "
            "older versions do not give a source the start of an epoch before asking for its "
            "end. Install a newer one: pip install 'pyspark>=4.2'"
        )
    source: type[DataSource] = getattr(importlib.import_module(module), name)
    return source


def python_frame(
    spark: SparkSession,
    source: type[DataSource],
    options: Mapping[str, str],
    schema: DeserializationSchema,
    metadata: Mapping[str, str],
    place: Mapping[str, str],
) -> DataFrame:
    """The records of a source that gives `value`, metadata, and the place of each record.

    `metadata` has the columns that are wanted by what they hold, `place` what people call the
    metadata that tell where a malformed record is.
    """
    spark.dataSource.register(source)
    is_parsed = isinstance(schema, JsonRowDeserializationSchema)
    columns = dict.fromkeys([*metadata, *(place if is_parsed else ())])
    given = {**options, "columns": json.dumps(list(columns))}
    records = spark.readStream.format(source.name()).options(**given).load()
    wanted = [F.col(f"`{what}`").alias(name) for what, name in metadata.items()]
    return with_values(records, schema, [*wanted, *map(F.col, _PLACE)], place_of(place))


def ddl_of(columns: Iterable[str], types: Mapping[str, str]) -> str:
    """The schema of records with these metadata, whose types are by name."""
    fields = {"value": "binary", **{name: types[name] for name in columns}, **_PLACE}
    return ", ".join(f"`{name}` {type}" for name, type in fields.items())


def record_batch(
    partition: str, columns: Mapping[str, Sequence[Any]], types: Mapping[str, str]
) -> pa.RecordBatch:
    """Records of one partition in the form of `ddl_of`, given with `OFFSET_COLUMN`."""
    known = {"value": "binary", **types, **_PLACE}
    numbers = [partition_number(partition)] * len(columns["value"])
    ordered = {name: values for name, values in columns.items() if name != OFFSET_COLUMN}
    ordered |= {PARTITION_COLUMN: numbers, OFFSET_COLUMN: columns[OFFSET_COLUMN]}
    arrays = [pa.array(values, _ARROW[known[name]]) for name, values in ordered.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(ordered))


def errors_encoded(method: F_) -> F_:
    """Let the errors of a method of a reader survive the way through Spark."""

    @wraps(method)
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except TurnbackError as error:
            raise encode_error(error) from error

    return call  # type: ignore[return-value]


def shares(available: Mapping[str, int], most: int | None) -> dict[str, int]:
    """How many records an epoch reads of each partition, given how many there are.

    In proportion, so that partitions that are behind catch up together; at least one in all.
    """
    total = sum(available.values())
    if most is None or total <= most:
        return dict(available)
    found = {name: count * most // total for name, count in available.items()}
    left = most - sum(found.values())
    for name in sorted(available, key=lambda name: (found[name] - available[name], name))[:left]:
        found[name] += 1
    return found
