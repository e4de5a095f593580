"""Job directories for the command line to look at, and ways to call it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fake_job import FakeJob, schema
from turnback.cli.main import main
from turnback.job.history import AttemptStarted, CheckpointFailed, CheckpointStats, History
from turnback.job.request import Request, RequestOutcome, RequestProgress, RequestState
from turnback.job.requests import Requests
from turnback.job.status import JobProgram, JobState, Metrics, ProgramOperator, StatusUpdate

PROGRAM = str(Path(sys.executable).with_name("turnback"))
TOTAL = schema()


@dataclass(frozen=True)
class Done:
    """What a call has printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def error(self) -> Any:
        return self.json["error"]


class Shell:
    """Calls the program in a directory, with nothing configured but the root."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.home.mkdir()
        self.root = tmp_path / "jobs"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TURNBACK_ROOT": str(self.root),
            "COLUMNS": "200",
        }
        if "JAVA_HOME" in os.environ:
            self.environ["JAVA_HOME"] = os.environ["JAVA_HOME"]

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> Done:
        """Call it in this process, which is quick."""
        out, err = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, {**self.environ, **(env or {})}, clear=True),
            patch.object(sys, "stdin", io.StringIO()),
            contextlib.chdir(self.home),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(words)
        return Done(code, out.getvalue(), err.getvalue())

    def program(
        self, *words: str, env: Mapping[str, str] | None = None, answer: str | None = None
    ) -> Done:
        """Call what is installed."""
        done = subprocess.run(
            [PROGRAM, *words],
            cwd=self.home,
            env={**self.environ, **(env or {})},
            input=answer or "",
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, *words],
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def make_job(
    root: Path,
    name: str,
    state: JobState = JobState.FINISHED,
    cause: str | None = None,
    metrics: Metrics | None = None,
    application: str | None = None,
) -> FakeJob:
    """A job with two checkpoints, a failed one, a program, and a status."""
    job = FakeJob(str(root), name)
    attempt = job.attempt()
    history = History(job.storage, attempt, job.clock)
    history.record(AttemptStarted(None))
    for held in ({"alice": 1, "bob": 2}, {"alice": 3, "carol": 4}):
        taken = job.checkpoint((TOTAL, held))
        number = taken.origin.checkpoint
        assert number is not None
        history.record(
            CheckpointStats(number, job.epoch, "periodic", 1, 20, 3, 900, 1, 1800, 2, 5, 2)
        )
    history.record(CheckpointFailed(3, "periodic", "the disk is full", after_ms=10))
    history.flush()
    job.directory.record_program(
        JobProgram(
            attempt=attempt,
            operators=(
                ProgramOperator(
                    uid="events", name="events", kind="source", parallelism=None, level=-1
                ),
                ProgramOperator(
                    uid="count", name="Count", kind="keyed_process", parallelism=2, level=0,
                    key="user", inputs=("events",),
                ),
            ),
            warnings=("the operator 'x' has no uid",),
            versions={"turnback": "0.1.0"},
            script=("job.py", "--fast"),
        )
    )  # fmt: skip
    said = {"attempt": attempt, "epoch": 2, "checkpoint": 3, "cause": cause}
    update = StatusUpdate(**said, metrics=metrics or Metrics(), application=application)
    job.directory.write_status(state, job.info.job_id, update)
    return job


class Driver:
    """Answers requests as the driver of a job does, in a thread of the test's own process."""

    def __init__(self, job: FakeJob, answers: Sequence[RequestState | None], path: str) -> None:
        self.job = job
        self.served: list[Request] = []
        self._answers = list(answers)
        self._path = path
        self._requests = Requests(job.storage)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Driver:
        self.job.directory.write_status(JobState.RUNNING, self.job.info.job_id)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for request in self._requests.open():
                if request.id not in [r.id for r in self.served]:
                    self.served.append(request)
                    self._serve(request, self._answers.pop(0))

    def _serve(self, request: Request, answer: RequestState | None) -> None:
        self._requests.report(request.id, RequestProgress(1, 2, 500, 0))
        if answer is RequestState.COMPLETED:
            path = self._path if request.takes_savepoint else None
            self._requests.finish(request.id, RequestOutcome(answer, path=path))
        elif answer is RequestState.FAILED:
            self._requests.finish(request.id, RequestOutcome(answer, error="the disk is full"))
