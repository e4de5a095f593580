"""Sinks for the conformance kit: one that is right, and for every promise one that breaks it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from turnback.errors import ConfigurationError
from turnback.sinks import IdempotentSink, StagedOutput, TwoPhaseCommitSink, WriteAheadSink
from turnback.sinks.base import Sink, attempt_of, require_known_attempt
from turnback.testing import Promise


def write_durably(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(f"tmp-{os.urandom(4).hex()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def identity(ctx) -> str:
    return f"{ctx.directory_id}.{ctx.job_id}.{ctx.uid}"


class JournalSink(TwoPhaseCommitSink[str]):
    """Prepared and visible files, `<identity>~<attempt>~<epoch>~<task>~<driver>`; it is right."""

    transaction_type = str

    def __init__(self, path: Path, password: str = "hunter22") -> None:
        self.path, self.password = path, password
        self.rows: dict[str, list[Any]] = {}
        for name in ("prepared", "visible"):
            (path / name).mkdir(parents=True, exist_ok=True)

    def acquire_target(self, ctx) -> None:
        self.check_target(ctx)
        write_durably(self.path / "owner", f"{ctx.job} {ctx.job_directory}")
        self.me = ctx.job_directory

    def check_target(self, ctx) -> None:
        job, directory = self.owner() or (ctx.job, ctx.job_directory)
        if directory == ctx.job_directory:
            return
        if not ctx.take_over or ctx.other_jobs.promised_by(directory):
            raise ConfigurationError(f"{self.path} belongs to job {job} in {directory}")

    def owner(self) -> tuple[str, str] | None:
        path = self.path / "owner"
        return tuple(path.read_text().split()) if path.exists() else None

    def check_owner(self) -> None:
        if self.owner()[1] != self.me:
            raise ConfigurationError(f"{self.path} was taken over by {self.owner()}")

    def begin(self, ctx) -> str:
        task = f"{ctx.partition}~{ctx.task_attempt_id}~{ctx.nonce}"
        txn = f"{identity(ctx)}~{ctx.attempt}~{ctx.epoch}~{task}"
        self.rows[txn] = []
        return txn

    def write(self, txn, element) -> None:
        self.rows[txn].append(list(element))

    def pre_commit(self, txn) -> str:
        write_durably(self.path / "prepared" / txn, json.dumps(self.rows.pop(txn)))
        return txn

    def commit(self, txn) -> None:
        self.check_owner()
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
        mine = identity(ctx)
        return [n for n, (who, at, *_) in parts if who == mine and int(at) <= ctx.attempt]

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
    def check_target(self, ctx) -> None:
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
        task = "~".join(txn.split("~")[:-2])
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
        txn = f"{identity(ctx)}~0~{ctx.epoch}~{ctx.partition}~0"
        self.rows[txn] = []
        return txn

    def commit(self, txn) -> None:
        if not (self.path / "visible" / txn).exists():
            super().commit(txn)


class Unfenced(JournalSink):
    """Rolls back what newer attempts have prepared."""

    def dangling(self, ctx) -> Iterable[str]:
        names = sorted(path.name for path in (self.path / "prepared").iterdir())
        return [name for name in names if name.split("~")[0] == identity(ctx)]


class Careless(JournalSink):
    """Rolls back what other sinks of the job have prepared."""

    def dangling(self, ctx) -> Iterable[str]:
        mine = identity(ctx).rpartition(".")[0]
        names = sorted(path.name for path in (self.path / "prepared").glob(f"{mine}.*"))
        return [name for name in names if int(name.split("~")[1]) <= ctx.attempt]


class TwiceInOneAttempt(JournalSink):
    """Shows what an epoch prepared that is then run again by the same attempt."""

    def committer(self, ctx):
        committer = super().committer(ctx)
        committer.abort_orphans = lambda known: [
            self.commit(txn) for txn in self.dangling(ctx) if not known
        ]
        return committer


class SharedNames(JournalSink):
    """Names transactions without the attempt of the task."""

    def begin(self, ctx) -> str:
        txn = f"{identity(ctx)}~{ctx.attempt}~{ctx.epoch}~{ctx.partition}~0~{ctx.nonce}"
        self.rows[txn] = []
        return txn


class Jealous(JournalSink):
    """A task rolls back what other attempts of it have prepared."""

    def begin(self, ctx) -> str:
        task = f"{identity(ctx)}~{ctx.attempt}~{ctx.epoch}~{ctx.partition}"
        for path in (self.path / "prepared").glob(f"{task}~*"):
            path.unlink()
        return super().begin(ctx)


class TakesBack(JournalSink):
    """Aborts what the target has already."""

    def abort(self, txn) -> None:
        super().abort(txn)
        (self.path / "visible" / txn).unlink(missing_ok=True)


class Unowned(JournalSink):
    """Lets every job use it, and so has to tell jobs apart by what it names; it is right."""

    acquire_target = Sink.acquire_target
    check_target = Sink.check_target

    def check_owner(self) -> None:
        return


class AnyJob(Unowned):
    """Rolls back what other jobs have prepared under the same uid."""

    def dangling(self, ctx) -> Iterable[str]:
        names = sorted(path.name for path in (self.path / "prepared").iterdir())
        mine = [name for name in names if name.split("~")[0].endswith(f".{ctx.uid}")]
        return [name for name in mine if int(name.split("~")[1]) <= ctx.attempt]


class ByJobId(Unowned):
    """Takes a copy of the job for the job."""

    def dangling(self, ctx) -> Iterable[str]:
        names = sorted(path.name for path in (self.path / "prepared").iterdir())
        mine = [name for name in names if f".{ctx.job_id}.{ctx.uid}~" in name]
        return [name for name in mine if int(name.split("~")[1]) <= ctx.attempt]


class NotSynced(JournalSink):
    def pre_commit(self, txn) -> str:
        (self.path / "prepared" / txn).write_text(json.dumps(self.rows.pop(txn)))
        return txn


class FindsNothing(JournalSink):
    def dangling(self, ctx) -> Iterable[str]:
        return ()


class LetsFormerOwners(JournalSink):
    """Knows its owner, and does not ask again when it commits."""

    def check_owner(self) -> None:
        return


class HandsOver(JournalSink):
    """Lets itself be taken over, whatever its owner has promised."""

    def check_target(self, ctx) -> None:
        if not ctx.take_over:
            super().check_target(ctx)


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
    SharedNames: Promise.LATE_COPY,
    Jealous: Promise.LATE_COPY,
    TakesBack: Promise.KEPT,
    AnyJob: Promise.OTHER_JOBS,
    ByJobId: Promise.COPIED,
    NotSynced: Promise.SYNCED,
    FindsNothing: Promise.FOUND,
    LetsFormerOwners: Promise.TAKEN_OVER,
    HandsOver: Promise.PROMISED,
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
        version, driver = self.marker(ctx)
        require_known_attempt(ctx, attempt_of(version), driver, str(self.path))
        return version

    def marker(self, ctx) -> tuple[int, str]:
        return tuple(self.load()["versions"].get(self.name(ctx), (0, "")))

    def name(self, ctx) -> str:
        return identity(ctx)

    def publish(self, ctx, output: StagedOutput) -> None:
        ledger = self.load()
        if self.published(ctx) >= output.version:
            return
        for batch in output.batches():
            ledger["rows"] += [list(row) for row in batch.rows]
        driver = ctx.attempts.nonce_of(output.attempt)
        ledger["versions"][self.name(ctx)] = (self.remembered(output), driver)
        write_durably(self.path, json.dumps(ledger))

    def remembered(self, output: StagedOutput) -> int:
        return output.version

    def read(self) -> list[Any]:
        return self.load()["rows"]


class ByEpoch(EpochLedger):
    """Remembers the epoch alone, so that one which is run again looks published."""

    def published(self, ctx) -> int:
        return ctx.attempt << 40 | self.marker(ctx)[0]

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
        driver = ctx.attempts.nonce_of(output.attempt)
        ledger["versions"][self.name(ctx)] = (output.version, driver)
        self.path.write_text(json.dumps(ledger))


class Trusting(EpochLedger):
    """Does not compare again when it publishes."""

    def publish(self, ctx, output: StagedOutput) -> None:
        ledger = self.load()
        for batch in output.batches():
            ledger["rows"] += [list(row) for row in batch.rows]
        driver = ctx.attempts.nonce_of(output.attempt)
        ledger["versions"][self.name(ctx)] = (output.version, driver)
        self.path.write_text(json.dumps(ledger))


class OneMarker(EpochLedger):
    """Remembers one version for all jobs."""

    def published(self, ctx) -> int:
        return self.marker(ctx)[0]

    def name(self, ctx) -> str:
        return ctx.uid


class MarkerOfJobId(EpochLedger):
    """Takes a copy of the job for the job."""

    def published(self, ctx) -> int:
        return self.marker(ctx)[0]

    def name(self, ctx) -> str:
        return f"{ctx.job_id}.{ctx.uid}"


class ByPlace(EpochLedger):
    """Remembers its output by where the job is, not by where it was when it staged that."""

    def name(self, ctx) -> str:
        return f"{ctx.job_directory}.{ctx.job_id}.{ctx.uid}"


WRONG_WRITE_AHEAD = {
    ByEpoch: Promise.TURNED_BACK,
    Amnesic: Promise.COMMITTED_AGAIN,
    BatchByBatch: Promise.WHOLE,
    Trusting: Promise.PUBLISHED_ONCE,
    OneMarker: Promise.OTHER_JOBS,
    MarkerOfJobId: Promise.COPIED,
    ByPlace: Promise.MOVED,
}


class LatestFiles(IdempotentSink):
    """A file per key, that holds the version; it is right."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def write_batch(self, batch, ctx) -> None:
        for key, value in batch.rows:
            if self.is_newer(self.path / key, ctx):
                self.put(self.path / key, [self.job(ctx), ctx.version, [key, value]])

    def put(self, path: Path, content: list[Any]) -> None:
        write_durably(path, json.dumps(content))

    def job(self, ctx) -> str:
        return identity(ctx)

    def is_newer(self, path: Path, ctx) -> bool:
        if not path.exists():
            return True
        job, version, _ = json.loads(path.read_text())
        return job != self.job(ctx) or self.may_replace(version, ctx.version)

    def may_replace(self, version: int, by: int) -> bool:
        return version <= by

    def read(self) -> list[Any]:
        return [json.loads(path.read_text())[2] for path in sorted(self.path.iterdir())]


class OwnedFiles(LatestFiles):
    """It has one owner, who knows its drivers; it is right."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.note = path.with_name(f"{path.name}-owner")

    def owner(self) -> list[Any] | None:
        return json.loads(self.note.read_text()) if self.note.exists() else None

    def check_target(self, ctx) -> None:
        owner = self.owner()
        if owner is None:
            return
        job, directory, attempt, driver = owner
        if directory == ctx.directory_id:
            require_known_attempt(ctx, attempt, driver, str(self.path))
        elif not ctx.take_over:
            raise ConfigurationError(f"{self.path} belongs to job {job}")

    def acquire_target(self, ctx) -> None:
        self.check_target(ctx)
        self.put(self.note, [ctx.job, ctx.directory_id, ctx.attempt, ctx.nonce])

    def is_newer(self, path: Path, ctx) -> bool:
        return self.owner()[1] == ctx.directory_id and super().is_newer(path, ctx)


class Late(LatestFiles):
    def may_replace(self, version, by) -> bool:
        return True


class FirstStays(LatestFiles):
    def may_replace(self, version, by) -> bool:
        return version < by


class NoWayBack(LatestFiles):
    """Compares epochs without attempts."""

    def may_replace(self, version, by) -> bool:
        low = (1 << 40) - 1
        return version & low <= by & low


class NotFlushed(LatestFiles):
    def write_batch(self, batch, ctx) -> None:
        self.held = batch


class Counting(LatestFiles):
    """Adds a file for every write."""

    def write_batch(self, batch, ctx) -> None:
        for row in batch.rows:
            self.put(self.path / os.urandom(8).hex(), ["", ctx.version, list(row)])


class ComparesJobs(LatestFiles):
    """Compares versions of different jobs."""

    def job(self, ctx) -> str:
        return ""


class ComparesCopies(LatestFiles):
    """Compares versions of a job and its copy."""

    def job(self, ctx) -> str:
        return ctx.job_id


class LetsLateWritersIn(OwnedFiles):
    def is_newer(self, path: Path, ctx) -> bool:
        return LatestFiles.is_newer(self, path, ctx)


class TrustsAttempts(OwnedFiles):
    """Takes a restored job directory for the one that has written."""

    def check_target(self, ctx) -> None:
        owner = self.owner()
        if owner is not None and owner[1] != ctx.directory_id:
            super().check_target(ctx)


WRONG_IDEMPOTENT = {
    Late: Promise.NEWER_STAYS,
    FirstStays: Promise.LAST_STAYS,
    NoWayBack: Promise.TURNED_BACK,
    NotFlushed: Promise.DURABLE,
    Counting: Promise.REPLAYED,
    ComparesJobs: Promise.OTHER_JOBS,
    ComparesCopies: Promise.COPIED,
    LetsLateWritersIn: Promise.TAKEN_OVER,
    TrustsAttempts: Promise.RESTORED,
}
