"""How long until a job processes records: when it is launched, killed, and when it fails?"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import section
from benchmarks.engines.marks import Point
from benchmarks.launched import LaunchedJob
from benchmarks.machine import Machine
from benchmarks.records import FAILING_KEY
from benchmarks.table import table

RECORDS = 1_000
"""In an epoch."""
EPOCHS_BEFORE_KILL = 5
PHASES = (
    ("until there is a driver", Point.PROCESS),
    ("process start", Point.FIRST_LINE),
    ("imports", Point.IMPORTS),
    ("JVM start", Point.JVM),
    ("session", Point.SESSION),
    ("restore", Point.RESTORED),
    ("query start", Point.INPUT),
    ("first epoch", Point.EPOCH),
)
"""Each ends where the driver has come to that point."""


@dataclass(frozen=True)
class Start:
    """One start of a driver: how long each phase took, in seconds."""

    phases: tuple[float, ...]

    @staticmethod
    def of(job: LaunchedJob, driver: int, since: float) -> Start:
        """Wait for the first epoch of the `driver`th driver."""
        job.wait_for("first epoch", lambda: Point.EPOCH in job.marks(driver))
        marks = job.marks(driver)
        times = [since, *(marks[point].at for _, point in PHASES)]
        return Start(tuple(end - start for start, end in pairwise(times)))


@dataclass(frozen=True)
class Trial:
    """One job: its start, the one after a kill, and the seconds from one attempt to the next."""

    launched: Start
    killed: Start
    restarted: float


def restart_s(job: LaunchedJob) -> float:
    """From the failure of an epoch to the first of the next attempt; without the delay between."""
    job.wait_for("next attempt", lambda: Point.AGAIN in job.marks(1))
    at = {point: mark.at for point, mark in job.marks(1).items()}
    whole, delay = at[Point.AGAIN] - at[Point.FAILED], at[Point.DELAYED] - at[Point.DELAY]
    return whole - delay


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="jobs (%(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="in the state (%(default)s)")
    given = section.parse(parser, argv, repeat=1, keys=2 * RECORDS)
    if given.repeat < 1 or given.keys < RECORDS:
        parser.error(f"--repeat must be at least 1, --keys at least {RECORDS:,}")
    return given


def measure(keys: int) -> Trial:
    """Start a job, kill its driver, let it fail: nothing of its output may be lost or twice."""
    random = np.random.default_rng(0)
    with (
        tempfile.TemporaryDirectory(
            prefix="turnback-recovery-", ignore_cleanup_errors=True
        ) as name,
        LaunchedJob(Path(name)) as job,
    ):
        job.feed(np.arange(RECORDS))
        job.feed(np.arange(RECORDS, keys))
        for _ in range(2 * EPOCHS_BEFORE_KILL):
            job.feed(random.integers(0, keys, RECORDS))
        launched = Start.of(job, 0, job.launched_at)
        job.wait_for("further epochs", lambda: job.epochs() >= EPOCHS_BEFORE_KILL)
        killed_at = time.time()
        os.kill(job.marks(0)[Point.PROCESS].pid, signal.SIGKILL)
        # Whatever it has read by now, there is something for another epoch.
        job.feed(random.integers(0, keys, RECORDS))
        killed = Start.of(job, 1, killed_at)
        job.feed(np.array([FAILING_KEY]))
        restarted = restart_s(job)
        job.check_output()
    return Trial(launched, killed, restarted)


def report(machine: Machine, keys: int, trials: Sequence[Trial]) -> str:
    columns = [[each.launched.phases for each in trials], [each.killed.phases for each in trials]]
    rows = [
        [name, *(_cell([phases[i] for phases in column]) for column in columns)]
        for i, (name, _) in enumerate(PHASES)
    ]
    rows.append(["all", *(_cell([sum(phases) for phases in column]) for column in columns)])
    return (
        "## From start and from failure to the first epoch\n\n"
        "Jobs are started with `turnback run`, then their driver is killed; median, and lowest to "
        f"highest, of {len(trials)}. Epochs of {RECORDS:,} records; after the kill there is a "
        f"state of {keys:,} keys. {machine.describe()}\n\n"
        + table(["phase", "after `turnback run`", "after kill -9 of the driver"], rows)
        + "\n\nUntil there is a driver: `turnback run` starts a supervisor, which starts it; after "
        "the kill the supervisor first waits as the restart strategy says, 1 s by default.\n\n"
        "When a function fails, the driver lives on: from the failure of the epoch to the start "
        "of the next attempt's first one it takes "
        f"{_cell([each.restarted for each in trials])}, without the delay of the restart "
        "strategy. Repeat with `python -m benchmarks.recovery`."
    )


def _cell(seconds: Sequence[float]) -> str:
    spread = f" ({min(seconds):.2f} to {max(seconds):.2f})" if len(seconds) > 1 else ""
    return f"{median(seconds):.2f} s{spread}"


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    # A plain SIGTERM would leave the running job behind; an exit takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine.here()
    trials = []
    for number in range(given.repeat):
        print(f"job {number + 1}/{given.repeat} ...", file=sys.stderr, flush=True)
        trials.append(measure(given.keys))
    text = report(machine, given.keys, trials)
    print(text)
    if given.output is not None:
        section.write(given.output, "recovery", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
