"""The story of a social media company that turns back time. Everything in it really happens.

1. Version 1 counts views and clicks per post. Its driver is killed with SIGKILL and started again.
2. Paid posts are launched. At that moment the team takes a savepoint; version 1 goes on.
3. Weeks later users want paid and organic numbers apart. Version 2 starts from that savepoint:
   all totals from before the launch, everything since then counted anew, then live.
4. Version 3 is forked from the same savepoint beside it, as an A/B test.

What readers see is read back with nothing but `json`, and compared with the truth.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from demo_page import Run, page
from demo_truth import POSTS, Truth, apart, newest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from turnback.errors import ConfigurationError
from turnback.job.directory import JobDirectory
from turnback.job.history import AttemptStarted, CheckpointStats, read_history
from turnback.job.request import RequestKind, RequestSpec, RequestState
from turnback.job.requests import Requests
from turnback.spark.session import check_java

HERE = Path(__file__).parent
BEFORE, SINCE, LIVE = 8, 8, 2
"""Files of events from before the launch, since then, and while version 2 is live."""
LIMIT_S = 240
JOB = "social-media"

console = Console()


class Driver:
    """A version of the job in a process of its own."""

    def __init__(self, demo: Demo, version: str, script: str, *arguments: str) -> None:
        self.version, self.out = version, demo.directory / version
        self.log = demo.directory / f"{version}.log"
        self.started = time.time()
        places = [str(demo.truth.directory), str(self.out), str(demo.jobs)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / script), *places, *arguments], stdout=log, stderr=log
            )

    def rows(self, what: str = "totals") -> list[dict[str, Any]]:
        """What a reader of the dashboard sees: every committed row."""
        files = sorted((self.out / what).glob("*.json"))
        return [json.loads(line) for f in files for line in f.read_text().splitlines()]

    def wait(self, rows: int, progress: Progress, task: Any) -> None:
        """Wait until a reader sees so many rows."""
        deadline = time.monotonic() + LIMIT_S
        while (seen := len(self.rows())) < rows:
            progress.update(task, completed=seen)
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                console.print(f"[red]{self.version} stopped.[/red] The end of {self.log}:\n{tail}")
                raise SystemExit(1)
            time.sleep(0.1)
        progress.update(task, completed=seen)


class Demo:
    """A directory with the events, the jobs, and what they put out."""

    def __init__(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.directory = directory
        self.jobs = directory / "jobs"
        self.savepoint = directory / "savepoints" / "launch-day"
        self.truth = Truth(directory / "events")
        self.drivers: list[Driver] = []
        self.runs: list[Run] = []
        self.saved = 0.0

    def start(self, version: str, script: str, *arguments: str) -> Driver:
        driver = Driver(self, version, script, *arguments)
        self.drivers.append(driver)
        return driver

    def ask(self, job: str, kind: RequestKind, **what: Any) -> None:
        """Ask a running job for something, through its directory, and wait for the answer."""
        requests = Requests(JobDirectory.locate(self.jobs, job).storage)
        answer = requests.wait(requests.submit(RequestSpec(kind, **what)).id, LIMIT_S)
        if answer is None or answer.state is not RequestState.COMPLETED:
            console.print(f"[red]{job}: {kind.value} failed: {answer and answer.error}")
            raise SystemExit(1)

    def ended(self, driver: Driver, how: str) -> None:
        driver.process.wait(60)
        self.runs.append(Run(driver.version, driver.started, time.time(), how))

    def close(self) -> None:
        for driver in self.drivers:
            if driver.process.poll() is None:
                driver.process.kill()
                driver.process.wait()


def tell(demo: Demo, progress: Progress) -> tuple[Driver, Driver]:
    """Run the whole story."""
    truth = demo.truth
    truth.write(BEFORE, paid=False)
    task = progress.add_task("version 1", total=truth.count)
    driver = demo.start("v1", "social_media.py")
    driver.wait(truth.count // 2, progress, task)
    driver.process.send_signal(signal.SIGKILL)
    demo.ended(driver, "killed")
    progress.update(task, description="version 1, killed with SIGKILL")
    progress.stop_task(task)

    task = progress.add_task("version 1, same command again", total=truth.count)
    driver = demo.start("v1", "social_media.py")
    driver.wait(truth.count, progress, task)
    demo.ask("social-media", RequestKind.SAVEPOINT, target=str(demo.savepoint), label="launch-day")
    demo.saved = time.time()
    truth.write(SINCE, paid=True)
    progress.update(task, total=truth.count, description="version 1, after the savepoint")
    driver.wait(truth.count, progress, task)
    demo.ask(JOB, RequestKind.CANCEL)
    demo.ended(driver, "cancelled")

    since = truth.since_launch()
    task2 = progress.add_task("version 2, from the savepoint", total=since)
    task3 = progress.add_task("version 3, forked beside it", total=since)
    at = str(demo.savepoint)
    second = demo.start("v2", "social_media_v2.py", at, "social-media-v2", "1")
    third = demo.start("v3", "social_media_v2.py", at, "social-media-v3", "2")
    second.wait(since, progress, task2)
    third.wait(since, progress, task3)
    truth.write(LIVE, paid=True)
    for driver, task, job in (
        (second, task2, "social-media-v2"),
        (third, task3, "social-media-v3"),
    ):
        progress.update(task, total=truth.since_launch())
        driver.wait(truth.since_launch(), progress, task)
        demo.ask(job, RequestKind.STOP)
        demo.ended(driver, "stopped")
    return second, third


def report(demo: Demo, second: Driver, third: Driver) -> bool:
    """Compare what readers see with the truth."""
    found = {"v2": newest(second.rows()), "v3": newest(third.rows())}
    right = len(second.rows()) == len(third.rows()) == demo.truth.since_launch()
    table = Table("post", title="Version 2: views and clicks per post, paid and organic apart")
    for heading in ("organic views", "clicks", "paid views", "clicks", "the truth"):
        table.add_column(heading, justify="right")
    for post in POSTS:
        truth = apart(demo.truth, post)
        fits = found["v2"].get(post) == found["v3"].get(post) == truth
        right = right and fits
        shown = [f"{n:,}" for n in found["v2"].get(post, (0, 0, 0, 0))]
        table.add_row(post, *shown, "[green]equal" if fits else f"[red]{truth}")
    console.print(table)
    scores = [{r["post"]: r["score"] for r in d.rows("engagement")} for d in (second, third)]
    html = page(demo.runs, demo.saved, found["v2"], scores[0], scores[1])
    (demo.directory / "story.html").write_text(html)
    summary = Table.grid(padding=(0, 2))
    summary.add_row(
        "events", f"{demo.truth.count:,}, {demo.truth.since_launch():,} since the launch"
    )
    history = [r.event for r in read_history(JobDirectory.locate(demo.jobs, JOB).storage)]
    starts = [e.snapshot or "nothing" for e in history if isinstance(e, AttemptStarted)]
    taken = sum(isinstance(e, CheckpointStats) for e in history)
    summary.add_row("version 1 started from", ", then ".join(starts))
    summary.add_row("its checkpoints", f"{taken}")
    summary.add_row("savepoint", str(demo.savepoint))
    summary.add_row("job directories", str(demo.jobs))
    summary.add_row("the story as a page", str(demo.directory / "story.html"))
    turnback, jobs = Path(sys.executable).with_name("turnback"), demo.jobs
    with suppress(ValueError):  # as short as it can be, to be copied
        turnback, jobs = (path.relative_to(Path.cwd()) for path in (turnback, jobs))
    summary.add_row("the jobs in a browser", f"{turnback} --root {jobs} ui")
    console.print(summary)
    verdict = "[green]Nothing lost, nothing doubled." if right else "[red]The counts are wrong."
    console.print(f"\n{verdict}[/]")
    return right


def main() -> None:
    try:
        check_java()
    except ConfigurationError as e:
        console.print(f"[red]{e}[/red]")
        raise SystemExit(1) from None
    demo = Demo(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output").absolute())
    columns = ("{task.description:<32}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = [TextColumn(c) if isinstance(c, str) else c for c in columns]
    try:
        with Progress(*shown, console=console) as progress:
            second, third = tell(demo, progress)
        raise SystemExit(0 if report(demo, second, third) else 1)
    finally:
        demo.close()


if __name__ == "__main__":
    main()
