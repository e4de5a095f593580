"""Kafka to Turnback to Kafka and a Delta table, with kills in between. Everything really happens.

A broker is started, a producer sends likes, and `kafka_likes.py` counts them under a supervisor.
Its driver is killed with SIGKILL, three times. Then both outputs are read: the topic by a plain
consumer that reads committed records, the table by delta-rs. Every total of every post must be
there once, in order.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from deltalake import DeltaTable
from rich.console import Console
from rich.progress import Progress

try:
    from services.kafka import KafkaBroker, connector_jars, kafka_broker
except ImportError:
    sys.exit("start it with `make demo-kafka`, which knows where the scripts for servers are")
from turnback.job.directory import JobDirectory

HERE = Path(__file__).parent
LIKES, POSTS, KILLS = 60_000, 50, 3
LIMIT_S = 300
JOB = "kafka-likes"

console = Console()


class Job:
    """`kafka_likes.py` under a supervisor, which starts its driver again."""

    def __init__(self, directory: Path, servers: str, likes: str, totals: str) -> None:
        self.table = directory / "table"
        self.log = directory / "job.log"
        self._jobs = JobDirectory.locate(str(directory / "jobs"), JOB)
        self._turnback = [
            str(Path(sys.executable).with_name("turnback")), "--root", str(directory / "jobs"),
        ]  # fmt: skip
        topics = ["--likes", likes, "--totals", totals, "--table", str(self.table)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *self._turnback, "run", "-D", f"spark.jars={connector_jars()}",
                    str(HERE / "kafka_likes.py"), servers, *topics,
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def driver(self) -> int | None:
        """The process that runs the job now."""
        status = self._jobs.status()
        return None if status is None or status.process is None else status.process.pid

    def stop(self) -> None:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(
                [*self._turnback, "cancel", JOB], check=True, capture_output=True, timeout=60
            )
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            console.print(f"[red]The job has ended.[/red] The end of {self.log}:\n{tail}")
            raise SystemExit(1)


@contextmanager
def producing(broker: KafkaBroker, topic: str) -> Iterator[Counter[str]]:
    """Send likes all the while; gives how many each post has."""
    draw = random.Random(1)
    posts = [f"post-{draw.randrange(POSTS)}" for _ in range(LIKES)]

    def send() -> None:
        for start in range(0, LIKES, 500):
            part = posts[start : start + 500]
            broker.write(topic, [json.dumps({"post": post, "n": 1}) for post in part])
            time.sleep(0.5)

    thread = Thread(target=send)
    thread.start()
    try:
        yield Counter(posts)
    finally:
        thread.join()


def run(job: Job, broker: KafkaBroker, totals: str, progress: Progress) -> None:
    """Wait until readers see all totals, and kill the driver meanwhile."""
    task = progress.add_task("totals that readers of the topic see", total=LIKES)
    deadline, seen, kills, enough = time.monotonic() + LIMIT_S, 0, 0, 1
    while seen < LIKES:
        job.check_alive()
        if time.monotonic() > deadline:
            console.print(f"[red]Only {seen:,} of {LIKES:,} after {LIMIT_S} s; see {job.log}")
            raise SystemExit(1)
        time.sleep(0.5)
        seen = len(broker.read(totals))
        progress.update(task, completed=seen)
        driver = job.driver()
        if kills < KILLS and seen >= enough and driver is not None:
            with suppress(ProcessLookupError):
                os.kill(driver, signal.SIGKILL)
                kills, enough = kills + 1, seen + 1
                progress.console.print(f"driver {driver} killed with SIGKILL at {seen:,} totals")


def report(job: Job, broker: KafkaBroker, totals: str, truth: Counter[str]) -> bool:
    """Compare both outputs with the truth."""
    topic = defaultdict(list)
    for _, value in broker.read(totals):
        row = json.loads(value)
        topic[row["post"]].append(row["total"])
    table = defaultdict(list)
    for row in DeltaTable(str(job.table)).to_pyarrow_table().to_pylist():
        table[row["post"]].append(row["total"])
    wanted = {post: list(range(1, count + 1)) for post, count in truth.items()}
    in_topic = topic == wanted
    in_table = {post: sorted(found) for post, found in table.items()} == wanted
    uncommitted = len(broker.read(totals, committed=False))
    for what, right in (("the topic, read committed", in_topic), ("the Delta table", in_table)):
        verdict = "[green]every total once" if right else "[red]wrong"
        console.print(f"{what}: {verdict}")
    console.print(f"a reader that does not ask for committed records sees {uncommitted:,}")
    console.print(
        "\n[green]Nothing lost, nothing doubled." if in_topic and in_table else "\n[red]No."
    )
    return in_topic and in_table


def main() -> None:
    directory = HERE.parent / ".cache" / "demo-kafka"
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "kafka").mkdir(parents=True)
    console.print("starting a broker; the first time its jars are fetched")
    with kafka_broker(directory / "kafka") as broker, Progress(console=console) as progress:
        likes, totals = broker.create_topic(partitions=3), broker.create_topic()
        job = Job(directory, broker.servers, likes, totals)
        try:
            with producing(broker, likes) as truth:
                run(job, broker, totals, progress)
        finally:
            job.stop()
        progress.stop()
        raise SystemExit(not report(job, broker, totals, truth))


if __name__ == "__main__":
    main()
