"""A job that `turnback run` has started, its input, and whether its output is right."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet

from benchmarks import records
from benchmarks.engines.marks import Mark, Point, read
from benchmarks.program import REPOSITORY, ProgramFailedError, reason
from benchmarks.result import WrongAnswerError, check
from benchmarks.workload import PARALLELISM
from turnback.job.run import RunDirectory
from turnback.launch.runs import kill

SCRIPT = Path(__file__).parent / "engines" / "launched_job.py"
POLL_S = 0.05
TIMEOUT_S = 180


class LaunchedJob:
    """Runs while the block does; everything of it is in `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.launched_at = 0.0
        self._fed: Counter[str] = Counter()
        self._files_in = 0
        for name in ("events", "jobs", "runs"):
            (place / name).mkdir(parents=True)

    def __enter__(self) -> LaunchedJob:
        turnback = Path(sys.executable).parent / "turnback"
        places = ["--root", str(self.place / "jobs"), "-D", f"run.dir={self.place / 'runs'}"]
        spark = ["-D", f"spark.master=local[{PARALLELISM}]", "-p", str(PARALLELISM)]
        self.launched_at = time.time()
        with (self.place / "launcher.log").open("w") as log:
            self._launcher = subprocess.Popen(
                [turnback, "run", "-d", *places, *spark, SCRIPT, "--place", self.place],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.place)},
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *failure: object) -> None:
        for path in (self.place / "runs").iterdir():
            with suppress(OSError):
                kill(RunDirectory(path))
        self._launcher.kill()
        self._launcher.wait()

    def feed(self, keys: NDArray[np.int64]) -> None:
        """Add a file with a record for each key, which becomes an epoch."""
        rows = records.table(keys, np.ones(len(keys), dtype=np.int64))
        hidden = self.place / "next.parquet"  # not read before it is complete
        parquet.write_table(rows, hidden)
        hidden.rename(self.place / "events" / f"{self._files_in:06d}.parquet")
        self._files_in += 1
        self._fed.update(rows["post"].to_pylist())

    def supervisor(self) -> int:
        (path,) = (self.place / "runs").iterdir()
        process = RunDirectory(path).supervisor()
        assert process is not None
        return process.pid

    def marks(self, number: int) -> dict[Point, Mark]:
        """What the `number`th driver has noted; empty if there is none yet."""
        by_pid: dict[int, dict[Point, Mark]] = {}
        for mark in read(self.place / "marks"):
            by_pid.setdefault(mark.pid, {})[mark.point] = mark
        drivers = list(by_pid.values())
        return drivers[number] if len(drivers) > number else {}

    def wait_for(self, what: str, there: Callable[[], bool]) -> None:
        """Wait until something is there.

        Raises:
            ProgramFailedError: It is not within some minutes, or the job could not be started.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while not there():
            if self._launcher.poll():
                raise ProgramFailedError(f"the job could not be started: {self._reason()}")
            if time.monotonic() > deadline:
                raise ProgramFailedError(f"no {what} within {TIMEOUT_S} s: {self._reason()}")
            time.sleep(POLL_S)

    def check_output(self) -> None:
        """Wait until all that was fed is counted, and check that nothing was lost or twice.

        Raises:
            WrongAnswerError: A key has not been counted from 1 to its number of records.
        """
        fed = self._fed.total()
        self.wait_for("complete output", lambda: self._rows() >= fed)
        found = Counter(self._output())
        check("rows in the output", found.total(), fed)
        for post, number in self._fed.items():
            for n in range(1, number + 1):
                if found[post, n] != 1:
                    raise WrongAnswerError(f"count {n} of {post} is there {found[post, n]} times")

    def _reason(self) -> str:
        logs = [self.place / "launcher.log", *self.place.glob("runs/*/driver.log")]
        return reason("".join(log.read_text(errors="replace") for log in logs))

    def epochs(self) -> int:
        """How many are committed: each writes a file in every task."""
        return len(self._files_out()) // PARALLELISM

    def _files_out(self) -> list[Path]:
        """All files that are committed; others are in directories below."""
        return list((self.place / "counts").glob("*.parquet"))

    def _rows(self) -> int:
        return sum(parquet.read_metadata(path).num_rows for path in self._files_out())

    def _output(self) -> list[tuple[str, int]]:
        rows: list[tuple[str, int]] = []
        for path in self._files_out():
            columns = parquet.ParquetFile(path).read().to_pydict()
            rows.extend(zip(columns["post"], columns["n"], strict=True))
        return rows
