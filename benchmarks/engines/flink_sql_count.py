"""`SELECT post, COUNT(*) ... GROUP BY post` in Flink SQL on a local mini cluster, all in the JVM.

Flink's own counters, read through its REST interface ten times a second, tell how many records
have entered the aggregation by when. The answer is checked in the state: another job starts from a
savepoint, reads one more record for some keys, and must count it on from there.
"""

# PyFlink is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from platform import python_version

from pyflink.version import __version__ as flink_version

from benchmarks.dataset import Dataset
from benchmarks.engines import arguments, flink_settings, flink_sql
from benchmarks.engines.flink_rest import FlinkRest
from benchmarks.engines.flink_sql import Running
from benchmarks.result import Result, check
from benchmarks.saved import NATIVE
from benchmarks.workload import Workload

NAME = "flink-sql"
POLL_S = 0.1
CHECK_STEP = 20
"""Every so many keys are checked: PyFlink hands out some hundred rows a second."""


def time_records(job: Running, workload: Workload) -> tuple[int, float]:
    """Records after those of the warm-up, and the seconds until all are read."""
    start, since = _read_at_least(job, workload.warmup_records)
    end, until = _read_at_least(job, workload.records)
    check("records read", end, workload.records)
    return end - start, until - since


def _read_at_least(job: Running, records: int) -> tuple[int, float]:
    while (read := job.read()) < records:
        time.sleep(POLL_S)
    return read, time.monotonic()


def check_state(given: arguments.Arguments[Dataset], job: Running) -> None:
    savepoint = given.scratch / "savepoint"
    job.trigger_savepoint(savepoint, NATIVE).wait()
    job.client.cancel().result()
    probe = given.scratch / "probe"
    probe.mkdir()
    lines = given.dataset.csv_probe.read_text().splitlines(keepends=True)
    # In small workloads there are keys that no batch holds.
    counted = [line for line in lines[::CHECK_STEP] if not line.endswith(",0\n")]
    (probe / "some.csv").write_text("".join(counted))
    # Flink numbers the operators of a process, and finds state by these numbers.
    with ProcessPoolExecutor(1, get_context("spawn")) as new_process:
        check = partial(flink_sql.start_checked, step=CHECK_STEP, known=True)
        new_process.submit(check, given.scratch, probe, savepoint).result()


def main() -> None:
    given = arguments.parse(__doc__, (NAME,))
    dataset = given.dataset
    interval = flink_settings.interval(NAME, dataset)
    job = flink_sql.start(given.scratch, dataset.csv_directory, FlinkRest(), interval)
    records, seconds = time_records(job, dataset.workload)
    checkpoints = job.checkpoints()
    check_state(given, job)
    versions = {"flink": flink_version, "python": python_version()}
    Result(given.variant, records, (seconds,), checkpoints, versions).print()


if __name__ == "__main__":
    main()
