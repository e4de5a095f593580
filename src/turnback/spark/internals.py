"""What Turnback relies on inside Spark: none of it is documented, all of it is in this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from turnback.spark.session import unless_jvm_lost

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


@contextmanager
def streaming_query(
    frame: DataFrame,
    on_batch: Callable[[DataFrame, int], None],
    scratch: Path,
    *,
    bounded: bool,
    interval_ms: int,
) -> Iterator[StreamingQuery]:
    """Run a streaming query until the end of the block.

    Args:
        frame: The sources.
        on_batch: Called with every micro-batch and its number.
        scratch: Spark's checkpoint directory.
        bounded: Whether the query ends when all that is there now has been read.
        interval_ms: Time between the starts of two batches; 0 for as fast as possible.
    """
    writer = frame.writeStream.foreachBatch(on_batch)
    writer = writer.option("checkpointLocation", scratch.as_uri())
    if bounded:
        writer = writer.trigger(availableNow=True)
    elif interval_ms:
        writer = writer.trigger(processingTime=f"{interval_ms} milliseconds")
    with cheap_local_files(frame.sparkSession):
        query = writer.start()
        try:
            yield query
        finally:
            with unless_jvm_lost("stopping the query"):
                query.stop()
