"""Sinks of your own, one on each template; examples/test_sinks.py checks them."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from turnback.errors import ConfigurationError
from turnback.sinks import IdempotentSink, StagedOutput, TwoPhaseCommitSink, WriteAheadSink
from turnback.sinks.base import attempt_of, require_known_attempt


class LatestScores(IdempotentSink):
    """The newest score of each player, in a table with a key, which belongs to one job."""

    def __init__(self, database: str) -> None:
        self.database = database
        with closing(sqlite3.connect(database)) as db:
            db.execute("create table if not exists latest (player primary key, score, version)")
            db.execute("create table if not exists owner (job, directory, id, attempt, nonce)")

    def check_target(self, ctx) -> None:
        with closing(sqlite3.connect(self.database, timeout=30)) as db:
            self.same_owner(db, ctx)

    def acquire_target(self, ctx) -> None:
        owner = (ctx.job, ctx.directory_id, ctx.job_id, ctx.attempt, ctx.nonce)
        with closing(sqlite3.connect(self.database, timeout=30)) as db, db:
            db.execute("begin immediate")
            if not self.same_owner(db, ctx):
                # Versions of two jobs do not tell which value is newer: this job's is.
                db.execute("update latest set version = 0")
            db.execute("delete from owner")
            db.execute("insert into owner values (?, ?, ?, ?, ?)", owner)

    def same_owner(self, db, ctx) -> bool:
        """Whether the table is this job's since before; refuses one that is another job's."""
        found = db.execute("select * from owner").fetchone()
        if found is None or ctx.take_over:
            return False
        job, directory, job_id, attempt, nonce = found
        if directory != ctx.directory_id:
            raise ConfigurationError(f"{self.database} belongs to job {job!r}")
        if job_id != ctx.job_id:
            return False  # it was started afresh
        require_known_attempt(ctx, attempt, nonce, self.database)
        return True

    def open(self, ctx) -> None:
        self.ctx = ctx
        self.scores = []

    def write_batch(self, batch, ctx) -> None:
        self.scores += [(player, score, ctx.version) for player, score in batch.rows]

    def flush(self) -> None:
        with closing(sqlite3.connect(self.database, timeout=30)) as db, db:
            db.execute("begin immediate")  # until its end nobody can take the table over
            job, *owner = db.execute("select job, directory, id from owner").fetchone()
            if owner != [self.ctx.directory_id, self.ctx.job_id]:
                raise ConfigurationError(f"job {job!r} has taken {self.database} over")
            # A task of an older attempt that comes late must not win: its version is smaller.
            db.executemany(
                "insert into latest values (?, ?, ?) on conflict (player) do update"
                " set score = excluded.score, version = excluded.version"
                " where excluded.version >= latest.version",
                self.scores,
            )


class ScoreLog(WriteAheadSink):
    """All scores, in a database that remembers how far it is."""

    def __init__(self, database: str) -> None:
        self.database = database
        with closing(sqlite3.connect(database)) as db:
            db.execute("create table if not exists scores (player, score)")
            db.execute("create table if not exists done (sink primary key, version, driver)")

    def open(self, ctx) -> None:
        # Not always the same thread commits.
        self.db = sqlite3.connect(self.database, timeout=30, check_same_thread=False)

    def published(self, ctx) -> int:
        found = self.db.execute(
            "select version, driver from done where sink = ?", (self.name(ctx),)
        ).fetchone()
        if found is None:
            return 0
        version, driver = found
        # A job directory restored from a backup counts the same versions again: that is no excuse
        # to take its output for published.
        require_known_attempt(ctx, attempt_of(version), driver, self.database)
        return version

    def publish(self, ctx, output: StagedOutput) -> None:
        with self.db:  # one transaction: the scores, and that they are there
            self.db.execute("begin immediate")
            if self.published(ctx) >= output.version:
                return  # by a driver that has replaced this one meanwhile
            for batch in output.batches():
                self.db.executemany("insert into scores values (?, ?)", batch.rows)
            self.db.execute(
                "insert or replace into done values (?, ?, ?)",
                (self.name(ctx), output.version, ctx.attempts.nonce_of(output.attempt)),
            )

    def name(self, ctx) -> str:
        # Without the directory, a copy of the job and the original would be one. Not by
        # `ctx.job_directory`: of what was staged before a move, this is the former place.
        return f"{ctx.directory_id} {ctx.job_id} {ctx.uid}"

    def close(self) -> None:
        self.db.close()


class ScoreFiles(TwoPhaseCommitSink[str]):
    """Files that appear as a whole: prepared in one directory, renamed into another."""

    transaction_type = str

    def __init__(self, directory: Path) -> None:
        self.prepared, self.visible = directory / "prepared", directory / "visible"
        self.lines: dict[str, list[str]] = {}
        for path in (self.prepared, self.visible):
            path.mkdir(parents=True, exist_ok=True)

    def begin(self, ctx) -> str:
        task = f"{ctx.attempt}.{ctx.epoch}.{ctx.partition}.{ctx.task_attempt_id}.{ctx.nonce}"
        # Without the directory, a copy of the job would roll back what the original has prepared.
        name = f"{ctx.directory_id}.{ctx.job_id}.{ctx.uid}.{task}"
        self.lines[name] = []
        return name

    def write(self, txn: str, element: Any) -> None:
        self.lines[txn].append(json.dumps(list(element)))

    def pre_commit(self, txn: str) -> str:
        with (self.prepared / txn).open("w") as file:
            file.write("\n".join(self.lines.pop(txn)))
            file.flush()
            os.fsync(file.fileno())
        return txn

    def commit(self, txn: str) -> None:
        if (self.prepared / txn).exists():
            (self.prepared / txn).rename(self.visible / txn)
        elif not (self.visible / txn).exists():
            raise RuntimeError(f"{txn} is lost")  # never return as if it were there

    def abort(self, txn: str) -> None:
        self.lines.pop(txn, None)
        (self.prepared / txn).unlink(missing_ok=True)

    def dangling(self, ctx) -> Iterable[str]:
        for path in self.prepared.glob(f"{ctx.directory_id}.{ctx.job_id}.{ctx.uid}.*"):
            attempt = int(path.name.split(".")[-5])
            if attempt <= ctx.attempt:  # a newer attempt may have replaced this one
                yield path.name
