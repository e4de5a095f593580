"""How long does a command take that only looks at files? Beside Spark's and Flink's programs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import section
from benchmarks.machine import Machine
from benchmarks.table import table
from turnback.job.directory import JobDirectory
from turnback.job.status import JobState

BIN = Path(sys.executable).parent
FLINK = Path(__file__).parents[1] / ".venv-flink/lib"
COMMANDS = (
    ("list", "-a"),
    ("status", "job-3"),
    ("checkpoints", "job-3"),
    ("savepoints",),
    ("config",),
    ("--help",),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=20, help="in the directory that is looked at")
    args = parser.parse_args(argv)
    machine = Machine.here()
    with tempfile.TemporaryDirectory() as root:
        for i in range(args.jobs):
            directory = JobDirectory.locate(root, f"job-{i}")
            directory.write_status(JobState.FINISHED, directory.open().job_id)
        turnback = str(BIN / "turnback")
        commands = {
            f"`turnback {' '.join(words)}`": [turnback, "--root", root, *words]
            for words in COMMANDS
        }
        commands["`spark-submit --version`"] = [str(BIN / "spark-submit"), "--version"]
        for flink in sorted(FLINK.glob("python*/site-packages/pyflink/bin/flink")):
            commands["`flink --version`"] = [str(flink), "--version"]
        times = {name: _measure(words, args.runs) for name, words in commands.items()}
    best = median(times["`turnback list -a`"])
    rows = [
        [name, f"{median(t):.2f} s", f"{min(t):.2f} to {max(t):.2f} s", f"{median(t) / best:.1f} x"]
        for name, t in times.items()
    ]
    body = (
        "## Commands that only look\n\n"
        f"Median of {args.runs} runs, {args.jobs} jobs in the directory. {machine.describe()}\n\n"
        + table(["command", "median", "range", "to `list`"], rows)
        + "\n\nRepeat with `python -m benchmarks.startup`."
    )
    section.write(section.RESULTS, "startup", body)
    print(body)


def _measure(words: list[str], runs: int) -> list[float]:
    """The first run, which fills the system's caches, is not counted."""
    environment = os.environ | {"NO_COLOR": "1", "PYSPARK_PYTHON": sys.executable}
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        done = subprocess.run(words, env=environment, capture_output=True, check=False)
        times.append(time.perf_counter() - began)
        if done.returncode:
            raise SystemExit(f"{words} failed: {done.stderr.decode()}")
    return times[1:]


if __name__ == "__main__":
    main()
