"""What do savepoints cost, to take while the stream goes on and to start from? And Flink's?"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import program, savepoint_report, section
from benchmarks.engines.savepoint_arguments import PHASES, SAVE
from benchmarks.machine import Machine
from benchmarks.program import ProgramFailedError
from benchmarks.run import CACHE
from benchmarks.saved import Saved
from benchmarks.savepoint_dataset import SavepointDataset, Shape, prepare
from benchmarks.savepoint_report import Measured

QUICK = Shape(keys=20_000, batch_records=20_000, batches=100, checked=200)


@dataclass(frozen=True)
class Engine:
    """A program that takes savepoints and starts from them, one phase at a time."""

    module: str
    environment: str | None = None


ENGINES = {
    "turnback": Engine("benchmarks.engines.turnback_savepoint"),
    "flink": Engine("benchmarks.engines.flink_savepoint", "flink"),
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.savepoints", description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--batches", type=int, default=Shape.batches,
        help="of input; more than are read until both savepoints are complete (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=1_800, help="seconds a phase may take")
    given = section.parse(parser, argv)
    if min(given.keys) < Shape.checked:
        parser.error(f"--keys must be at least {Shape.checked:,}")
    return given


def measure(name: str, dataset: SavepointDataset, timeout: float) -> Measured:
    """Take the savepoints, then start from each, all in processes of their own."""
    engine, keys = ENGINES[name], dataset.shape.keys
    found = {}
    with tempfile.TemporaryDirectory(prefix="turnback-savepoint-") as scratch:
        arguments = ["--dataset", str(dataset.root.resolve()), "--scratch", scratch]
        for phase in PHASES:
            label = f"{keys:,} keys, {name}, {phase}"
            print(f"{label} ...", file=sys.stderr, flush=True)
            try:
                python = program.python_of(engine.environment)
                words = [phase, *arguments]
                line = program.run(engine.module, words, Path(scratch), timeout, python)
            except ProgramFailedError as error:
                print(f"{label} failed: {error}", file=sys.stderr, flush=True)
                return Measured(keys, name, failure=str(error))
            print(f"{label}: {line}", file=sys.stderr, flush=True)
            found[phase] = json.loads(line)
    saved = found.pop(SAVE)
    return Measured(
        keys,
        name,
        saved=tuple(Saved(**each) for each in saved["savepoints"]),
        starts={phase: result["seconds"] for phase, result in found.items()},
        versions=saved["versions"],
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    shapes = [QUICK] if given.quick else [Shape(k, batches=given.batches) for k in given.keys]
    datasets = [prepare(shape, CACHE) for shape in shapes]
    measured = [measure(name, each, given.timeout) for each in datasets for name in given.engines]
    command = shlex.join(["python", "-m", "benchmarks.savepoints", *(argv or sys.argv[1:])])
    text = savepoint_report.section(command, machine, shapes[0], measured)
    print(text)
    if given.output is not None:
        section.write(given.output, "savepoints", text)
    return int(any(m.failure for m in measured))


if __name__ == "__main__":
    sys.exit(main())
