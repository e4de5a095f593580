"""The Spark session all Spark-based engines share, so that none is tuned better than another."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.workload import PARALLELISM

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start(name: str, scratch: Path) -> SparkSession:
    """Start `local[2]` with RocksDB state, changelog checkpoints and nothing that only observes."""
    # Without it workers take the first Python of the path, which has none of the packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    store = "spark.sql.streaming.stateStore"
    spark = (
        SparkSession.builder.master(f"local[{PARALLELISM}]")
        .appName(name)
        .config("spark.driver.memory", "4g")
        .config("spark.local.dir", str(scratch / "spark-local"))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(PARALLELISM))
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config(f"{store}.providerClass", ROCKSDB)
        .config(f"{store}.rocksdb.changelogCheckpointing.enabled", "true")
        # Counting rows costs a read per write; Spark's guide advises to switch it off for speed.
        .config(f"{store}.rocksdb.trackTotalNumberOfRows", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
