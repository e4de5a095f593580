"""What does a job cost that has nothing to do, and how soon does it notice that it has?"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import section
from benchmarks.engines.marks import Point
from benchmarks.launched import LaunchedJob
from benchmarks.machine import Machine
from benchmarks.processes import command, cpu_seconds, descendants
from benchmarks.program import ProgramFailedError
from benchmarks.table import table

KEYS = 10_000
WARMUP_FILES = 10
ARRIVALS = 12
RECORDS = 1_000
KINDS = ("supervisor", "driver", "JVM", "workers", "others")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="a sample (%(default)s)")
    parser.add_argument("--samples", type=int, default=3, help="one after the other (%(default)s)")
    parser.add_argument("--settle", type=int, default=20, help="seconds before (%(default)s)")
    given = section.parse(parser, argv, seconds=3, samples=1, settle=1)
    if min(given.seconds, given.samples) < 1 or given.settle < 0:
        parser.error("--seconds and --samples must be at least 1, --settle at least 0")
    return given


def kind_of(pid: int, driver: int) -> str:
    if pid == driver:
        return "driver"
    words = command(pid)
    if "pyspark.daemon" in words:
        return "workers"
    return "JVM" if Path(words.split(" ")[0]).name == "java" else "others"


def used(supervisor: int, driver: int) -> dict[tuple[int, str], float]:
    """Processor seconds of each process, with its kind."""
    kinds = {supervisor: "supervisor"}
    kinds |= {pid: kind_of(pid, driver) for pid in (driver, *descendants(driver))}
    return {(pid, kind): cpu_seconds(pid) for pid, kind in kinds.items()}


def sample(supervisor: int, driver: int, seconds: int) -> dict[str, float]:
    """Percent of a core, by kind of process.

    Spark ends idle workers meanwhile: of those that have ended nothing is counted any more.
    """
    before, begun = used(supervisor, driver), time.monotonic()
    time.sleep(seconds)
    after, took = used(supervisor, driver), time.monotonic() - begun
    percent = dict.fromkeys(KINDS, 0.0)
    for process, spent in after.items():
        percent[process[1]] += (spent - before.get(process, 0.0)) / took * 100
    return percent


def arrival_ms(job: LaunchedJob) -> float:
    """From a new file in the directory to its epoch in Spark's log of offsets."""
    logs = [path for path in job.place.rglob("offsets") if path.is_dir()]

    def offsets() -> set[Path]:
        return {path for log in logs for path in log.iterdir() if path.name.isdigit()}

    before = offsets()
    job.feed(np.arange(RECORDS))
    fed_at = time.time()
    job.wait_for("epoch", lambda: bool(offsets() - before))
    return (min(path.stat().st_mtime for path in offsets() - before) - fed_at) * 1000


def measure(given: argparse.Namespace) -> tuple[list[dict[str, float]], list[float]]:
    """Let a job do some epochs, and watch it when it has nothing left to do, and when it has."""
    random = np.random.default_rng(0)
    with (
        tempfile.TemporaryDirectory(prefix="turnback-idle-", ignore_cleanup_errors=True) as name,
        LaunchedJob(Path(name)) as job,
    ):
        for _ in range(WARMUP_FILES):
            job.feed(random.integers(0, KEYS, KEYS))
        job.wait_for("epoch", lambda: Point.EPOCH in job.marks(0))
        job.check_output()
        time.sleep(given.settle)
        driver, supervisor = job.marks(0)[Point.PROCESS].pid, job.supervisor()
        samples = [sample(supervisor, driver, given.seconds) for _ in range(given.samples)]
        arrivals = []
        for _ in range(ARRIVALS):
            time.sleep(random.uniform(1.5, 3))  # so that it is idle again
            arrivals.append(arrival_ms(job))
        if job.marks(1):
            raise ProgramFailedError("its driver died and was started again; try once more")
    return samples, arrivals


def report(
    machine: Machine,
    given: argparse.Namespace,
    samples: list[dict[str, float]],
    arrivals: list[float],
) -> str:
    totals = [sum(each.values()) for each in samples]
    columns = {kind: [each[kind] for each in samples] for kind in KINDS} | {"all": totals}
    rows = [
        [kind, f"{median(v):.1f} %", f"{min(v):.1f} to {max(v):.1f} %"]
        for kind, v in columns.items()
    ]
    return (
        "## An idle job\n\n"
        f"Processor time in percent of one core over {given.seconds} s; samples: {given.samples}. "
        f"A job with a file source, RocksDB state of {KEYS:,} keys and a file "
        f"sink, {given.settle} s after its last epoch. {machine.describe()}\n\n"
        + table(["process", "median", "lowest to highest"], rows)
        + f"\n\nFrom a new file to its epoch in Spark's log: {median(arrivals):.0f} ms "
        f"({min(arrivals):.0f} to {max(arrivals):.0f}, {len(arrivals)} files). "
        "Repeat with `python -m benchmarks.idle`."
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running job behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    text = report(machine, given, *measure(given))
    print(text)
    if given.output is not None:
        section.write(given.output, "idle", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
