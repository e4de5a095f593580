"""Compare writing a stream to a Delta table with Spark's own writing of Parquet files."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import section
from benchmarks.engine import Engine
from benchmarks.machine import Machine
from benchmarks.report import Outcome, heading, throughput_table
from benchmarks.run import CACHE, measure
from benchmarks.window_dataset import prepare
from benchmarks.workload import PARALLELISM, SOME, throughput

SPARK = "spark-parquet"

# fmt: off
_ALL = (
    Engine("turnback-delta", "turnback_delta", 700_000,
           does="a version of a Delta table per batch, with its number"),
    Engine("turnback-files", "turnback_delta", 700_000, does="Parquet files, renamed into place"),
    Engine(SPARK, "spark_parquet", 900_000, does="Parquet files and a log of them, in the JVM"),
)
# fmt: on
ENGINES = {engine.name: engine for engine in _ALL}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
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
            "## Tables",
            f"Written by `{command}`. {machine.describe()} Records of a key, an amount and a time "
            "are read from Parquet files and written as they are; every row is counted afterwards. "
            f"Medians and ratios as above; parallelism {PARALLELISM}.",
            *(part.replace("## ", "### ") for part in heading(outcomes)),
            throughput_table(outcomes, ENGINES, (SPARK,)),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    workload = replace(throughput(given.batch, given.keys, SOME), name="tables")
    outcomes = {name: Outcome(workload) for name in given.engines}
    datasets = {workload: prepare(workload, CACHE)}
    measure([outcomes], ENGINES, datasets, given.repeat, given.timeout)
    command = shlex.join(["python", "-m", "benchmarks.tables", *(argv or sys.argv[1:])])
    text = report(command, machine, outcomes)
    print(text)
    if given.output is not None:
        section.write(given.output, "tables", text)
    return int(any(outcome.failure is not None for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
