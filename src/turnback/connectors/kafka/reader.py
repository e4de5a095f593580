"""Kafka through Spark's connector: as a DataFrame, and what to do when the connector is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from turnback.connectors.records import place_of, with_values
from turnback.connectors.schemas import DeserializationSchema
from turnback.errors import ConfigurationError
from turnback.spark.sources import partition_columns

_JAR = "spark-sql-kafka-0-10"


def kafka_frame(
    spark: SparkSession,
    options: Mapping[str, str],
    schema: DeserializationSchema,
    metadata: Mapping[str, str],
) -> DataFrame:
    """Records of Kafka as a stream: columns of their values, then of what else is wanted.

    Records without a value, which delete in a compacted topic, are left out.
    """
    try:
        records = spark.readStream.format("kafka").options(**options).load()
    except AnalysisException as error:
        if re.search(r"find (the )?data source: kafka", str(error)):
            raise ConfigurationError(
                f"Spark has no connector for Kafka. {how_to_get(spark.version)}"
            ) from None
        raise ConfigurationError(f"KafkaSource: {error}") from None
    records = records.where("value IS NOT NULL")
    wanted = [F.col(f"`{what}`").alias(name) for what, name in metadata.items()]
    wanted += partition_columns("topic", "partition", "offset")
    place = {name: name for name in ("topic", "partition", "offset")}
    return with_values(records, schema, wanted, place_of(place))


def how_to_get(version: str) -> str:
    """How to get the connector for this version of Spark."""
    return (
        f"Start with `turnback run -D spark.jars.packages={connector_package(version)}`, or "
        f"`spark-submit --packages {connector_package(version)}`; without internet access, put "
        "the jar and its dependencies into spark.jars"
    )


def connector_package(version: str) -> str:
    """The connector's coordinates in Maven's repositories."""
    return f"org.apache.spark:{_JAR}_2.13:{version}"


def configured_connector(spark_options: Mapping[str, Any]) -> str | None:
    """Where Spark would get the connector from, as far as can be told without starting it."""
    for where, text in _places(spark_options):
        if _JAR in text:
            return where
    return None


def _places(spark_options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in spark_options.items():
        yield key, str(value)
    yield "PYSPARK_SUBMIT_ARGS", os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    for jar in (home / "jars").glob(f"{_JAR}*.jar"):
        yield str(jar), jar.name
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    if defaults.is_file():
        yield str(defaults), defaults.read_text(errors="replace")
