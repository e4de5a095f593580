"""Compare writing a stream to Kafka exactly once with Spark's own sink, which is at-least-once."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import section
from benchmarks.engine import Engine
from benchmarks.engines.kafka_topic import SERVERS
from benchmarks.machine import Machine
from benchmarks.report import Outcome, heading, throughput_table
from benchmarks.run import CACHE, measure
from benchmarks.window_dataset import prepare
from benchmarks.workload import PARALLELISM, SOME, throughput

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from services.kafka import connector_jars, kafka_broker

SPARK = "spark-kafka"

# fmt: off
_ALL = (
    Engine("turnback-kafka", "turnback_kafka", 150_000,
           does="staged by tasks, a transaction per batch; exactly-once"),
    Engine(SPARK, "spark_kafka", 250_000, does="written by tasks, in the JVM; at-least-once"),
)
# fmt: on
ENGINES = {engine.name: engine for engine in _ALL}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--batch", type=int, default=500_000, help="records (%(default)s)")
    parser.add_argument("--keys", type=int, default=20_000, help="distinct (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="trials each (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a trial may take")
    given = section.parse(parser, argv, batch=20_000, repeat=1)
    if min(given.batch // 2, given.keys, given.repeat) < 1:
        parser.error("--batch must be at least 2, --keys and --repeat at least 1")
    return given


def report(command: str, machine: Machine, outcomes: dict[str, Outcome]) -> str:
    return "\n\n".join(
        [
            "## Kafka",
            f"Written by `{command}`. {machine.describe()} Records of a key, an amount and a time "
            "are read from Parquet files and written as JSON to a topic of a broker on the same "
            "machine, until a consumer of committed records can read the last of them; another "
            "consumer counts them afterwards and adds up their amounts. Medians and ratios as "
            f"above; parallelism {PARALLELISM}. At least 100,000 records/s, and half of Spark's, "
            "are the aim.",
            *(part.replace("## ", "### ") for part in heading(outcomes)),
            throughput_table(outcomes, ENGINES, (SPARK,)),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    workload = replace(throughput(given.batch, given.keys, SOME), name="kafka")
    outcomes = {name: Outcome(workload) for name in given.engines}
    datasets = {workload: prepare(workload, CACHE)}
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {connector_jars()} pyspark-shell"
    with (
        tempfile.TemporaryDirectory(prefix="turnback-kafka-") as directory,
        kafka_broker(Path(directory)) as broker,
    ):
        os.environ[SERVERS] = broker.servers
        measure([outcomes], ENGINES, datasets, given.repeat, given.timeout)
    command = shlex.join(["python", "-m", "benchmarks.kafka", *(argv or sys.argv[1:])])
    text = report(command, machine, outcomes)
    print(text)
    if given.output is not None:
        section.write(given.output, "kafka", text)
    return int(any(outcome.failure is not None for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
