"""Plays the driver of a job for a supervisor, without Spark.

python driver.py ROOT HOW [DELAY [RESTARTS]]
"""

from __future__ import annotations

import os
import signal
import sys
import time

from turnback.api.environment import launched
from turnback.errors import ConfigurationError, JobInUseError
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.job.run import RunError, RunningJob
from turnback.job.status import JobState, StatusUpdate

ROOT, HOW = sys.argv[1:3]
DELAY, RESTARTS = (*sys.argv[3:], *("50 ms", "1")[len(sys.argv) - 3 :])
RESTART = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": RESTARTS,
    "restart-strategy.fixed-delay.delay": DELAY,
}


class ForeignError(Exception):
    """Of another package, which calls it by the name of one of ours."""


ForeignError.__name__ = "ConfigurationError"

START_ERRORS: dict[str, Exception] = {
    "no start": RuntimeError("no start this time"),
    "no start ever": RuntimeError("no start at all"),
    "wrong": ConfigurationError("there is a typo in a setting"),
    "foreign": ForeignError("not one of ours"),
    "taken": JobInUseError("job 'job' is already RUNNING as pid 1"),
}


def main() -> None:
    lives = JobDirectory.locate(ROOT, "lives").storage
    life = len(lives.list()) + 1
    lives.put(f"{life}", b"")
    if HOW == "dies once, then starts slowly" and life == 2:
        time.sleep(60)  # as if it imported large packages
    started = launched()
    assert started is not None
    run = started.run
    if HOW == "no job":
        return
    if HOW == "broken":
        raise RuntimeError("this script is broken")
    if HOW == "dies before its job":
        os.kill(os.getpid(), signal.SIGKILL)
    # "dies once, then WHAT": it dies when its job runs, and then a start fails, or all of them do
    then = HOW.partition(", then ")[2]
    if then in START_ERRORS and (life == 2 or (life > 2 and then == "no start ever")):
        raise START_ERRORS[then]
    directory = JobDirectory.locate(ROOT, "job")
    info = directory.open()
    restart = {} if HOW == "no restart" else RESTART
    run.set_job(
        RunningJob(
            name="job",
            job_id=info.job_id,
            root=ROOT,
            directory=directory.storage.uri,
            restart=restart,
        )
    )
    first = run.running() is None and "silent" not in run.log.read_text()
    if HOW == "dies once before it says anything" and first:
        print("silent", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    directory.write_status(JobState.RUNNING, info.job_id, StatusUpdate(attempt=life, checkpoint=7))
    run.set_running(life)
    print(f"life {life}", flush=True)
    if HOW in ("dies", "no restart") or (HOW.startswith("dies once") and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "loses Spark once and ends well" and first:
        run.set_error(RunError("SparkUnavailableError", "Spark's JVM is gone"))
        return
    if HOW == "tells its signals":
        ignored = [s.name for s in signal.Signals if signal.getsignal(s) is signal.SIG_IGN]
        print(f"ignored: {ignored}", flush=True)
    if HOW == "waits":
        time.sleep(60)
    if HOW == "ends without an answer":
        Requests(directory.storage).submit(RequestSpec(RequestKind.STOP))
    directory.write_status(JobState.FINISHED, info.job_id)
    if HOW == "ends without an answer":
        os.kill(os.getpid(), signal.SIGKILL)


main()
