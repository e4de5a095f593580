"""Plays the driver of a job for a supervisor, without Spark: python driver.py ROOT HOW"""

from __future__ import annotations

import os
import signal
import sys
import time

from turnback.api.launched import launched
from turnback.coordinator import JobDirectory, JobState, RequestKind, Requests, RunningJob

ROOT, HOW = sys.argv[1:3]
RESTART = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": sys.argv[3] if len(sys.argv) > 3 else "50 ms",
}


def main() -> None:
    started = launched()
    assert started is not None
    run, lives = started.run, JobDirectory.locate(ROOT, "lives").storage
    life = len(lives.list()) + 1
    lives.put(f"{life}", b"")
    if HOW == "no job":
        return
    if HOW == "broken":
        raise RuntimeError("this script is broken")
    if HOW == "dies before its job":
        os.kill(os.getpid(), signal.SIGKILL)
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
    directory.say(JobState.RUNNING, info.job_id, attempt=life, checkpoint=7)
    run.set_running(life)
    print(f"life {life}", flush=True)
    if HOW in ("dies", "no restart") or (HOW == "dies once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "waits":
        time.sleep(60)
    if HOW == "ends without an answer":
        Requests(directory.storage).submit(RequestKind.STOP)
    directory.say(JobState.FINISHED, info.job_id)
    if HOW == "ends without an answer":
        os.kill(os.getpid(), signal.SIGKILL)


main()
