"""`SparkBatchSink`: a function of the user gets each epoch as a DataFrame, for any Spark writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from turnback.errors import ConfigurationError
from turnback.sinks.base import CommitterContext, version_of
from turnback.sinks.elements import decode_elements
from turnback.sinks.ownership import SinkIdentity
from turnback.sinks.staged_elements import StagedFiles, StagedPart
from turnback.sinks.write_ahead import StagedOutput, VersionRecords, WriteAheadSink
from turnback.spark.session import spark_session
from turnback.spark.worker import map_batches, numbers_frame, spark_job
from turnback.values.columns import stream_schema
from turnback.values.typeinfo import TypeInfo


@dataclass(frozen=True)
class BatchEpoch:
    """Which output a DataFrame of `for_each_batch` is.

    Attributes:
        job: Name of the job.
        job_id: Identity of the job's lineage; a fork has another.
        sink: The sink's uid.
        attempt: The attempt of the job that ran the epoch.
        epoch: The epoch.
        directory_id: Stands for the job directory; a copy of the job has another. Of output that
            was staged before the directory was moved it is that of the former place.
    """

    job: str
    job_id: str
    sink: str
    attempt: int
    epoch: int
    directory_id: str = ""

    @property
    def writer(self) -> str:
        """A name for this sink of this job, fit for a path; no fork and no copy of it has the same.

        Versions are counted by each job for itself: where several may write, such as a job and its
        fork, a version alone does not tell whose output it is.
        """
        identity = SinkIdentity(self.job, self.directory_id, self.job_id, self.sink)
        return f"w{blake2b(identity.hashed, digest_size=8).hexdigest()}"

    @property
    def version(self) -> int:
        """Attempt and epoch in one number; greater ones are newer, and none comes twice.

        The epoch alone is not enough to recognise what was written before: a job that is turned
        back to an older savepoint counts its epochs again.
        """
        return version_of(self.attempt, self.epoch)


BatchFunction = Callable[[DataFrame, BatchEpoch], None]


class SparkBatchSink(WriteAheadSink):
    """Hands the output of each epoch to a function, as a DataFrame: any Spark writer is a sink.

    Tasks stage their elements; when the checkpoint is complete the driver calls the function,
    epoch by epoch in order, with a DataFrame that executors read from the staged files. The stream
    goes on meanwhile. An epoch without elements is left out.

    When the function has returned, that is recorded in the job directory, and it is not called for
    this output again. If the driver dies before, it is called again with the same elements and the
    same `epoch.version`: **the function has to be idempotent**, by overwriting what an earlier
    call has left, or by a marker that its target stores together with the data. It must not keep
    the DataFrame, whose files are deleted afterwards.

    Args:
        function: Called with the DataFrame and a `BatchEpoch`. It stays on the driver, and need
            not be picklable.

    Raises:
        ConfigurationError: `function` cannot be called.
    """

    publishes_whole_epochs = False  # the function may write in several steps, and so does Spark

    def __init__(self, function: BatchFunction) -> None:
        if not callable(function):
            raise ConfigurationError(
                f"SparkBatchSink takes a function of a DataFrame and an epoch, got {function!r:.60}"
            )
        self._function: BatchFunction | None = function
        self._done: dict[tuple[str, str], int] = {}  # a job in the driver's memory has no files

    def published(self, ctx: CommitterContext) -> int:
        return max(
            self._done.get((ctx.job_id, ctx.uid), 0), VersionRecords(ctx, "published").newest()
        )

    def publish(self, ctx: CommitterContext, output: StagedOutput) -> None:
        assert self._function is not None
        epoch = BatchEpoch(
            ctx.job, ctx.job_id, ctx.uid, output.attempt, output.epoch, ctx.directory_id
        )
        spark = spark_session()
        with spark_job(spark, f"{ctx.uid}: epoch {output.epoch}"):
            self._function(_frame(spark, ctx, output), epoch)
        self._done[ctx.job_id, ctx.uid] = output.version
        VersionRecords(ctx, "published").write(output.version)

    def describe(self) -> dict[str, str]:
        return {"kind": "for_each_batch", "function": _name_of(self._function)}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks do not need it, and it may refer to what cannot be pickled, such as the session.
        return self.__dict__ | {"_function": None}

    def __repr__(self) -> str:
        return f"SparkBatchSink({_name_of(self._function)})"


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _frame(spark: SparkSession, ctx: CommitterContext, output: StagedOutput) -> DataFrame:
    # Tasks cannot use, nor always be sent, what tells the driver of attempts and other jobs.
    of_task = replace(ctx, attempts=None, other_jobs=None, promised=None)
    reader = StagedReader(of_task, output.type, output.parts)
    return map_batches(numbers_frame(spark, len(reader.parts)), reader)


@dataclass(frozen=True)
class StagedReader:
    """Reads staged elements in a task, which is given the numbers of files."""

    ctx: CommitterContext
    type: TypeInfo
    parts: tuple[StagedPart, ...]

    @property
    def schema(self) -> pa.Schema:
        return stream_schema(self.type)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = StagedFiles(self.ctx)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for elements in decode_elements(files.read(self.parts[number]), self.type):
                    yield elements.arrow
