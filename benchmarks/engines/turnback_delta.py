"""Turnback writing a stream to a Delta table, or to Parquet files, exactly once."""

from __future__ import annotations

from importlib.metadata import version

import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.engines import arguments, spark_query, spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import Result, check
from benchmarks.window_dataset import SPARK_SCHEMA, WindowDataset
from benchmarks.workload import PARALLELISM
from turnback import FileSink, StreamExecutionEnvironment
from turnback.connectors.tables import DeltaSink

DELTA = "turnback-delta"
FILES = "turnback-files"


def run(given: arguments.Arguments[WindowDataset]) -> Result:
    workload, out = given.dataset.workload, given.scratch / "out"
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    with turnback_job.local_directory("rocksdb") as local:
        env = StreamExecutionEnvironment.get_execution_environment(
            {"state.backend.local-dir": str(local)}, spark=spark, root=given.scratch / "turnback"
        )
        env.set_parallelism(PARALLELISM).enable_checkpointing("10 ms")
        frame = spark_query.read(spark, given.dataset.batch_files, SPARK_SCHEMA)
        sink = DeltaSink(out) if given.variant == DELTA else FileSink(out)
        env.from_dataframe(frame, uid="events").sink_to(sink).uid("out")
        report = env.execute("bench", bounded=True)
    timer.wait()
    check("batches", len(timer.seconds), workload.batches)
    if given.variant == DELTA:
        rows = DeltaTable(str(out)).count()
    else:
        rows = sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet"))
    check("rows", rows, workload.records)
    return Result(
        engine=given.variant,
        records=workload.counted_records,
        seconds=tuple(timer.seconds[workload.warmup_batches :]),
        checkpoints=report.checkpoints,
        versions={
            "turnback": version("turnback"),
            "deltalake": version("deltalake"),
            **spark_query.versions(spark),
        },
    )


if __name__ == "__main__":
    run(arguments.parse_with(__doc__ or "", (DELTA, FILES), WindowDataset.load)).print()
