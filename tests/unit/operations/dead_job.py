"""A job with sinks that has died and left transactions behind."""

from __future__ import annotations

import json
from pathlib import Path

from fake_job import FakeJob, schema
from turnback.connectors.files.sink import FileSink
from turnback.driver.sinks import record_sinks
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.snapshot.find import resume_point
from turnback.state.files import StorageRef
from turnback.values.columns import Batch
from turnback.values.typeinfo import Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
STATE = (schema(), {"a": 1})


class Ledger(TwoPhaseCommitSink[str]):
    """Transactions are files in a directory: name.prepared, then name.committed."""

    transaction_type = str

    def __init__(self, root: Path, broken: bool = False) -> None:
        self.root, self.broken = root, broken
        root.mkdir(exist_ok=True)

    def begin(self, ctx):
        return f"{ctx.attempt}-{ctx.epoch}"

    def write(self, txn, element):
        pass

    def pre_commit(self, txn):
        (self.root / f"{txn}.prepared").touch()
        return txn

    def commit(self, txn):
        if self.broken:
            raise OSError("the ledger is closed")
        (self.root / f"{txn}.prepared").rename(self.root / f"{txn}.committed")

    def abort(self, txn):
        if self.broken:
            raise OSError("the ledger is closed")
        (self.root / f"{txn}.prepared").unlink(missing_ok=True)

    def dangling(self, ctx):
        return [path.stem for path in self.root.glob("*.prepared")]

    def names(self):
        return sorted(path.name for path in self.root.iterdir())


class Place:
    """A job with sinks, which dies after its second checkpoint."""

    def __init__(self, tmp_path: Path) -> None:
        self.out = tmp_path / "out"
        self.job = FakeJob(str(tmp_path / "jobs"))
        self.job.attempt()
        self.sinks = {"out": FileSink(self.out, "json")}
        self.log, self.directory = self.job.log, self.job.directory
        self.storage = StorageRef(self.directory.storage.uri)

    def record(self) -> None:
        record_sinks(self.directory, self.job.number, self.sinks)

    def write(self, epoch: int, uid: str = "out", **changes) -> bytes:
        ctx = WriterContext(
            job="likes", job_id=self.job.info.job_id, uid=uid, attempt=self.job.number,
            epoch=epoch, partition=0, task_attempt_id=changes.pop("task", 7), type=POSTS,
            storage=self.storage,
        )  # fmt: skip
        writer = self.sinks[uid].writer(ctx)
        writer.write(Batch(POSTS, [("a", epoch), ("b", epoch)]))
        return writer.prepare()

    def die(self) -> None:
        """Epoch 1 is committed, 2 is promised, 3 was never in a checkpoint."""
        self.record()
        ctx = self.context(self.job.number)
        committers = {uid: sink.committer(ctx(uid)) for uid, sink in self.sinks.items()}
        first = {uid: (self.write(1, uid),) for uid in self.sinks}
        self.log.record_commit(self.job.checkpoint(STATE, transactions=first).manifest.number)
        for uid, transactions in first.items():
            committers[uid].commit(transactions)
        promised = {uid: (self.write(2, uid),) for uid in self.sinks}
        self.promising = self.job.checkpoint(STATE, transactions=promised).manifest
        for uid in self.sinks:
            self.write(3, uid)

    def context(self, attempt):
        job_id, storage = self.job.info.job_id, self.storage
        return lambda uid: CommitterContext("likes", job_id, uid, attempt, storage=storage)

    def visible(self) -> list[int]:
        """The epochs that readers see."""
        lines = [
            json.loads(line) for f in self.out.glob("*.json") for line in f.read_text().splitlines()
        ]
        return sorted({line["n"] for line in lines})

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.out.rglob("*.inprogress"))

    def start_again(self) -> None:
        """What the next attempt does first."""
        point = resume_point(self.log, self.directory)
        manifest = point.manifest
        pending = manifest.transactions if manifest.number > self.log.committed() else {}
        attempt = self.job.attempt(checkpoint=manifest.number)
        for uid, sink in self.sinks.items():
            sink.committer(self.context(attempt)(uid)).recover(pending.get(uid, ()))
