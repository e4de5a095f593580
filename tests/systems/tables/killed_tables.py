"""Kills a job again and again while a reader watches its tables."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from table_support import PLACES, Place

KEYS, EACH, FILES = 100, 200, 20
ROUNDS = [
    "published:2",
    "prepared:3",
    "before-files:4",
    "note-without-files:3",
    "before-clean-up:1",
    "before-manifest:2",
    "after-manifest:2",
    "recovered:1",
    "before-publish:3",
    "notes-gone:2",
    "before-staged-files-go:3",
    "not-recorded:2",
]
"""Every point at which a job is killed, and how often it passes it before."""
JOIN_ROUNDS = [
    "joined:1",
    "join-noted:2",
    "join-published:1",
    "join-settled:2",
    "joined-files-go:3",
    "after-manifest:5",
]
"""The same for a job that writes the output of several checkpoints at once."""
COMPACTION_ROUNDS = ["before-compaction:1", "{format}-compacted:1", "compaction-done:1"]
"""The same for a job that compacts its tables in the background."""
_OWN = re.compile("part-[0-9a-f]{12}-")
"""What names of sinks' files begin with; those that libraries write are theirs to clean up."""
_HERE = Path(__file__).parent
_PATH = os.pathsep.join(map(str, (_HERE, _HERE.parent, _HERE.parents[2] / "src")))


class KilledJob:
    """A job that writes a table of all elements and one of the last of each key."""

    def __init__(
        self, format_name: str, base: Path, *options: str, keys: int = KEYS, each: int = EACH
    ) -> None:
        self.format, self.base, self.options = format_name, base, options
        self.keys, self.each = keys, each
        self._most = self._most_of_another = 0
        for name in ("input", "all", "last"):
            (base / name).mkdir(parents=True)
        self.everything: Place = PLACES[format_name](base / "all")
        self.last: Place = PLACES[format_name](base / "last")
        per_file = each // FILES
        for file in range(FILES):
            numbers = range(file * per_file, (file + 1) * per_file)
            lines = (json.dumps({"key": f"k{k}", "seq": n}) for n in numbers for k in range(keys))
            path = base / "input" / f"{file:04d}.json"
            path.write_text("\n".join(lines) + "\n")
            os.utime(path, (1_700_000_000 + file,) * 2)  # the oldest is read first

    def run(self, kill_at: str | None = None) -> int:
        """Run the job to its end or to a point; returns the exit status."""
        command = [sys.executable, str(_HERE / "table_job.py"), self.format, str(self.base)]
        command += [*self.options, *(("--kill-at", kill_at) if kill_at else ())]
        env = {**os.environ, "PYTHONPATH": _PATH}
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        if ended.returncode not in (0, -signal.SIGKILL):
            raise AssertionError(ended.stderr[-4000:])
        return ended.returncode

    def run_for(self, seconds: float) -> int:
        """Run the job, and kill it after some time if it has not finished; its exit status."""
        with self._started() as job:
            try:
                job.wait(seconds)
            except subprocess.TimeoutExpired:
                job.kill()
            return job.wait()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(_HERE / "table_job.py"), self.format, str(self.base)]
        env = {**os.environ, "PYTHONPATH": _PATH}
        return subprocess.Popen([*command, *self.options], env=env, text=True)

    def problems(self, *, partial: bool) -> list[str]:
        """What a reader of the tables finds wrong; `partial` if the job has not finished."""
        table = self.everything.read()
        found = [] if partial or table.num_rows == self.keys * self.each else ["rows are missing"]
        if table.num_rows < self._most:
            found.append("rows have vanished that readers have seen")
        self._most = max(self._most, table.num_rows)
        unique = table.group_by(["key", "seq"]).aggregate([]).num_rows
        if unique != table.num_rows:
            found.append(f"{table.num_rows - unique} rows are there twice")
        if not pc.all(
            pc.equal(table["previous"], pc.subtract(table["seq"], 1)), min_count=0
        ).as_py():
            found.append("the state of a key was not what its elements had left")
        by_key = table.group_by("key").aggregate([("seq", "max"), ("seq", "count")])
        if not pc.all(
            pc.equal(pc.add(by_key["seq_max"], 1), by_key["seq_count"]), min_count=0
        ).as_py():
            found.append("a key has a gap")
        return found + self._problems_of_last(self.last.read(), partial=partial)

    def _problems_of_last(self, last: pa.Table, *, partial: bool) -> list[str]:
        found = []
        if last.group_by("key").aggregate([]).num_rows != last.num_rows:
            found.append("a key is there twice")
        if not partial and last.num_rows != self.keys:
            found.append(f"{last.num_rows} of {self.keys} keys have a last row")
        if not partial and not pc.all(pc.equal(last["seq"], self.each - 1), min_count=0).as_py():
            found.append("the last row of a key is not the last")
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read the tables all the time; fail if a reader ever sees what should not be there."""
        problems: list[str] = []
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.5):
                if (self.base / "last" / "ready").exists():
                    problems.extend(self.problems(partial=True))
                    problems.extend(self._problems_of_another())

        thread = threading.Thread(target=watch, name="reader")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        assert not problems, problems[0]

    def watch_from_now(self) -> None:
        """Say that both tables exist."""
        (self.base / "last" / "ready").touch()

    def read_by_another(self) -> tuple[int, int]:
        """How many rows DuckDB finds in the files of the table, and how many different ones."""
        current, root = self.everything.referenced(), self.everything.root
        files = [str(path) for path in root.rglob("*.parquet") if path.name in current]
        if not files:
            return 0, 0
        with duckdb.connect() as reader:
            counts = "count(*), count(DISTINCT (key, seq))"
            found = reader.sql(f"SELECT {counts} FROM read_parquet({files})").fetchall()
        return found[0]

    def _problems_of_another(self) -> list[str]:
        rows, different = self.read_by_another()
        found = [] if rows == different else ["DuckDB sees rows twice"]
        if rows < self._most_of_another:
            found.append("rows have vanished that DuckDB has seen")
        self._most_of_another = max(self._most_of_another, rows)
        return found

    def leftovers(self) -> set[str]:
        """Files of sinks that no version of the tables refers to."""
        files = {path.name for path in self.everything.root.rglob("part-*.parquet")}
        written = {name for name in files if _OWN.match(name)}
        staged = self.last.root.rglob(".turnback/**/*.parquet")
        notes = self.base.rglob("*.inprogress")
        return (written - self.everything.ever_referenced()) | {p.name for p in (*staged, *notes)}


def assert_exact_after_kills(job: KilledJob, points: list[str], moments: int = 0) -> None:
    """Kill the job at each point, and at some moments by chance, then let it finish.

    Nothing is missing, nothing there twice, for any reader at any time.
    """
    with job.watched():
        for point in points:
            reached = job.run(point.format(format=job.format))
            assert reached == -signal.SIGKILL, f"{point} was not reached"
            if job.everything.root.exists() and job.last.root.exists():
                job.watch_from_now()
        for _ in range(moments):
            job.run_for(random.uniform(1, 3))
        assert job.run() == 0
    assert job.problems(partial=False) == []
    assert job.leftovers() == set()
    assert job.read_by_another() == (job.keys * job.each,) * 2


def assert_few_files(job: KilledJob) -> None:
    """The table has far fewer files than were written into it."""
    written, left = len(job.everything.ever_referenced()), len(job.everything.referenced())
    print(f"{job.format}: {written} files were written, {left} are left")
    assert left <= written / 2
