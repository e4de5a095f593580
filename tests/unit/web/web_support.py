"""A root with real jobs, and ways to call the dashboard: in memory, and over a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from fake_job import FakeJob, schema
from manual_clock import ManualClock
from turnback.job.directory import JobDirectory
from turnback.job.history import (
    AttemptStarted,
    CheckpointFailed,
    CheckpointStats,
    History,
    JobEnded,
)
from turnback.job.status import (
    JobProgram,
    JobState,
    Metrics,
    OperatorLoad,
    ProgramOperator,
    ProgramSetting,
    StatusUpdate,
)
from turnback.views.jobs import Jobs
from turnback.web.server import create_app, serve
from turnback.web.site import Site

TOKEN = "correct-horse-battery-staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOSTILE = "../<img src=x>/%2F..\\etc"
NOW = 1_700_000_600_000


class World:
    """Jobs below `root`: one runs, one has failed, one cannot be read; and a secret beside them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "jobs"
        self.runs = base / "runs"
        self.runs.mkdir(parents=True)
        self.secret = base / "secret.txt"
        self.secret.write_text("s3cret")
        self.clock = ManualClock(NOW)
        self.jobs = Jobs(str(self.root), clock=self.clock)
        self.likes = self._running()
        self.failed = self._failed()
        broken = self.root / "broken"
        broken.mkdir()
        (broken / "job.json").write_bytes(b"{nonsense")

    def _running(self) -> FakeJob:
        job = FakeJob(str(self.root), "likes")
        attempt = job.attempt(checkpoint=1)
        total = schema()
        job.checkpoint((total, {"ann": 1, "bob": 2}))
        job.checkpoint((total, {"bob": 3, "cy": 4}))
        job.savepoint(str(self.base / "saved" / "one"), (total, {"ann": 1}), id="sp1", label="nice")
        job.directory.record_program(program())
        history = History(job.storage, attempt, job.clock)
        history.record(AttemptStarted("chk-1", 1))
        numbers = job.log.numbers()
        for epoch, number in enumerate(numbers[-2:], 1):
            history.record(
                CheckpointStats(
                    number, epoch, "periodic", 5, 10, 15, 100 * epoch, 1, 1000 * epoch, 2
                )
            )
        history.record(CheckpointFailed(3, "periodic", "disk full"))
        self.log = self.runs / "likes" / "driver.log"
        self.log.parent.mkdir()
        self.log.write_text("".join(f"line {i}\n" for i in range(1_000)))
        job.directory.write_status(
            JobState.RUNNING,
            job.info.job_id,
            StatusUpdate(
                attempt=attempt,
                epoch=2,
                checkpoint=numbers[-1],
                restarts=3,
                log=str(self.log),
                metrics=Metrics(
                    started_ms=NOW - 60_000,
                    read=10,
                    records={"count": (10, 7)},
                    watermarks={"count": 99},
                    malformed={"events": 6},
                    state_bytes={"count": 55},
                    busy=0.9,
                    load={
                        "count": OperatorLoad(tasks=2, busy=0.3, busiest=0.5, skew=1.9, skewed=1)
                    },
                    completed=41,
                    failed=1,
                ),
            ),
        )
        self.numbers = numbers[-2:]
        return job

    def _failed(self) -> JobDirectory:
        directory = JobDirectory.locate(str(self.root), "team/a job", clock=self.clock)
        info = directory.open()
        directory.record_attempt(1)
        history = History(directory.storage, 1, self.clock)
        history.record(AttemptStarted(None))
        history.record(JobEnded("FAILED", "boom"))
        directory.write_status(JobState.FAILED, info.job_id, StatusUpdate(attempt=1, cause="boom"))
        return directory

    def site(self, **more: Any) -> Site:
        settings = {"token": TOKEN, "runs_dir": self.runs, "clock": self.clock}
        return Site(jobs=self.jobs, **{**settings, **more})

    def app(self, **more: Any) -> Any:
        return create_app(self.site(**more))

    def browser(self, **more: Any) -> Browser:
        return Browser(self.app(**more))

    def asked(self) -> list[str]:
        """What was asked of any job, as files: nothing else may change anything."""
        return sorted(str(p) for p in self.root.rglob("ops/*"))


def program() -> JobProgram:
    return JobProgram(
        attempt=1,
        operators=(
            ProgramOperator(uid="events", name="Events", kind="source", parallelism=None, level=-1),
            ProgramOperator(
                uid="count",
                name="Count",
                kind="process",
                parallelism=2,
                level=0,
                inputs=("events",),
            ),
        ),
        settings=(
            ProgramSetting(key="state.backend.type", value="rocksdb", origin="code"),
            ProgramSetting(key="spark.x", value="1", origin="-D"),
        ),
    )


class Browser:
    """Calls the application without a socket; keeps no cookies of its own."""

    def __init__(self, app: Any, base: str = "http://127.0.0.1:8081") -> None:
        self._app, self._base = app, base

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url=self._base) as client:
                return await client.request(method, path, **more)

        return asyncio.run(call())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def api(self, path: str, **more: Any) -> httpx.Response:
        return self.get(f"/api/v1{path}", **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        more.setdefault("headers", BEARER)
        return self.request("POST", f"/api/v1{path}", json=body or {}, **more)


@contextmanager
def served(jobs: Jobs, **more: Any):
    """The real server on a real port, in a thread; gives its port."""
    ready, stop = threading.Event(), threading.Event()
    addresses: list[str] = []
    failed: list[BaseException] = []

    def on_ready(url: str) -> None:
        addresses.append(url)
        ready.set()

    def run() -> None:
        try:
            site = Site(jobs=jobs, **{"token": TOKEN, "port": 0, **more})
            serve(site, on_ready=on_ready, stop=stop)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(20)
        assert not failed, failed
        yield int(addresses[0].rsplit(":", 1)[1].split("/")[0])
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    assert not failed, failed


def raw(port: int, text: str | bytes, host: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; give status, headers and body of the answer."""
    data = text if isinstance(text, bytes) else text.replace("\n", "\r\n").encode("latin-1")
    with socket.create_connection((host, port), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    return int(status.split()[1]), headers, body
