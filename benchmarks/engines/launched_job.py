"""The counting job as `turnback run` starts it: without end, over files that appear.

It notes when it has come how far. Where Turnback does not report that, its functions are wrapped.
"""

from __future__ import annotations

import time

FIRST_LINE = time.time()

import argparse  # noqa: E402
import os  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pyspark.core.context  # noqa: E402

from benchmarks.engines.marks import Marks, Point  # noqa: E402
from benchmarks.engines.turnback_job import Count, with_function  # noqa: E402
from benchmarks.processes import started_at  # noqa: E402
from benchmarks.records import FAILING, SPARK_SCHEMA  # noqa: E402
from turnback import FileSink, KeyedProcessFunction, Row, StreamExecutionEnvironment  # noqa: E402
from turnback.driver.epochs import Epochs  # noqa: E402
from turnback.driver.runner import JobRunner  # noqa: E402
from turnback.spark.engine import SparkQuery  # noqa: E402

JOB = "launched"


class FailingOnce(Count):
    """Fails at the record that is to fail, the first time it comes."""

    def __init__(self, failed: Path) -> None:
        self.failed = failed

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        if value.post == FAILING and not self.failed.exists():
            self.failed.touch()
            raise ValueError("the record that is to fail")
        return super().process_element(value, ctx)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", type=Path, required=True)
    place = parser.parse_args().place
    marks = Marks(place / "marks")
    marks.note(Point.PROCESS, started_at(os.getpid()))
    marks.note(Point.FIRST_LINE, FIRST_LINE)
    marks.note(Point.IMPORTS)
    marks.around(pyspark.core.context, "launch_gateway", after=Point.JVM)
    marks.around(SparkQuery, "start", before=Point.RESTORED)
    marks.around(
        Epochs,
        "run",
        before=Point.INPUT,
        after=Point.EPOCH,
        failed=Point.FAILED,
        again=Point.AGAIN,
    )
    marks.around(JobRunner, "_await_restart", before=Point.DELAY, after=Point.DELAYED)
    env = StreamExecutionEnvironment.get_execution_environment(
        {"state.backend.local-dir": str(place / "local")}
    )
    assert env.spark is not None
    marks.note(Point.SESSION)
    env.enable_checkpointing("10 ms").set_state_backend("rocksdb")
    events = env.from_files(
        place / "events", "parquet", SPARK_SCHEMA, "events", max_files_per_epoch=1
    )
    counts = with_function(FailingOnce(place / "failed"))(events).uid("count")
    counts.sink_to(FileSink(str(place / "counts"), "parquet")).uid("out")
    env.execute(JOB)


if __name__ == "__main__":
    main()
