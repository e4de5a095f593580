"""How soon do the dashboard and its metrics answer, with many jobs and a long past?"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec

from benchmarks import section
from benchmarks.machine import Machine
from benchmarks.program import ProgramFailedError
from benchmarks.table import table
from turnback import FileSink, KeyedProcessFunction, StreamExecutionEnvironment
from turnback.core.clock import SystemClock
from turnback.job.directory import JOB, STATUS, decode_info
from turnback.job.history import CheckpointStats, History
from turnback.job.status import Status
from turnback.storage.envelope import encode_document
from turnback.storage.open import open_storage
from turnback.testing import JobHarness, source
from turnback.views.jobs import Jobs

ANSWERS = 15
LONGEST = "job-0"
"""The job with the longest history."""
ASKED = {
    "all jobs": "/api/v1/jobs",
    "metrics": "/metrics",
    "a job": f"/api/v1/jobs/{LONGEST}",
    "its newest checkpoints": f"/api/v1/jobs/{LONGEST}/checkpoints?limit=100",
    "its timeline": f"/api/v1/jobs/{LONGEST}/timeline",
    "all savepoints": "/api/v1/savepoints",
}
START_S = 60


class Count(KeyedProcessFunction):
    def process_element(self, value: object, ctx: object) -> Iterator[object]:
        yield value


def program(env: StreamExecutionEnvironment) -> None:
    stream = source(env, "events", "post string, n bigint")
    for number in range(4):
        stream = stream.key_by("post").process(Count(), "post string, n bigint").uid(f"op-{number}")
    stream.sink_to(FileSink("/nowhere", "json")).uid("out")


@contextmanager
def running_jobs(directory: Path, jobs: int, checkpoints: int) -> Iterator[Path]:
    """Copies of a job that runs, each with so many checkpoints in its history; gives their root."""
    with JobHarness(program, directory, name=LONGEST) as job:
        for number in range(5):
            job.push("events", (f"p{number}", number))
        (one,) = (path.parent for path in directory.rglob("job.json"))
        for number in range(1, jobs):
            copy = one.with_name(f"job-{number}")
            shutil.copytree(one, copy, ignore=shutil.ignore_patterns(".*"))  # half-written files
            rename(copy)
            add_checkpoints(copy, checkpoints)
        yield one.parent


def rename(copy: Path) -> None:
    """Make the copy of a job one of its own, whose driver may be silent."""
    info = decode_info((copy / JOB).read_bytes(), JOB)
    document = encode_document("job", 1, msgspec.structs.replace(info, job=copy.name))
    (copy / JOB).write_bytes(document)
    status = msgspec.json.decode((copy / STATUS).read_bytes(), type=Status)
    never = msgspec.structs.replace(status.limits, heartbeat_ms=None)
    status = msgspec.structs.replace(status, job=copy.name, limits=never)
    (copy / STATUS).write_bytes(msgspec.json.encode(status))


def add_checkpoints(directory: Path, checkpoints: int) -> None:
    history = History(open_storage(str(directory)), 2, SystemClock())
    for number in range(checkpoints):
        history.add(CheckpointStats(number, number, "periodic", 3, 20, 5, 10_000, 2, 500_000, 40))
        if number % 50 == 0:
            history.flush()
    history.flush()


@contextmanager
def dashboard(root: Path, log: Path) -> Iterator[str]:
    """Run `turnback ui`; gives its address."""
    options = ["--root", str(root), "--port", "0", "--read-only", "--json"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "turnback", "ui", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + START_S
        while not (found := re.search(r"http://[\w.:]+", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise ProgramFailedError(f"turnback ui did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


def answers(address: str) -> tuple[list[float], int]:
    """Milliseconds of each answer, as a browser asks for it, and its bytes on the wire."""
    times, size = [], 0
    for _ in range(ANSWERS):
        request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as response:
            size = len(response.read())
        times.append((time.perf_counter() - begin) * 1000)
    return times, size


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--jobs", type=int, default=500, help="(%(default)s)")
    parser.add_argument(
        "--checkpoints", type=int, default=100_000, help="of all jobs together (%(default)s)"
    )
    given = section.parse(parser, argv, jobs=3, checkpoints=300)
    if not 0 < given.jobs <= given.checkpoints:
        parser.error("there must be at least one job, and one checkpoint of each")
    return given


def measure(given: argparse.Namespace) -> list[list[str]]:
    """What each page asks for, and how long the first answer takes, the median and the longest."""
    each = given.checkpoints // given.jobs
    with (
        tempfile.TemporaryDirectory(prefix="turnback-dashboard-") as name,
        running_jobs(Path(name), given.jobs, each) as root,
    ):
        add_checkpoints(root / LONGEST, given.checkpoints)
        states = {job.state for job in Jobs(str(root)).list()}
        if states != {"RUNNING"}:
            raise ProgramFailedError(f"all jobs should run, and they are {', '.join(states)}")
        rows = []
        with dashboard(root, Path(name) / "ui.log") as address:
            for what, path in ASKED.items():
                times, size = answers(address + path)
                numbers = (times[0], median(times), max(times))
                rows.append([what, *(f"{n:,.0f} ms" for n in numbers), f"{size / 1024:,.0f} KiB"])
        return rows


def report(machine: Machine, given: argparse.Namespace, rows: list[list[str]]) -> str:
    return (
        "## The dashboard with many jobs\n\n"
        f"{given.jobs:,} jobs that run, with {given.checkpoints:,} checkpoints in their histories, "
        f"and as many again in that of one of them, which is looked at. {machine.describe()}\n\n"
        + table(["what is asked", "first", "median", "longest", "bytes, compressed"], rows)
        + f"\n\n{ANSWERS} answers each, by `turnback ui` over HTTP. Repeat with "
        "`python -m benchmarks.dashboard`."
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    text = report(Machine.here(), given, measure(given))
    print(text)
    if given.output is not None:
        section.write(given.output, "dashboard", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
