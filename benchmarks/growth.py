"""Does an epoch's cost follow what it touches, or the size of the state? Turnback on RocksDB."""

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
from statistics import median

from benchmarks import program
from benchmarks.growth_dataset import Growth, GrowthDataset, prepare
from benchmarks.machine import Machine
from benchmarks.table import table

CACHE = Path(__file__).parent / ".cache"
RESULTS = Path(__file__).parent / "GROWTH.md"
MODULE = "benchmarks.engines.turnback_growth"


@dataclass(frozen=True)
class Grown:
    """What was measured at one size of the state."""

    keys: int
    seconds: tuple[float, ...]
    recovery_seconds: float
    worker_bytes: int


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[50_000, 500_000, 5_000_000, 20_000_000]
    )
    parser.add_argument("--touched", type=int, default=10_000, help="keys per epoch (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="counted (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a phase may take")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    if min(given.keys) < given.touched:
        parser.error("--keys must be at least --touched")
    return given


def measure(dataset: GrowthDataset, timeout: float) -> Grown:
    """Fill the state, touch it, and recover it from the files alone, each in a new process."""
    with tempfile.TemporaryDirectory(prefix="turnback-growth-") as scratch:
        arguments = ["--dataset", str(dataset.root.resolve()), "--scratch", scratch]
        phases = [
            json.loads(program.run(MODULE, [phase, *arguments], Path(scratch), timeout))
            for phase in ("load", "touch", "recover")
        ]
    found = phases[1] | phases[2]
    return Grown(
        keys=dataset.growth.keys,
        seconds=tuple(found["seconds"]),
        recovery_seconds=found["recovery_seconds"],
        worker_bytes=found["worker_bytes"],
    )


def growth_table(grown: Sequence[Grown]) -> str:
    first = median(grown[0].seconds)
    rows = [
        (
            f"{g.keys:,}",
            f"{median(g.seconds):.3f} s",
            f"{median(g.seconds) / first:.2f}",
            f"{g.recovery_seconds:.1f} s",
            f"{g.worker_bytes / 2**20:,.0f} MiB",
        )
        for g in grown
    ]
    return table(("keys in state", "median epoch", "ratio", "recovery", "largest worker"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    grown = []
    for keys in given.keys:
        print(f"{keys:,} keys ...", file=sys.stderr, flush=True)
        dataset = prepare(Growth(keys, given.touched, given.epochs), CACHE)
        grown.append(measure(dataset, given.timeout))
    command = shlex.join(["python", "-m", "benchmarks.growth", *(argv or sys.argv[1:])])
    text = "\n\n".join(
        [
            "# Growth",
            f"Written by `{command}`. {machine.describe()}",
            f"Every epoch touches {given.touched:,} keys; median of {given.epochs} epochs, in a "
            "process that has not loaded the state itself. "
            "Recovery: from start to the end of one more epoch, in a new process without local "
            "stores, checked against the expected counts.",
            growth_table(grown),
        ]
    )
    print(text)
    given.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
