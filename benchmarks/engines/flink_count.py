"""PyFlink's `KeyedProcessFunction` on a local mini cluster, in thread or in process mode.

The source is Flink's own CSV file source, which runs in the JVM: pip's Flink has no Parquet reader,
a Python source would be the slower, and parsing takes a small part of what the function takes.
The sink is Flink's discarding sink. The function is timed and checked by a `Probe` beside it.
"""

# PyFlink is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from platform import python_version
from typing import Any

from pyflink.common import Row, Types
from pyflink.datastream import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment
from pyflink.version import __version__ as flink_version

from benchmarks.dataset import Dataset
from benchmarks.engines import arguments, flink_settings
from benchmarks.engines.checkpoint_count import CheckpointCount
from benchmarks.engines.probe import Probe, combine
from benchmarks.result import Result, check

THREAD = "pyflink-thread"
PROCESS = "pyflink-process"


class Count(KeyedProcessFunction):
    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.probe.saw(n)
        yield Row(value.post, n)

    def close(self) -> None:
        self.probe.save()


def settings(given: arguments.Arguments[Any]) -> dict[str, str]:
    return {
        **flink_settings.common(given.scratch),
        **flink_settings.interval(given.variant, given.dataset),
        "python.executable": sys.executable,
        "python.execution-mode": given.variant.removeprefix("pyflink-"),
        "python.metric.enabled": "false",
        # Process mode answers state reads from a cache and writes it back once per bundle: a cache
        # for all keys and long bundles are what it gains most from.
        "python.state.cache-size": "100000",
        "python.fn-execution.bundle.size": "100000",
    }


def build(env: StreamExecutionEnvironment, dataset: Dataset, probe: Probe) -> None:
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        "CREATE TABLE events (post STRING, kind STRING, amount BIGINT) WITH ("
        f"'connector' = 'filesystem', 'path' = '{dataset.csv_directory.as_uri()}', "
        "'format' = 'csv')"
    )
    events = tables.to_data_stream(tables.from_path("events"))
    discard = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    counts = events.key_by(lambda value: value.post, key_type=Types.STRING()).process(
        Count(probe), output_type=Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
    )
    counts.sink_to(Sink(discard))


def prepare_environment() -> None:
    """Set what the JVM and the Python workers inherit; must come before the first Flink call."""
    # Left alone, a local run keeps all Python workers in this one process: one interpreter lock.
    os.environ["_python_worker_execution_mode"] = "process"  # noqa: SIM112
    # The interpreter embedded in thread mode does not notice that it is in a virtual environment.
    paths = [sysconfig.get_path("purelib"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def main() -> None:
    given = arguments.parse(__doc__, (THREAD, PROCESS))
    prepare_environment()
    env = StreamExecutionEnvironment.get_execution_environment(
        flink_settings.configuration(settings(given))
    )
    probes = given.scratch / "probes"
    probes.mkdir()
    build(env, given.dataset, Probe(probes))
    with CheckpointCount(given.scratch / "checkpoints") as checkpoints:
        env.execute("count")
    timeline = combine(probes)
    answer = given.dataset.answer
    check("emitted rows", timeline.rows, answer.rows_per_record)
    check("sum of emitted counts", timeline.total, answer.sum_per_record)
    records, seconds = timeline.after(given.dataset.workload.warmup_records)
    versions = {"flink": flink_version, "python": python_version()}
    Result(given.variant, records, (seconds,), checkpoints.number, versions).print()


if __name__ == "__main__":
    main()
