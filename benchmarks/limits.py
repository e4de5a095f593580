"""How large may a job be in one respect? Cases of `limit_cases`, each in a process of its own."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import program
from benchmarks.limit_cases import CASES
from benchmarks.machine import Machine
from benchmarks.program import ProgramFailedError
from benchmarks.table import table

MODULE = "benchmarks.limit_cases"
HEAD = ("case", "size", "start and first epoch", "epoch", "restore", "worker", "driver", "JVM")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default all: {', '.join(CASES)}")
    parser.add_argument("--size", type=int, help="instead of the case's own")
    parser.add_argument("--backend", choices=("rocksdb", "hashmap"), default="rocksdb")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a case may take")
    given = parser.parse_args(argv)
    given.names = given.names or list(CASES)
    unknown = [name for name in given.names if name not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    if given.size is not None and len(given.names) > 1:
        parser.error("--size is for one case")
    return given


def measure(name: str, size: int, given: argparse.Namespace) -> dict[str, Any]:
    with TemporaryDirectory(prefix="turnback-limits-") as scratch:
        arguments = [name, "--size", str(size), "--backend", given.backend, "--scratch", scratch]
        line = program.run(MODULE, arguments, Path(scratch), given.timeout)
    found: dict[str, Any] = json.loads(line)
    return found


def row(name: str, size: int, found: dict[str, Any]) -> tuple[str, ...]:
    seconds = (f"{found[each]:.1f} s" for each in ("first_s", "epoch_s", "restore_s"))
    memory = (
        f"{found[each] / 2**20:,.0f} MiB" for each in ("worker_bytes", "driver_bytes", "jvm_bytes")
    )
    return (name, f"{size:,}", *seconds, *memory)


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running job behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    rows, failed = [], 0
    for name in given.names:
        size = given.size or CASES[name][1]
        print(f"{name} of {size:,} ...", file=sys.stderr, flush=True)
        try:
            rows.append(row(name, size, measure(name, size, given)))
        except ProgramFailedError as e:
            failed += 1
            rows.append((name, f"{size:,}", f"failed: {e}", *[""] * (len(HEAD) - 3)))
    print(f"{given.backend}; {machine.describe()}\n")
    print(table(HEAD, rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
