from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from turnback.runtime.spark.java import unless_jvm_lost

_CHEAP = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@contextmanager
def cheap_local_files(spark: SparkSession) -> Iterator[None]:
    """Let Spark write its scratch directory without a child process and a checksum per file.

    For every file it creates in a local directory Spark starts a process that sets the file's
    mode, and writes a second file with checksums: three times an epoch, 50 ms each. The scratch
    directory needs neither: nothing is ever restored from it.
    """
    before = {key: spark.conf.get(key, None) for key in _CHEAP}
    for key, value in _CHEAP.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        with unless_jvm_lost("settings of the session"):
            for key, old in before.items():
                if old is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, old)
