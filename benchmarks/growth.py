"""Does an epoch's cost follow what it touches, or the size of the state? Turnback on RocksDB."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

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
    driver_bytes: int
    jvm_bytes: int
    state_bytes: int


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[50_000, 500_000, 5_000_000, 20_000_000]
    )
    parser.add_argument("--touched", type=int, default=10_000, help="keys per epoch (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="counted (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a phase may take")
    parser.add_argument(
        "--keep", type=Path, help="where state and results stay: another run goes on from there"
    )
    parser.add_argument(
        "--minutes", type=float, help="begin no phase later than this; needs --keep"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    if min(given.keys) < given.touched:
        parser.error("--keys must be at least --touched")
    if given.minutes is not None and given.keep is None:
        parser.error("--minutes needs --keep, for another run to go on")
    return given


class OutOfTimeError(Exception):
    """The minutes are over, and phases are left for another run."""


def measure(dataset: GrowthDataset, given: argparse.Namespace, deadline: float) -> Grown:
    """Fill the state, touch it, and recover it from the files alone, each in new processes."""
    keys = dataset.growth.keys
    with ExitStack() as stack:
        if given.keep is None:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="turnback-growth-")))
        else:
            scratch = given.keep.resolve() / str(keys)
            scratch.mkdir(parents=True, exist_ok=True)
        arguments = ["--dataset", str(dataset.root.resolve()), "--scratch", str(scratch)]
        found: dict[str, Any] = {}
        for phase in [*(f"load-{i}" for i in range(dataset.growth.pieces)), "touch", "recover"]:
            result = scratch / f"{phase}.json"
            if not result.exists():
                if time.monotonic() > deadline:
                    raise OutOfTimeError(f"{keys:,} keys go on with {phase}")
                result.write_text(program.run(MODULE, [phase, *arguments], scratch, given.timeout))
            found |= json.loads(result.read_text())
    return Grown(keys=keys, seconds=tuple(found.pop("seconds")), **found)


def growth_table(grown: Sequence[Grown]) -> str:
    first = median(grown[0].seconds)
    rows = [
        (
            f"{g.keys:,}",
            f"{median(g.seconds):.3f} s",
            f"{median(g.seconds) / first:.2f}",
            f"{g.recovery_seconds:.1f} s",
            *(
                f"{size / 2**20:,.0f} MiB"
                for size in (g.worker_bytes, g.driver_bytes, g.jvm_bytes, g.state_bytes)
            ),
        )
        for g in grown
    ]
    head = ("keys in state", "median epoch", "ratio", "recovery", "largest worker", "driver", "JVM")
    return table((*head, "job directory"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running engine behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    deadline = time.monotonic() + 60 * given.minutes if given.minutes is not None else math.inf
    grown = []
    for keys in given.keys:
        print(f"{keys:,} keys ...", file=sys.stderr, flush=True)
        dataset = prepare(Growth(keys, given.touched, given.epochs), CACHE)
        try:
            grown.append(measure(dataset, given, deadline))
        except OutOfTimeError as e:
            print(f"{e}: run the same command again", file=sys.stderr)
            return 3
    command = shlex.join(["python", "-m", "benchmarks.growth", *(argv or sys.argv[1:])])
    text = "\n\n".join(
        [
            "# Growth",
            f"Written by `{command}`. {machine.describe()}",
            f"Every epoch touches {given.touched:,} keys; median of {given.epochs} epochs, in a "
            "process that has not loaded the state itself. "
            "Recovery: from start to the end of one more epoch, in a new process without local "
            "stores, checked against the expected counts. Memory: the greatest that was resident "
            "in the largest worker, in the driver and in its JVM during these epochs.",
            growth_table(grown),
        ]
    )
    print(text)
    given.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
