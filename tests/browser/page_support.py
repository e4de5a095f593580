"""Jobs worth looking at, written as drivers write them, and a browser that looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Page, expect

from fake_job import Driver, FakeJob, dead, schema
from manual_clock import ManualClock
from turnback.job.history import (
    AttemptStarted,
    CheckpointFailed,
    CheckpointStats,
    History,
    JobEnded,
    Restarting,
)
from turnback.job.request import Request
from turnback.job.requests import Requests
from turnback.job.status import (
    JobProgram,
    JobState,
    Lag,
    Metrics,
    OperatorLoad,
    ProgramOperator,
    ProgramSetting,
    StatusUpdate,
    TaskLoad,
)
from turnback.job.throughput import ThroughputLog
from turnback.values.typeinfo import Types
from turnback.views.jobs import Jobs

EVIL = "<img src=x onerror=alert(1)>"
LONG = "a-name-that-somebody-generated-" + "x" * 90
BIG = 9_223_372_036_854_775_807
LAG = Lag(records=12_345, seconds=252, change_per_s=-100.0, catch_up_s=123.4, measured_ms=1)
LOAD = {
    "count": OperatorLoad(
        tasks=4,
        busy=0.36,
        busiest=0.93,
        skew=3.1,
        skewed=2,
        by_task=tuple(
            TaskLoad(
                task=task,
                records_in=100 + 700 * (task == 2),
                records_out=task,
                per_s=100 + 700.0 * (task == 2),
                busy=0.17 + 0.76 * (task == 2),
                state_bytes=512,
            )
            for task in range(4)
        ),
    ),
    "out": OperatorLoad(tasks=1, busy=0.004, busiest=0.004),
}
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
TABS = (
    "overview",
    "checkpoints",
    "savepoints",
    "state",
    "diff",
    "timeline",
    "configuration",
    "exceptions",
    "log",
)


class World:
    """Jobs in every state: `likes` runs and has everything, the others show one thing each."""

    def __init__(self, base: Path) -> None:
        self.root, self.runs, self.saved = base / "jobs", base / "runs", base / "saved"
        self.runs.mkdir(parents=True)
        self.jobs = Jobs(str(self.root))
        self.likes = self._likes()
        self._forked()
        self._failed()
        Driver(self.root, "gone", _clock(), process=dead()).attempt()
        Driver(self.root, "empty", _clock()).say(JobState.CREATED)
        Driver(self.root, EVIL, _clock()).attempt()
        Driver(self.root, LONG, _clock()).attempt()
        (self.root / "broken").mkdir()
        (self.root / "broken" / "job.json").write_bytes(b"{nonsense")

    def _likes(self) -> FakeJob:
        job = FakeJob(str(self.root), "likes")
        job.clock.advance(_clock().now_ms() - job.clock.now_ms())
        attempt = job.attempt()
        history = History(job.storage, attempt, job.clock)
        history.record(AttemptStarted(None))
        total, names = schema(), schema("names", "map", Types.STRING(), sub=Types.STRING())
        likes = {f"user-{i:03d}": i for i in range(120)} | {EVIL: 1, "big": BIG}
        job.checkpoint((total, likes), (names, {"ann": {"first": EVIL}}))
        path = str(self.saved / "one")
        job.savepoint(path, (total, {"ann": 1, "bob": 2}), id="sp1", label="before-upgrade")
        job.checkpoint((total, {"user-007": 700, "zoe": 1}))
        for epoch, number in enumerate(job.log.numbers()[-2:], 1):
            history.record(
                CheckpointStats(
                    number, epoch, "periodic", 50, 100, 150, 4096, 1, 99_000, 2, 40, tasks=2
                )
            )
        history.record(CheckpointFailed(3, "periodic", f"disk full {EVIL}"))
        history.record(Restarting(f"ValueError: {EVIL}", 1_000))
        newest = job.log.numbers()[-1]
        second = job.attempt(checkpoint=newest)
        History(job.storage, second, job.clock).record(AttemptStarted(f"chk-{newest}"))
        job.directory.record_program(_program())
        self._counted(job)
        log = self.runs / "likes.log"
        log.write_text(f"a line\n{EVIL}\n2026-11-17 16:38:25,518 ERROR turnback: no disk\n")
        self.say(job, second, log=str(log), spark_ui="http://127.0.0.1:4040")
        return job

    def _counted(self, job: FakeJob) -> None:
        """What drivers have processed in the last hours, with ten minutes without one."""
        now = _clock(minutes=0).now_ms()
        clock = ManualClock(now - 300 * 60_000)
        counted = ThroughputLog(job.storage, clock)
        counted.begin(job.info.job_id)
        for tenth in range(1, 1_800):
            clock.set_now_ms(now - (1_800 - tenth) * 10_000)
            if not 1_680 < tenth < 1_740:
                counted.count(10 * (1_000 + tenth % 90 * 10), 10 * (1_800 - tenth), 10)
                counted.tick(10_000 + 50 * (tenth % 130))
        counted.write()

    def say(
        self, job: FakeJob, attempt: int, read: int = 1_000, lag: Lag = LAG, **fields: Any
    ) -> None:
        metrics = Metrics(
            started_ms=job.clock.now_ms(),
            read=read,
            per_s=12.5,
            records={"events": (0, read), "count": (read, 7), "out": (7, 0)},
            left_out={"count": 3},
            malformed={"events": 5},
            state_bytes={"count": 2_048},
            watermarks={"count": job.clock.now_ms(), "events": job.clock.now_ms() + 1_000},
            lag={"events": lag},
            busy=0.83,
            load=LOAD,
        )
        job.directory.write_status(
            JobState.RUNNING,
            job.info.job_id,
            StatusUpdate(attempt=attempt, metrics=metrics, **fields),
        )

    def _forked(self) -> None:
        driver = Driver(self.root, "fork", _clock(minutes=2))
        driver.attempt(snapshot=str(self.saved / "one"))
        driver.happens(JobEnded("CANCELED")).say(JobState.CANCELED)

    def _failed(self) -> None:
        driver = Driver(self.root, "failing", _clock()).attempt()
        cause = "RuntimeError: boom\n" + "\n".join(f"  at frame {i}" for i in range(9))
        driver.happens(JobEnded("FAILED", cause)).say(JobState.FAILED, cause=cause)


def _clock(minutes: int = 10) -> ManualClock:
    return ManualClock(int(time.time() * 1000) - minutes * 60_000)


def _program() -> JobProgram:
    def operator(uid: str, kind: str, *inputs: str, **more: Any) -> ProgramOperator:
        named = {"name": uid.title(), "parallelism": 2, "level": 0} | more
        return ProgramOperator(uid=uid, kind=kind, inputs=inputs, **named)

    return JobProgram(
        attempt=1,
        operators=(
            operator("events", "source", parallelism=None, level=-1),
            operator(
                "count", "keyed process", "events", key="user", name=f"Count {EVIL}", parallelism=4
            ),
            operator("out", "sink", "count"),
        ),
        settings=(
            ProgramSetting(key="state.backend.type", value="rocksdb", origin="code"),
            ProgramSetting(key="spark.x", value=EVIL, origin="-D"),
        ),
        warnings=(f"careful {EVIL}",),
        versions={"turnback": "1"},
        script=("job.py", "--topic", "a b"),
    )


class Driving:
    """Plays the driver of a job that somebody asks something of."""

    def __init__(self, job: FakeJob) -> None:
        self.requests = Requests(job.storage)

    def asked(self, seconds: float = 10) -> Request:
        """Wait for a request."""
        return until(lambda: next(iter(self.requests.open()), None), seconds)

    def nothing(self) -> bool:
        """Whether nothing was ever asked."""
        return self.requests.ids() == []


def until(find: Callable[[], Any], seconds: float = 10) -> Any:
    """Wait until there is something."""
    deadline = time.monotonic() + seconds
    while (found := find()) is None:
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.05)
    return found


class Looker:
    """A page of the dashboard, and what the browser complained of."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base
        self.complaints: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({self.page.url})")

    def open(self, *segments: str, query: str = "") -> Page:
        """Go to a page and wait until it shows its data."""
        path = "/".join(quote(segment, safe="") for segment in segments)
        self.page.goto(f"{self.base}/{path}{query}")
        self.page.wait_for_selector("h1, .failure, .empty")
        expect(self.page.locator(".skeleton")).to_have_count(0)
        return self.page

    def job(self, name: str, tab: str = "overview") -> Page:
        """Go to a tab of a job."""
        return self.open("jobs", name, *(() if tab == "overview" else (tab,)))

    def sideways(self) -> int:
        """How many pixels the page is wider than the screen."""
        return self.page.evaluate("document.scrollingElement.scrollWidth - innerWidth")


DRAWN = """legend => [...legend.querySelectorAll(".swatch")].every(swatch => {
  const wanted = getComputedStyle(swatch).backgroundColor.match(/\\d+/g).map(Number);
  return [...legend.parentNode.querySelectorAll("canvas")].some(canvas => {
    const copy = document.createElement("canvas");
    Object.assign(copy, { width: canvas.width, height: canvas.height });
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, copy.width, copy.height);
    const near = at => wanted.every((part, n) => Math.abs(data[at + n] - part) < 2);
    for (let at = 0; at < data.length; at += 4) if (near(at) && data[at + 3] > 250) return true;
    return false;
  });
})"""
"""Whether a canvas shows the colour of each swatch of its legend."""
