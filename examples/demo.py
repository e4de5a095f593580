"""Run the social media job, kill it half-way with SIGKILL, start it again, compare with the truth.

The output is read back with nothing but `json`; only the summary asks Turnback what it recorded.
"""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from turnback.coordinator import AttemptStarted, CheckpointDone, JobDirectory, read_history
from turnback.core.errors import ConfigurationError
from turnback.runtime.spark.java import check_java

JOB = Path(__file__).with_name("social_media.py")
POSTS = ("cat video", "launch day", "recipe", "road trip", "sunset", "team photo", "unboxing")
FILES, EVENTS_PER_FILE = 24, 1_000
LIMIT_S = 300

console = Console()


class Demo:
    """A directory with the events, the job's directory and the dashboard's files."""

    def __init__(self, directory: Path) -> None:
        self.events = directory / "events"
        self.dashboard = directory / "dashboard"
        self.jobs = directory / "jobs"
        self.log = directory / "driver.log"
        shutil.rmtree(directory, ignore_errors=True)
        self.events.mkdir(parents=True)
        self.truth: Counter[tuple[str, str]] = Counter()

    def write_events(self) -> None:
        rng = random.Random(7)
        for number in range(FILES):
            events = [
                {"post": rng.choice(POSTS), "kind": rng.choices(("view", "click"), (4, 1))[0]}
                for _ in range(EVENTS_PER_FILE)
            ]
            self.truth.update((e["post"], e["kind"]) for e in events)
            text = "\n".join(json.dumps(e) for e in events)
            (self.events / f"{number:03d}.json").write_text(text)

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [sys.executable, str(JOB)]
            places = [str(self.events), str(self.dashboard), str(self.jobs)]
            return subprocess.Popen(command + places, stdout=log, stderr=log)

    def rows(self) -> list[dict[str, object]]:
        """What a reader of the dashboard sees: every committed row."""
        files = sorted(self.dashboard.glob("*.json"))
        return [json.loads(line) for f in files for line in f.read_text().splitlines()]

    def run(self, progress: Progress, task: object, until: int) -> bool:
        """Run a driver; kill it when this many rows are out. Returns whether it ended by itself."""
        driver, deadline = self.start(), time.monotonic() + LIMIT_S
        while driver.poll() is None:
            seen = len(self.rows())
            progress.update(task, completed=seen)  # type: ignore[arg-type]
            if seen >= until or time.monotonic() > deadline:
                driver.send_signal(signal.SIGKILL)
                driver.wait()
                return False
            time.sleep(0.2)
        progress.update(task, completed=len(self.rows()))  # type: ignore[arg-type]
        if driver.returncode:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            console.print(f"[red]The job failed.[/red] The end of {self.log}:\n{tail}", style="red")
            raise SystemExit(1)
        return True


def main() -> None:
    try:
        check_java()
    except ConfigurationError as e:
        console.print(f"[red]{e}[/red]")
        raise SystemExit(1) from None
    demo = Demo(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output").absolute())
    demo.write_events()
    total = FILES * EVENTS_PER_FILE
    console.print(
        f"{total:,} events about {len(POSTS)} posts in {FILES} files, one file an epoch\n"
    )
    columns = ("{task.description:<34}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = [TextColumn(c) if isinstance(c, str) else c for c in columns]
    with Progress(*shown, console=console) as progress:
        first = progress.add_task("first driver", total=total)
        ended = demo.run(progress, first, until=total // 2)
        if not ended:
            progress.update(first, description="first driver [red]killed with SIGKILL[/red]")
            progress.stop_task(first)
            second = progress.add_task("second driver, same command", total=total)
            demo.run(progress, second, until=10 * total)
    raise SystemExit(0 if report(demo, total) else 1)


def report(demo: Demo, total: int) -> bool:
    rows = demo.rows()
    newest: dict[str, tuple[int, int]] = {}
    for row in rows:
        counts = (int(str(row["views"])), int(str(row["clicks"])))
        newest[str(row["post"])] = max(newest.get(str(row["post"]), (0, 0)), counts)
    table = Table("post", title="Views and clicks per post")
    for heading in ("views", "true views", "clicks", "true clicks"):
        table.add_column(heading, justify="right")
    right = len(rows) == total
    for post in POSTS:
        truth = (demo.truth[post, "view"], demo.truth[post, "click"])
        got = newest.get(post, (0, 0))
        right = right and got == truth
        mark = "" if got == truth else "[red]"
        table.add_row(
            post, f"{mark}{got[0]:,}", f"{truth[0]:,}", f"{mark}{got[1]:,}", f"{truth[1]:,}"
        )
    console.print(table)
    directory = JobDirectory.locate(demo.jobs, "social-media")
    events = [record.event for record in read_history(directory.storage)]
    starts = [e.snapshot or "nothing" for e in events if isinstance(e, AttemptStarted)]
    taken = sum(isinstance(e, CheckpointDone) for e in events)
    summary = Table.grid(padding=(0, 2))
    summary.add_row("rows on the dashboard", f"{len(rows):,} for {total:,} events")
    summary.add_row("checkpoints recorded", f"{taken}")
    summary.add_row("drivers started from", ", then ".join(starts))
    summary.add_row("job directory", str(demo.jobs / "social-media"))
    console.print(summary)
    verdict = "[green]Nothing lost, nothing doubled." if right else "[red]The counts are wrong."
    console.print(f"\n{verdict}[/]")
    return right


if __name__ == "__main__":
    main()
