"""Compare counting per key and window by event time, and show what timers that wait cost."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import program, section
from benchmarks.engine import Engine
from benchmarks.machine import Machine
from benchmarks.report import Outcome, heading, throughput_table
from benchmarks.result import Result
from benchmarks.run import CACHE, measure
from benchmarks.table import table
from benchmarks.window_dataset import (
    BATCH_MS,
    DISORDER_MS,
    WINDOW_MS,
    WindowDataset,
    add_csv,
    prepare,
)
from benchmarks.workload import PARALLELISM, TWO_SMALL, Workload, throughput

CEILING, STATEFUL, PYFLINK = "spark-window", "spark-transform-with-state", "pyflink-process"
PER_WINDOW = "one row out per key and window"

DECLARED = f"{PER_WINDOW}, no user function"
FUNCTION = f"an AggregateFunction per record, {PER_WINDOW}"
TIMERS = f"a map state and a timer per record, {PER_WINDOW}"

# fmt: off
_ALL = (
    Engine("turnback-declared", "turnback_window", 700_000, does=DECLARED),
    Engine("turnback-function", "turnback_window", 300_000, does=FUNCTION),
    Engine(CEILING, "spark_window", 400_000, does=f"in the JVM, {DECLARED}"),
    Engine(STATEFUL, "spark_window", 4_000, TWO_SMALL, does=TIMERS),
    Engine("pyflink-thread", "flink_window", 6_900, TWO_SMALL, environment="flink", csv=True,
           does=FUNCTION),
    Engine(PYFLINK, "flink_window", 12_500, TWO_SMALL, environment="flink", csv=True,
           does=FUNCTION),
)
# fmt: on
ENGINES = {engine.name: engine for engine in _ALL}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__)
    parser.add_argument(
        "--engines", nargs="*", choices=ENGINES, default=list(ENGINES), metavar="ENGINE",
        help=f"which to run, default all: {', '.join(ENGINES)}",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=500_000, help="records (%(default)s)")
    parser.add_argument("--keys", type=int, default=20_000, help="distinct (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="trials each (%(default)s)")
    parser.add_argument(
        "--timers", type=int, default=1_000_000, help="that wait; 0 to leave out (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=15, help="while they wait (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a trial may take")
    given = section.parse(parser, argv, batch=20_000, repeat=1, timers=20_000, epochs=3)
    if min(given.batch // 2, given.keys, given.repeat, given.epochs) < 1 or given.timers < 0:
        parser.error("--batch must be at least 2, --keys, --repeat and --epochs at least 1")
    return given


def datasets(outcomes: dict[str, Outcome]) -> dict[Workload, WindowDataset]:
    """Make the records, in the formats that the engines of each workload read."""
    found: dict[Workload, WindowDataset] = {}
    for name, outcome in outcomes.items():
        workload = outcome.workload
        if workload not in found:
            print(f"preparing {workload.records:,} records ...", file=sys.stderr, flush=True)
            found[workload] = prepare(workload, CACHE)
        if ENGINES[name].csv:
            add_csv(found[workload])
    return found


def waiting_timers(given: argparse.Namespace) -> dict[str, list[Result]]:
    """Epochs of a job with and without timers that wait, in turns."""
    results: dict[str, list[Result]] = {"with": [], "without": []}
    for number in range(given.repeat):
        for variant, found in results.items():
            print(f"epochs {variant} timers, trial {number + 1} ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="turnback-bench-") as scratch:
                arguments = ["--variant", variant, "--keys", str(given.timers)]
                arguments += ["--epochs", str(given.epochs), "--scratch", scratch]
                module = "benchmarks.engines.turnback_timers"
                line = program.run(module, arguments, Path(scratch), given.timeout)
            found.append(Result.parse(line))
    return results


def windows_report(command: str, machine: Machine, outcomes: dict[str, Outcome]) -> str:
    seconds = [WINDOW_MS // 1000, BATCH_MS // 1000, DISORDER_MS // 1000]
    return "\n\n".join(
        [
            "## Windows by event time",
            f"Written by `{command}`. {machine.describe()} Records are counted per key and "
            f"tumbling window of {seconds[0]} s; a batch covers {seconds[1]} s, and records come "
            f"up to {seconds[2]} s late. Medians and ratios as above; parallelism {PARALLELISM}.",
            *(part.replace("## ", "### ") for part in heading(outcomes)),
            throughput_table(outcomes, ENGINES, (CEILING, STATEFUL, PYFLINK)),
        ]
    )


def timers_report(timers: int, results: dict[str, list[Result]]) -> str:
    rows = []
    for variant, found in results.items():
        medians = [result.median_seconds for result in found]
        every = [second for result in found for second in result.seconds]
        rows.append(
            [
                variant,
                f"{median(medians):.3f} s",
                f"{min(medians):.3f} to {max(medians):.3f} s",
                f"{min(every):.3f} to {max(every):.3f} s, of {len(every)}",
            ]
        )
    return "\n\n".join(
        [
            f"### While {timers:,} timers wait",
            "Epochs of 1,000 records of a job whose keys have all set a timer for a far future, "
            "and of the same job whose keys have not.",
            table(["timers", "median epoch", "lowest to highest trial", "all epochs"], rows),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    outcomes = {
        name: Outcome(
            replace(throughput(given.batch, given.keys, ENGINES[name].batches), name="windows")
        )
        for name in given.engines
    }
    measure([outcomes], ENGINES, datasets(outcomes), given.repeat, given.timeout)
    command = shlex.join(["python", "-m", "benchmarks.windows", *(argv or sys.argv[1:])])
    text = windows_report(command, machine, outcomes) if outcomes else "## Windows by event time"
    if given.timers:
        text += "\n\n" + timers_report(given.timers, waiting_timers(given))
    print(text)
    if given.output is not None:
        section.write(given.output, "windows", text)
    return int(any(outcome.failure is not None for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
