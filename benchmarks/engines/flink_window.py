"""PyFlink's `AggregateFunction` in windows, in thread or in process mode.

Source, sink and settings are those of `flink_count`. Timestamps and watermarks are made by SQL in
the JVM, which costs Python nothing.
"""

# PyFlink is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

from collections.abc import Iterable, Iterator
from platform import python_version
from typing import Any

from pyflink.common import Row, Time, Types
from pyflink.datastream import (
    AggregateFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment
from pyflink.version import __version__ as flink_version

from benchmarks.engines import arguments, flink_count, flink_settings
from benchmarks.engines.checkpoint_count import CheckpointCount
from benchmarks.engines.probe import Probe, combine
from benchmarks.result import Result, check
from benchmarks.window_dataset import DISORDER_MS, WINDOW_MS, WindowDataset


class Count(AggregateFunction):
    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Row, accumulator: int) -> int:
        self.probe.saw(0)
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Labelled(ProcessWindowFunction):
    """Shares its probe with `Count`: both are part of one operator."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def process(self, key: str, context: Any, elements: Iterable[int]) -> Iterator[Row]:
        for n in elements:
            self.probe.gave(n)
            yield Row(key, context.window().start, n)

    def clear(self, context: Any) -> None:
        pass

    def close(self) -> None:
        self.probe.save()


def build(env: StreamExecutionEnvironment, dataset: WindowDataset, probe: Probe) -> None:
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        "CREATE TABLE events (post STRING, kind STRING, amount BIGINT, `at` BIGINT, "
        "ts AS TO_TIMESTAMP_LTZ(`at`, 3), "
        f"WATERMARK FOR ts AS ts - INTERVAL '{DISORDER_MS / 1000}' SECOND) WITH ("
        f"'connector' = 'filesystem', 'path' = '{dataset.csv_directory.as_uri()}', "
        "'format' = 'csv')"
    )
    events = tables.to_data_stream(tables.from_path("events"))
    discard = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    counts = (
        events.key_by(lambda value: value.post, key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
        .aggregate(
            Count(probe),
            Labelled(probe),
            accumulator_type=Types.LONG(),
            output_type=Types.ROW_NAMED(
                ["post", "start", "n"], [Types.STRING(), Types.LONG(), Types.LONG()]
            ),
        )
    )
    counts.sink_to(Sink(discard))


def main() -> None:
    variants = (flink_count.THREAD, flink_count.PROCESS)
    given = arguments.parse_with(__doc__ or "", variants, WindowDataset.load)
    flink_count.prepare_environment()
    # In process mode a window operator counts late records, and fails where nothing is counted.
    settings = {**flink_count.settings(given), "python.metric.enabled": "true"}
    env = StreamExecutionEnvironment.get_execution_environment(
        flink_settings.configuration(settings)
    )
    probes = given.scratch / "probes"
    probes.mkdir()
    build(env, given.dataset, Probe(probes))
    with CheckpointCount(given.scratch / "checkpoints") as checkpoints:
        env.execute("windows")
    timeline = combine(probes)
    workload = given.dataset.workload
    check("records", timeline.rows, workload.records)
    check("rows", timeline.given, sum(given.dataset.answer.keys))
    check("sum of counts", timeline.total, workload.records)
    records, seconds = timeline.after(workload.warmup_records)
    versions = {"flink": flink_version, "python": python_version()}
    Result(given.variant, records, (seconds,), checkpoints.number, versions).print()


if __name__ == "__main__":
    main()
