"""Sinks for the conformance kit: one that is right, and for every promise one that breaks it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from turnback import IdempotentSink, StagedOutput, TwoPhaseCommitSink, WriteAheadSink
from turnback.core.errors import ConfigurationError
from turnback.testing import Promise


class JournalSink(TwoPhaseCommitSink[str]):
    """Prepared and visible files in a directory, `<uid>~<attempt>~<epoch>~<task>`; it is right."""

    transaction_type = str

    def __init__(self, path: Path, password: str = "hunter22") -> None:
        self.path, self.password = path, password
        self.rows: dict[str, list[Any]] = {}
        for name in ("prepared", "visible"):
            (path / name).mkdir(parents=True, exist_ok=True)

    def claim(self, ctx) -> None:
        self.check_claim(ctx)
        (self.path / "owner").write_text(f"{ctx.job} {ctx.job_directory}")

    def check_claim(self, ctx) -> None:
        owner = self.path / "owner"
        if owner.exists() and owner.read_text().split()[1] != ctx.job_directory:
            raise ConfigurationError(f"{self.path} belongs to job {owner.read_text()}")

    def begin(self, ctx) -> str:
        txn = f"{ctx.uid}~{ctx.attempt}~{ctx.epoch}~{ctx.partition}~{ctx.task_attempt_id}"
        self.rows[txn] = []
        return txn

    def write(self, txn, element) -> None:
        self.rows[txn].append(list(element))

    def pre_commit(self, txn) -> str:
        (self.path / "prepared" / txn).write_text(json.dumps(self.rows.pop(txn)))
        return txn

    def commit(self, txn) -> None:
        prepared, visible = self.path / "prepared" / txn, self.path / "visible" / txn
        if prepared.exists():
            prepared.rename(visible)
        elif not visible.exists():
            raise RuntimeError(f"{txn} is lost")

    def abort(self, txn) -> None:
        (self.path / "prepared" / txn).unlink(missing_ok=True)

    def dangling(self, ctx) -> Iterable[str]:
        names = sorted(path.name for path in (self.path / "prepared").iterdir())
        parts = [(name, name.split("~")) for name in names]
        return [n for n, (uid, at, *_) in parts if uid == ctx.uid and int(at) <= ctx.attempt]

    def read(self) -> list[Any]:
        paths = sorted((self.path / "visible").iterdir())
        return [row for path in paths for row in json.loads(path.read_text())]


class Unpicklable(JournalSink):
    def __reduce__(self):
        raise TypeError("cannot pickle a connection")


class Talkative(JournalSink):
    def describe(self):
        return {"kind": "journal", "url": f"journal://me:{self.password}@host"}


class Shared(JournalSink):
    def check_claim(self, ctx) -> None:
        return


class Padding(JournalSink):
    """Writes a line at the end of every epoch, also of an empty one."""

    def writer(self, ctx):
        writer = super().writer(ctx)
        prepare, path = writer.prepare, self.path / "visible"

        def padded():
            (path / f"end-{ctx.attempt}-{ctx.epoch}-{ctx.task_attempt_id}").write_text('[["end"]]')
            return prepare()

        writer.prepare = padded
        return writer


class Eager(JournalSink):
    def pre_commit(self, txn) -> str:
        (self.path / "visible" / txn).write_text(json.dumps(self.rows[txn]))
        return super().pre_commit(txn)


class Forgetful(JournalSink):
    """Loses the last element of every task that has several."""

    def pre_commit(self, txn) -> str:
        self.rows[txn] = self.rows[txn][:1]
        return super().pre_commit(txn)


class Appending(JournalSink):
    """Copies at every commit, and never looks whether it has done so."""

    def commit(self, txn) -> None:
        data = (self.path / "prepared" / txn).read_text()
        (self.path / "visible" / f"{txn}~{os.urandom(4).hex()}").write_text(data)


class InMemory(JournalSink):
    """Keeps prepared rows in a variable of the process."""

    kept: dict[str, list[Any]] = {}

    def pre_commit(self, txn) -> str:
        self.kept[txn] = self.rows.pop(txn)
        return txn

    def commit(self, txn) -> None:
        if not (self.path / "visible" / txn).exists():
            if txn not in self.kept:
                raise RuntimeError(f"{txn} is lost")
            (self.path / "visible" / txn).write_text(json.dumps(self.kept[txn]))

    def abort(self, txn) -> None:
        self.kept.pop(txn, None)


class OneEpochAtATime(JournalSink):
    """A committer that commits the newest epoch only."""

    def committer(self, ctx):
        committer = super().committer(ctx)
        commit = committer.commit
        committer.commit = lambda transactions: commit(transactions[-1:])
        return committer


class NeverRecovers(JournalSink):
    def recover_and_commit(self, txn) -> None:
        return


class CommitsStrays(JournalSink):
    def recover_and_abort(self, txn) -> None:
        self.commit(txn)


class NoAbort(JournalSink):
    """Shows what is aborted, as if it had been committed."""

    def abort(self, txn) -> None:
        if (self.path / "prepared" / txn).exists():
            self.commit(txn)

    def recover_and_abort(self, txn) -> None:
        super().abort(txn)


class AbortsOnce(JournalSink):
    def abort(self, txn) -> None:
        (self.path / "prepared" / txn).unlink()


class AllAttempts(JournalSink):
    """Commits whatever any attempt of the task has prepared."""

    def commit(self, txn) -> None:
        task = txn.rpartition("~")[0]
        for path in (self.path / "prepared").glob(f"{task}~*"):
            path.rename(self.path / "visible" / path.name)

    def dangling(self, ctx) -> Iterable[str]:
        return ()


class Silent(JournalSink):
    def commit(self, txn) -> None:
        if (self.path / "prepared" / txn).exists():
            super().commit(txn)


class ByTask(JournalSink):
    """Names transactions without the attempt, and takes a name that is there for done."""

    def begin(self, ctx) -> str:
        txn = f"{ctx.uid}~0~{ctx.epoch}~{ctx.partition}~0"
        self.rows[txn] = []
        return txn

    def commit(self, txn) -> None:
        if not (self.path / "visible" / txn).exists():
            super().commit(txn)


class Unfenced(JournalSink):
    """Rolls back what newer attempts have prepared."""

    def dangling(self, ctx) -> Iterable[str]:
        names = sorted(path.name for path in (self.path / "prepared").iterdir())
        return [name for name in names if name.split("~")[0] == ctx.uid]


class Careless(JournalSink):
    """Rolls back what other sinks of the job have prepared."""

    def dangling(self, ctx) -> Iterable[str]:
        names = sorted(path.name for path in (self.path / "prepared").iterdir())
        return [name for name in names if int(name.split("~")[1]) <= ctx.attempt]


class TwiceInOneAttempt(JournalSink):
    """Shows what an epoch prepared that is then run again by the same attempt."""

    def committer(self, ctx):
        committer = super().committer(ctx)
        committer.discard_others = lambda known: [
            self.commit(txn) for txn in self.dangling(ctx) if not known
        ]
        return committer


WRONG = {
    Unpicklable: Promise.PICKLED,
    Talkative: Promise.NO_SECRETS,
    Shared: Promise.OWNED,
    Padding: Promise.EMPTY,
    Eager: Promise.INVISIBLE,
    Forgetful: Promise.COMPLETE,
    Appending: Promise.COMMITTED_AGAIN,
    InMemory: Promise.OTHER_PROCESS,
    OneEpochAtATime: Promise.SEVERAL_EPOCHS,
    NeverRecovers: Promise.PENDING,
    CommitsStrays: Promise.ROLLED_BACK,
    NoAbort: Promise.ABORTED,
    AbortsOnce: Promise.ABORTED,
    AllAttempts: Promise.ONE_ATTEMPT,
    Silent: Promise.LOUD,
    TwiceInOneAttempt: Promise.REPLAYED,
    Unfenced: Promise.FENCED,
    ByTask: Promise.TURNED_BACK,
    Careless: Promise.OTHERS,
}


class EpochLedger(WriteAheadSink):
    """A file that is replaced as a whole: all rows, and the version; it is right."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"versions": {}, "rows": []}
        return json.loads(self.path.read_text())

    def published(self, ctx) -> int:
        return self.load()["versions"].get(ctx.uid, 0)

    def publish(self, ctx, output: StagedOutput) -> None:
        ledger = self.load()
        if ledger["versions"].get(ctx.uid, 0) >= output.version:
            return
        for batch in output.batches():
            ledger["rows"] += [list(row) for row in batch.rows]
        ledger["versions"][ctx.uid] = self.remembered(output)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(ledger))
        temporary.replace(self.path)

    def remembered(self, output: StagedOutput) -> int:
        return output.version

    def read(self) -> list[Any]:
        return self.load()["rows"]


class ByEpoch(EpochLedger):
    """Remembers the epoch alone, so that one which is run again looks published."""

    def published(self, ctx) -> int:
        epoch = self.load()["versions"].get(ctx.uid, 0)
        return ctx.attempt << 40 | epoch

    def remembered(self, output: StagedOutput) -> int:
        return output.epoch


class Amnesic(EpochLedger):
    def published(self, ctx) -> int:
        return 0


class BatchByBatch(EpochLedger):
    """Writes each batch by itself, and the version at the end."""

    def publish(self, ctx, output: StagedOutput) -> None:
        for batch in output.batches():
            ledger = self.load()
            ledger["rows"] += [list(row) for row in batch.rows]
            self.path.write_text(json.dumps(ledger))
        ledger["versions"][ctx.uid] = output.version
        self.path.write_text(json.dumps(ledger))


class Trusting(EpochLedger):
    """Does not compare again when it publishes."""

    def publish(self, ctx, output: StagedOutput) -> None:
        ledger = self.load()
        for batch in output.batches():
            ledger["rows"] += [list(row) for row in batch.rows]
        ledger["versions"][ctx.uid] = output.version
        self.path.write_text(json.dumps(ledger))


WRONG_WRITE_AHEAD = {
    ByEpoch: Promise.TURNED_BACK,
    Amnesic: Promise.COMMITTED_AGAIN,
    BatchByBatch: Promise.WHOLE,
    Trusting: Promise.PUBLISHED_ONCE,
}


class LatestFiles(IdempotentSink):
    """A file per key, that holds the version; it is right."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.waiting: list[tuple[Path, Any]] = []

    def write_batch(self, batch, ctx) -> None:
        for key, value in batch.rows:
            path = self.path / key
            if self.is_newer(path, ctx.version):
                path.write_text(json.dumps([ctx.version, [key, value]]))

    def is_newer(self, path: Path, version: int) -> bool:
        return not path.exists() or json.loads(path.read_text())[0] <= version

    def read(self) -> list[Any]:
        return [json.loads(path.read_text())[1] for path in sorted(self.path.iterdir())]


class Late(LatestFiles):
    def is_newer(self, path, version) -> bool:
        return True


class FirstStays(LatestFiles):
    def is_newer(self, path, version) -> bool:
        return not path.exists() or json.loads(path.read_text())[0] < version


class NoWayBack(LatestFiles):
    """Compares epochs without attempts."""

    def is_newer(self, path, version) -> bool:
        low = (1 << 40) - 1
        return not path.exists() or json.loads(path.read_text())[0] & low <= version & low


class NotFlushed(LatestFiles):
    def write_batch(self, batch, ctx) -> None:
        self.held = batch


class Counting(LatestFiles):
    """Adds a file for every write."""

    def write_batch(self, batch, ctx) -> None:
        for row in batch.rows:
            name = os.urandom(8).hex()
            (self.path / name).write_text(json.dumps([ctx.version, list(row)]))


WRONG_IDEMPOTENT = {
    Late: Promise.NEWER_STAYS,
    FirstStays: Promise.LAST_STAYS,
    NoWayBack: Promise.TURNED_BACK,
    NotFlushed: Promise.DURABLE,
    Counting: Promise.REPLAYED,
}
