"""Spark's own Delta reader and writer, for which jars are fetched; they are kept in .cache."""

from __future__ import annotations

from services.jars import fetched_jars, spark_jars


def delta_settings() -> dict[str, str]:
    """What a Spark session is told to know Delta tables."""
    jars = fetched_jars("delta.pom.xml", "delta", "Delta's")
    return {
        "spark.jars": spark_jars(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # A table of a test is no work for the 50 tasks that it gets otherwise.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
    }
