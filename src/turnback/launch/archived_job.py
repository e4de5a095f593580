"""A small job that does what jobs do, so that its JVM loads the classes that jobs need.

It reads files, keeps state, takes a checkpoint, and goes on from it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from turnback.api.environment import StreamExecutionEnvironment
from turnback.connectors.files.sink import FileSink
from turnback.functions.base import KeyedProcessFunction, RuntimeContext
from turnback.functions.descriptors import ValueStateDescriptor
from turnback.values.row import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAIT_S = 300.0
_SCHEMA = "name string, n bigint"


class _Count(KeyedProcessFunction):
    """Asks for its state in `open`, so that a start has to open it to know."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield Row(value.name, n)


def run_job(settings: dict[str, str]) -> None:
    """Run it, twice, with these settings of Spark; then end the JVM."""
    with tempfile.TemporaryDirectory(prefix="turnback-classes-", ignore_cleanup_errors=True) as at:
        place = Path(at)
        os.chdir(place)  # no configuration file here
        spark = None
        for start in range(2):
            spark = _run_once(place, start, settings)
        assert spark is not None
        _end_jvm(spark)


def _run_once(place: Path, start: int, settings: dict[str, str]) -> SparkSession:
    env = StreamExecutionEnvironment(
        root=place / "jobs",
        configuration={
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            "state.backend.type": "rocksdb",
            "state.backend.local-dir": str(place / "local"),
            **settings,
        },
    )
    env.set_parallelism(2).enable_checkpointing("10 ms")
    names = ("parquet", "json")
    streams = []
    for name in names:
        files = place / name
        files.mkdir(exist_ok=True)
        if name == "parquet":
            rows = pa.table({"name": ["a", "b"], "n": [1, 2]})
            parquet.write_table(rows, files / f"{start}.parquet")
        else:
            (files / f"{start}.json").write_text('{"name":"a","n":1}\n')
        streams.append(env.from_files(files, name, _SCHEMA, name))
    counts = streams[0].union(streams[1]).key_by("name").process(_Count(), output_type=_SCHEMA)
    counts.uid("count").sink_to(FileSink(str(place / "out"), "parquet")).uid("out")
    env.execute("class-archive", bounded=True)
    return env.spark


def _end_jvm(spark: SparkSession) -> None:
    """End the JVM and wait for it: it writes the archive then."""
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    jvm.stdin.close()
    code = jvm.wait(_WAIT_S)
    if code:
        raise ChildProcessError(f"Java ended with exit status {code}")
