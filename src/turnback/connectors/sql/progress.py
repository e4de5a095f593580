"""What a table remembers of the job that writes to it: the last attempt, and its driver."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from turnback.connectors.sql.database import (
    Database,
    TransactionId,
    mark_of,
    name_job_in_database,
    name_sink_in_database,
    name_without_directory,
)
from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks.base import (
    CommitterContext,
    attempt_of,
    promised_version,
    require_known_attempt,
    require_promised,
    version_of,
)


class Progress(NamedTuple):
    """The newest output that a table has of a sink.

    Attributes:
        version: Attempt and epoch; 0 if there is none. Of rows in prepared transactions only the
            attempt counts.
        nonce: The driver of that attempt; empty if it is not known.
    """

    version: int = 0
    nonce: str = ""


class SinkProgress:
    """The record of one sink in `turnback_progress`.

    Args:
        database: A connection to the sink's table.
        ctx: Who commits.
        before: The job that the table belonged to until now, if it was in the same job directory;
            empty if there was none. Only what looks at all sinks of the directory needs it.
    """

    def __init__(self, database: Database, ctx: CommitterContext, before: str = "") -> None:
        self._database = database
        self._ctx = ctx
        # Without an id the directory has had no job, so what was there before was deleted.
        self._jobs = {ctx.job_id, before} - {""} if ctx.job_id else set()
        self._table = database.helper("turnback_progress")
        self._sink = name_sink_in_database(ctx.directory_id, ctx.job_id, ctx.uid)
        self._where = f"table {database.target!r} in {database.where}"

    def read(self, *, hold: bool = False) -> Progress:
        """Return what is recorded; with `hold` other drivers wait until the transaction ends.

        Only what is there can be held: see `create`.
        """
        before = name_without_directory(self._ctx.job_id, self._ctx.uid)
        rows = self._database.query(
            f"SELECT sink, version, nonce FROM {self._table} WHERE sink IN (%s, %s)"
            + (" FOR UPDATE" if hold else ""),
            (self._sink, before),
        )
        found = {sink: Progress(int(version), nonce or "") for sink, version, nonce in rows}
        return found.get(self._sink) or found.get(before) or Progress()

    def create(self) -> None:
        """Make sure that there is a record, before the transaction that is to hold it.

        What is not there cannot be locked, and two drivers would both be the first to write it.
        """
        if self._exists():
            return
        done = self.read()
        try:
            self._insert(done.version, done.nonce)
        except SinkError:
            # Of two drivers that come at once, one has created it.
            if not self._exists():
                raise

    def _exists(self) -> bool:
        return bool(
            self._database.query(f"SELECT 1 FROM {self._table} WHERE sink = %s", (self._sink,))
        )

    def known(self, *, hold: bool = False) -> Progress:
        """Return what is recorded, and refuse it if the job directory does not know of it.

        Raises:
            FencedError: A newer attempt of this job has written to the table.
            ConfigurationError: The job directory is older than the table.
        """
        done = self.read(hold=hold)
        require_known_attempt(self._ctx, attempt_of(done.version), done.nonce, self._where)
        return done

    def record(self, version: int) -> None:
        """Record, within the open transaction, that a version was published."""
        self._write(version, self._nonce_of(attempt_of(version)))

    def begin_attempt(self) -> None:
        """Record, before anything is committed, that this attempt commits.

        Raises:
            FencedError: A newer attempt of this job has written to the table.
            ConfigurationError: The job directory is older than the table.
        """
        self.create()
        self._database.begin()
        done = self.known(hold=True)
        if attempt_of(done.version) < self._ctx.attempt:
            self._write(version_of(self._ctx.attempt, 0), self._ctx.nonce)
        self._database.commit()

    def check_start(self, *, prepares: bool) -> None:
        """Refuse a table that has output, or prepared rows, of attempts nobody knows of.

        Whatever the sinks are called: a job directory that was restored from a backup may not know
        what they were called later. Prepared rows are looked for only if the sink prepares some:
        not everybody may list them.

        Raises:
            FencedError: A newer attempt of this job has written to the table.
            ConfigurationError: The job directory is older than the table.
        """
        if self._database.has_column("turnback_progress", "nonce"):
            self.known()
            for _, done in self._others():
                require_known_attempt(self._ctx, attempt_of(done.version), done.nonce, self._where)
                if done.version > version_of(attempt_of(done.version), 0):
                    require_promised(self._ctx, done.version, self._where)
        if prepares and self._database.has_table("turnback_commits"):
            for _, newest in self._newest_marked():
                require_promised(self._ctx, newest, self._where)
        for txn in self._prepared_by_job() if prepares else ():
            nonce = known_nonce(self._ctx, txn)
            if nonce != "":
                require_known_attempt(self._ctx, txn.attempt, nonce or "unknown", self._where)

    def take_over(self, *, prepares: bool) -> None:
        """Forget attempts that the job directory does not know of: the user goes on without them.

        What they have prepared is in no checkpoint that this job directory has.
        """
        done = self.read()
        if not self._is_acceptable(done):
            self._write(0, "")
        for sink, other in self._others():
            if not self._is_acceptable(other):
                self._update(sink, 0, "")
        if prepares:
            self._forget_markers()
        for txn in self._prepared_by_job() if prepares else ():
            if known_nonce(self._ctx, txn) is None:
                self._database.roll_back_prepared(txn)

    def _others(self) -> list[tuple[str, Progress]]:
        """What is recorded of all other sinks of the job directory, by their names."""
        found = []
        for job in self._job_names():
            rows = self._database.query(
                f"SELECT sink, version, nonce FROM {self._table} WHERE LEFT(sink, {len(job)}) = %s",
                (job,),
            )
            found += [(sink, Progress(int(version), nonce or "")) for sink, version, nonce in rows]
        return [(sink, done) for sink, done in found if sink != self._sink]

    def _job_names(self) -> list[str]:
        """What the names of all sinks of the job directory begin with."""
        directory = self._ctx.directory_id
        return [name_job_in_database(directory, job) for job in sorted(self._jobs) if directory]

    def _newest_marked(self) -> list[tuple[str, int]]:
        """What the markers of each sink and driver are called, and the newest version among them.

        Attempts that are not known are refused by what is recorded beside the table.
        """
        commits = self._database.helper("turnback_commits")
        newest = []
        for job in self._job_names():
            found = self._database.query(
                f"SELECT sink, max(version) FROM {commits} "
                f"WHERE LEFT(sink, {len(job)}) = %s GROUP BY sink",
                (job,),
            )
            for marker, version in found:
                nonce = self._nonce_of(attempt_of(version))
                if nonce and marker.endswith(f":{mark_of(nonce)}"):
                    newest.append((marker, int(version)))
        return newest

    def _forget_markers(self) -> None:
        """Remove markers of what no checkpoint of this job has promised."""
        for marker, newest in self._newest_marked():
            promised = promised_version(self._ctx, newest)
            if promised < newest:
                self._database.execute(
                    f"DELETE FROM {self._database.helper('turnback_commits')} "
                    "WHERE sink = %s AND version > %s",
                    (marker, promised),
                )

    def _is_acceptable(self, done: Progress) -> bool:
        """Whether the job directory knows of an attempt, and has promised what it has written."""
        return self._is_known(done) and promised_version(self._ctx, done.version) >= done.version

    def _is_known(self, done: Progress) -> bool:
        strict = replace(self._ctx, take_over=False)
        try:
            require_known_attempt(strict, attempt_of(done.version), done.nonce, self._where)
        except ConfigurationError:
            return False
        return True

    def _prepared_by_job(self) -> list[TransactionId]:
        jobs = tuple(self._job_names())
        return [txn for txn in self._database.prepared() if txn.sink.startswith(jobs)]

    def _nonce_of(self, attempt: int) -> str:
        if attempt == self._ctx.attempt:
            return self._ctx.nonce
        known = self._ctx.attempts.nonce_of(attempt) if self._ctx.attempts is not None else None
        return known or ""

    def _write(self, version: int, nonce: str) -> None:
        if not self._update(self._sink, version, nonce):
            self._insert(version, nonce)

    def _update(self, sink: str, version: int, nonce: str) -> int:
        return self._database.execute(
            f"UPDATE {self._table} SET version = %s, nonce = %s WHERE sink = %s",
            (version, nonce, sink),
        )

    def _insert(self, version: int, nonce: str) -> None:
        self._database.execute(
            f"INSERT INTO {self._table} (sink, version, nonce) VALUES (%s, %s, %s)",
            (self._sink, version, nonce),
        )


def known_nonce(ctx: CommitterContext, txn: TransactionId) -> str | None:
    """The nonce of the driver that prepared a transaction; None if the job directory has no such.

    Empty where it cannot be told.
    """
    if ctx.attempts is None or not txn.driver:
        return ""
    known = ctx.attempts.nonce_of(txn.attempt)
    return known if known is not None and mark_of(known) == txn.driver else None
