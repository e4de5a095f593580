"""Compare Turnback with Spark's own stateful operators and with PyFlink, on this machine."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report, section, trial
from benchmarks.dataset import Dataset
from benchmarks.engine import ENGINES, Engine
from benchmarks.generate import prepare
from benchmarks.machine import Machine
from benchmarks.program import ProgramFailedError
from benchmarks.report import Outcome, Outcomes
from benchmarks.workload import PARALLELISM, small_epochs, throughput

CACHE = Path(__file__).parent / ".cache"
RESULTS = Path(__file__).parent / "RESULTS.md"
QUICK_BATCH = 50_000


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE",
        help=f"which to run, default all: {', '.join(ENGINES)}",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=500_000, help="records (%(default)s)")
    parser.add_argument("--keys", type=int, default=20_000, help="distinct (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="trials each (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="small epochs (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a trial may take")
    parser.add_argument(
        "--quick", action="store_true",
        help=f"batches of {QUICK_BATCH:,}, one trial, to see that all engines run: no RESULTS.md",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="where to write the results instead")
    given = parser.parse_args(argv)
    if given.quick:
        given.batch, given.repeat = min(given.batch, QUICK_BATCH), 1
    if given.output is None and not given.quick:
        given.output = RESULTS
    if min(given.batch // PARALLELISM, given.keys, given.repeat, given.epochs) < 1:
        parser.error(f"--batch must be at least {PARALLELISM}, all other numbers at least 1")
    return given


def measure(engines: Sequence[Engine], dataset: Dataset, repeat: int, timeout: float) -> Outcomes:
    """Run every engine `repeat` times, in turns, so that a busy moment does not hit one alone."""
    outcomes = {engine.name: Outcome() for engine in engines}
    for number in range(repeat):
        for engine in engines:
            outcome = outcomes[engine.name]
            if outcome.failure is not None:
                continue
            label = f"{dataset.workload.name} {number + 1}/{repeat} {engine.name}"
            print(f"{label} ...", file=sys.stderr, flush=True)
            try:
                result = trial.run(engine, dataset, timeout)
                outcome.results.append(result)
                print(f"{label}: {result.summary()}", file=sys.stderr, flush=True)
            except ProgramFailedError as error:
                outcome.failure = str(error)
                print(f"{label} failed: {error}", file=sys.stderr, flush=True)
    return outcomes


def _with_savepoints(text: str, output: Path) -> str:
    """Keep what `benchmarks.savepoints` has written there."""
    kept = section.find(output.read_text(), report.SAVEPOINTS) if output.exists() else ""
    return section.put(text, report.SAVEPOINTS, kept) if kept else text


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    engines = [ENGINES[name] for name in given.engines]
    rates: Outcomes = {}
    for slow in (False, True):
        some = [engine for engine in engines if engine.slow is slow]
        if some:
            dataset = prepare(throughput(given.batch, given.keys, slow=slow), CACHE)
            rates |= measure(some, dataset, given.repeat, given.timeout)
    small = prepare(small_epochs(given.epochs, given.keys), CACHE)
    # One trial is enough here: it holds as many measurements as epochs.
    epochs = measure([e for e in engines if e.epochs], small, 1, given.timeout)
    command = shlex.join(["python", "-m", "benchmarks.run", *(argv or sys.argv[1:])])
    text = report.document(command, machine, given.batch, given.keys, rates, epochs)
    print(text)
    if given.output is not None:
        given.output.write_text(_with_savepoints(text, given.output))
        print(f"written to {given.output}", file=sys.stderr)
    return int(any(o.failure for o in [*rates.values(), *epochs.values()]))


if __name__ == "__main__":
    sys.exit(main())
