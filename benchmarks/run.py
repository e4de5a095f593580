"""Compare Turnback with Spark's own stateful operators, Flink and Bytewax, on this machine."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import section
from benchmarks.dataset import Dataset
from benchmarks.engine import ENGINES, Engine
from benchmarks.generate import add_csv, prepare
from benchmarks.machine import Machine
from benchmarks.program import ProgramFailedError
from benchmarks.report import Outcome, Report
from benchmarks.trial import Progress, Trial
from benchmarks.window_dataset import WindowDataset
from benchmarks.workload import LARGE, PARALLELISM, Workload, small_epochs, throughput

CACHE = Path(__file__).parent / ".cache"
QUICK_BATCH, QUICK_LARGE, QUICK_EPOCHS = 50_000, 100_000, 5

Series = dict[str, Outcome]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE",
        help=f"which to run, default all: {', '.join(ENGINES)}",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=500_000, help="records (%(default)s)")
    parser.add_argument(
        "--large-batch", type=int, default=3_000_000,
        help="records in the second table (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--keys", type=int, default=20_000, help="distinct (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="trials each (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="small epochs (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a trial may take")
    parser.add_argument(
        "--quick", action="store_true",
        help=f"batches of {QUICK_BATCH:,} and {QUICK_LARGE:,}, {QUICK_EPOCHS} small epochs, one "
        "trial, to see that all engines run: no RESULTS.md",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="where to write the results instead")
    given = parser.parse_args(argv)
    if given.quick:
        given.batch = min(given.batch, QUICK_BATCH)
        given.large_batch = min(given.large_batch, QUICK_LARGE)
        given.epochs, given.repeat = min(given.epochs, QUICK_EPOCHS), 1
    if given.output is None and not given.quick:
        given.output = section.RESULTS
    least = PARALLELISM * max(engine.batches.divisor for engine in ENGINES.values())
    if min(given.batch, given.large_batch) < least:
        parser.error(f"--batch and --large-batch must be at least {least}")
    if min(given.keys, given.repeat, given.epochs) < 1:
        parser.error("--keys, --repeat and --epochs must be at least 1")
    return given


def datasets(some: Sequence[Series]) -> dict[Workload, Dataset]:
    """Make the records, in the formats that the engines of each workload read."""
    found = {}
    for series in some:
        for name, outcome in series.items():
            workload = outcome.workload
            if workload not in found:
                print(f"preparing {workload.records:,} records ...", file=sys.stderr, flush=True)
                found[workload] = prepare(workload, CACHE)
            if ENGINES[name].csv:
                add_csv(found[workload])
    return found


def measure(
    some: Sequence[Series],
    engines: Mapping[str, Engine],
    prepared: Mapping[Workload, Dataset | WindowDataset],
    repeat: int,
    timeout: float,
) -> None:
    """Run every engine `repeat` times, in turns, so that a busy moment does not hit one alone."""
    trials = [
        (series[name], Trial(engines[name], series[name].workload, number + 1))
        for series in some
        for number in range(repeat)
        for name in series
    ]
    outcomes = {trial: outcome for outcome, trial in trials}
    progress = Progress(list(outcomes))
    for trial in progress:
        outcome, begun = outcomes[trial], time.monotonic()
        try:
            result = trial.run(prepared[trial.workload], timeout)
        except ProgramFailedError as error:
            outcome.failure = str(error)
            progress.failed(trial, error)
            continue
        outcome.results.append(result)
        outcome.took.append(time.monotonic() - begun)
        progress.done(trial, result, outcome.took[-1])
    progress.finish()


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    engines = [ENGINES[name] for name in given.engines]
    sized = [engine for engine in engines if engine.all_sizes]
    batch, large, keys = given.batch, given.large_batch, given.keys
    rates = {e.name: Outcome(throughput(batch, keys, e.batches)) for e in engines}
    large_rates = {e.name: Outcome(throughput(large, keys, LARGE)) for e in sized}
    epochs = {e.name: Outcome(small_epochs(given.epochs, keys)) for e in sized}
    some = [rates, large_rates, epochs]
    measure(some, ENGINES, datasets(some), given.repeat, given.timeout)
    command = shlex.join(["python", "-m", "benchmarks.run", *(argv or sys.argv[1:])])
    report = Report(command, machine, rates, large_rates, epochs)
    text = report.document()
    print(text)
    if given.output is not None:
        old = given.output.read_text() if given.output.exists() else ""
        given.output.write_text(section.keep(text, old))
        print(f"written to {given.output}", file=sys.stderr)
    return int(bool(report.failures()))


if __name__ == "__main__":
    sys.exit(main())
