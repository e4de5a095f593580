"""The job of `hdfs/hdfs_job.py` with its directory in any storage: its drivers and its rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from crash.driver import Driver

JOB = Path(__file__).parent / "hdfs" / "hdfs_job.py"
FILES = 14
KEYS = 4
EACH = 5
"""Numbers of a key in a file."""
EXPECTED = [(f"k{key}", n, n - 1) for key in range(KEYS) for n in range(FILES * EACH)]


def write_source(directory: Path, files: Iterable[int] = range(FILES)) -> Path:
    """Write what the job reads, or some of it; return the directory."""
    directory.mkdir(exist_ok=True)
    for file in files:
        numbers = range(file * EACH, (file + 1) * EACH)
        rows = [json.dumps({"key": f"k{key}", "n": n}) for n in numbers for key in range(KEYS)]
        hidden = directory / f".{file:03}.json"
        hidden.write_text("\n".join(rows))
        os.utime(hidden, (file, file))  # Spark reads files in the order of their times
        hidden.rename(directory / f"{file:03}.json")
    return directory


class Place:
    """The job of a test: its drivers, and what it has written."""

    def __init__(
        self,
        root: str,
        source: Path,
        directory: Path,
        java: str,
        environment: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
    ) -> None:
        self.root = root
        self._partition_by = partition_by
        self._source = source
        self._directory = directory
        self._environment = {
            "JDK_JAVA_OPTIONS": java,
            "SPARK_MASTER": "local[2]",
            "TURNBACK_CONF_PARALLELISM_DEFAULT": "2",
            "PYTHONPATH": f"{JOB.parent}:{Path(__file__).parents[2] / 'src'}",
            **(environment or {}),
        }
        self._drivers: list[Driver] = []

    def start(self, **settings: object) -> Driver:
        place = self._directory / f"driver-{len(self._drivers)}"
        paths = {"root": self.root, "input": str(self._source), "output": "out"} | settings
        paths["output"] = str(self._directory / str(paths["output"]))
        arguments = [json.dumps(paths | {"partition_by": self._partition_by})]
        driver = Driver(arguments, place, place / "gate", self._environment, JOB)
        self._drivers.append(driver)
        return driver

    def rows(self, output: str = "out") -> list[tuple[str, int, int]]:
        """What an independent reader finds in the sink."""
        root = self._directory / output
        rows = []
        for path in root.rglob("*.json"):
            if not path.name.startswith((".", "_")):
                folders = path.parent.relative_to(root).parts
                columns = dict(folder.split("=") for folder in folders)
                rows += [columns | json.loads(line) for line in path.read_text().splitlines()]
        return [(row["key"], row["n"], row["before"]) for row in rows]

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()
