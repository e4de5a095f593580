"""One job's directories, and what can be seen in them from outside."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crash.driver import Driver
from crash.verify import SINKS, Findings, Truth, examine
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.storage.base import Storage
from turnback.storage.open import open_storage
from verification import verify

Files = dict[str, tuple[int, int]]
"""Names of files, with inode and time of the last change."""

_STAGED = ".inprogress"
_NAME = re.compile(r"part-(\d+)-")
KEYS, TEAMS = 30, 5


def write_input(
    directory: Path, files: int, rows: int = 40, seed: int = 1, *, apart: int = 1
) -> None:
    """Write files of elements that are numbered within their key.

    Args:
        directory: Where to.
        files: How many.
        rows: Of each.
        seed: Decides the keys.
        apart: A key comes in one of so many files only. As many files can make an epoch: in which
            order an epoch reads its files is nobody's promise.
    """
    print(f"input: {files} files of {rows} rows, seed {seed}")
    directory.mkdir(parents=True)
    choose = random.Random(seed)
    numbers = dict.fromkeys(range(KEYS), 0)
    for file in range(files):
        lines = []
        for _ in range(rows):
            key = choose.randrange(file % apart, KEYS, apart)
            element = {"key": f"k{key:02d}", "seq": numbers[key], "team": f"t{key % TEAMS}"}
            numbers[key] += 1
            lines.append(json.dumps(element) + "\n")
        path = directory / f"{file:04d}.json"
        path.write_text("".join(lines))
        os.utime(path, (1_700_000_000 + file,) * 2)  # Spark takes the oldest first


class Place:
    """The directories of one job, and the drivers that were started in them.

    Args:
        base: Where they are.
        inputs: What the job reads.
        spark: Whether its drivers run on Spark, each with a JVM; else on `LocalEngine`.
    """

    def __init__(self, base: Path, inputs: Path, *, spark: bool = False) -> None:
        self.base = base
        self.spark = spark
        self.inputs = inputs
        self.output = base / "output"
        self.job = base / "jobs" / "crash"
        self.truth = Truth(inputs)
        self.drivers: list[Driver] = []
        self.clones: list[Place] = []

    def start(self, *arguments: str, ahead: bool = False, **environment: str) -> Driver:
        """Start a driver.

        Args:
            *arguments: For the job.
            ahead: Start the process but not the job, which waits for `Driver.go`. Spark's start
                costs more than the little work here.
            **environment: Added to the environment.
        """
        number = len(self.drivers)
        gate = self.base / f"gate-{number}"
        own_local = "--master" not in arguments
        command = [
            *("--root", str(self.base / "jobs")),
            *("--input", str(self.inputs)),
            *("--output", str(self.output)),
            *("--gate", str(gate)),
            *(("--local", str(self.base / "local")) if own_local else ()),
            *(("--spark",) if self.spark else ()),
            *arguments,
        ]
        driver = Driver(command, self.base / f"driver-{number}", gate, environment)
        self.drivers.append(driver)
        if not ahead:
            driver.go()
        return driver

    def clone(self, name: str) -> Place:
        """A copy of everything the job has written, to try something else with."""
        other = Place(self.base / name, self.inputs, spark=self.spark)
        shutil.copytree(self.job, other.job)
        shutil.copytree(self.output, other.output)
        for owner in other.output.rglob(".turnback/.owner"):
            owner.unlink()  # it names this place, and the copy is to be nobody's
        self.clones.append(other)
        return other

    def kill(self) -> None:
        """End all drivers, here and in clones."""
        for driver in self.drivers:
            driver.kill()
        for clone in self.clones:
            clone.kill()

    # -- output, as a reader sees it

    def examine(self, *, partial: bool = False) -> Findings:
        """Compare what readers see with the truth."""
        return examine(self.truth, self.output, partial=partial)

    def visible(self, sink: str) -> Files:
        """Committed files of a sink."""
        return {p.name: _identity(p) for p in (self.output / sink).glob("part-*")}

    def staged(self, sink: str) -> set[str]:
        """Names that the uncommitted files of a sink would get."""
        found = (self.output / sink / ".turnback").rglob(f"*{_STAGED}")
        return {p.name.removesuffix(_STAGED) for p in found}

    def newest(self, sink: str) -> int:
        """The newest epoch of which a reader sees something; 0 if there is none."""
        return max(map(epoch_of, self.visible(sink)), default=0)

    def leftovers(self) -> list[Path]:
        """Uncommitted files of all sinks."""
        return sorted(self.output.rglob(f"*{_STAGED}"))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read the output all the time; fail if a reader ever sees what should not be there."""
        problems: list[str] = []
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.5):
                found = self.examine(partial=True)
                # A listing is not atomic, so a file may be missing; none may be too much.
                if found.duplicates or found.unexpected:
                    problems.append(str(found))
                    return

        thread = threading.Thread(target=watch, name="reader")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        assert not problems, problems[0]

    # -- the job directory

    @property
    def storage(self) -> Storage:
        """The job directory."""
        return open_storage(self.job)

    @property
    def status(self) -> dict[str, Any]:
        """What the job says of itself."""
        status: dict[str, Any] = json.loads((self.job / "status.json").read_text())
        return status

    def latest(self) -> Manifest:
        """The newest checkpoint."""
        manifest = CheckpointLog(self.storage).latest()
        assert manifest is not None, "there is no checkpoint yet"
        return manifest

    def retained(self) -> list[Manifest]:
        """All checkpoints, oldest first."""
        return list(CheckpointLog(self.storage).scan().manifests)

    def job_files(self) -> set[str]:
        """State and offset files that are there."""
        return {p for d in ("state", "offsets") for p in self.storage.list(d)}

    def orphans(self) -> set[str]:
        """State and offset files that no checkpoint refers to."""
        return self.job_files() - {f for m in self.retained() for f in m.files()}

    # -- what must hold

    def assert_consistent(self) -> None:
        """A reader sees a part of the truth, each row once, and all checkpoints are whole."""
        found = self.examine(partial=True)
        assert not found, found
        assert verify(self.storage) == []

    def assert_settled(self, report: dict[str, Any], alive: int | None = None) -> None:
        """A finished job has written what a run without faults writes, and left nothing behind.

        Args:
            report: Of the driver that finished it.
            alive: An attempt whose workers are still there, and may write what nobody reads.
        """
        assert report["error"] is None
        assert report["attempts"] == 1
        found = self.examine()
        assert not found, found
        assert [p for p in self.leftovers() if p.parent.name != str(alive)] == []
        assert verify(self.storage) == []
        latest = self.latest()
        assert not report["epochs"] or latest.epoch == report["epochs"][-1]
        writers = {int(path.split("/")[1]) for path in self.orphans()}
        assert writers <= {latest.attempt, alive}
        assert self.status["state"] == "FINISHED"


def epoch_of(name: str) -> int:
    """The epoch in the name of an output file."""
    match = _NAME.match(name)
    assert match is not None, name
    return int(match[1])


def of_epoch(names: set[str] | Files, epoch: int) -> set[str]:
    """Those of the names that belong to an epoch."""
    return {name for name in names if epoch_of(name) == epoch}


def after_epoch(names: set[str] | Files, epoch: int) -> set[str]:
    """Those of the names that belong to a later epoch."""
    return {name for name in names if epoch_of(name) > epoch}


def _identity(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


__all__ = ["SINKS", "Files", "Place", "after_epoch", "epoch_of", "of_epoch", "write_input"]
