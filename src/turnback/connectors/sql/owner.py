"""Which job a table belongs to, recorded beside it in `turnback_owners`."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import NamedTuple

from turnback.connectors.sql.database import (
    Database,
    TransactionId,
    mark_of,
    name_job_in_database,
    name_sink_in_database,
    name_without_directory,
)
from turnback.errors import ConfigurationError, SinkError, StorageError
from turnback.sinks.base import (
    CommitterContext,
    WriterContext,
    attempt_of,
    directory_digest,
    is_known_attempt,
    promised_version,
    require_known_attempt,
    require_promised,
    sink_label,
    version_of,
)
from turnback.storage.locations import canonical_directory


class Progress(NamedTuple):
    """The newest output that a table has of a sink, 0 if there is none, and the driver's nonce.

    Of rows in prepared transactions only the attempt in the version counts.
    """

    version: int = 0
    nonce: str = ""


class SinkProgress:
    """The record of one sink in `turnback_progress`.

    `before` is the job that the table belonged to until now, if it was in the same job directory.
    Only what looks at all sinks of the directory needs it.
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
        """Return what is recorded, and refuse it as `require_known_attempt` does."""
        done = self.read(hold=hold)
        require_known_attempt(self._ctx, attempt_of(done.version), done.nonce, self._where)
        return done

    def record(self, version: int) -> None:
        """Record, within the open transaction, that a version was published."""
        self._write(version, self._nonce_of(attempt_of(version)))

    def begin_attempt(self) -> None:
        """Record, before anything is committed, that this attempt does; raises as `known` does."""
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
        is_known = is_known_attempt(self._ctx, attempt_of(done.version), done.nonce)
        return is_known and promised_version(self._ctx, done.version) >= done.version

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


class _Owner(NamedTuple):
    job: str
    directory: str
    job_id: str


class TableOwner:
    """A job's right to write into a table, which its sinks share.

    Without a job directory in the context nothing is claimed or checked.
    """

    def __init__(self, database: Database, ctx: CommitterContext) -> None:
        self._database = database
        self._ctx = ctx
        self._table = database.helper("turnback_owners")

    def check_target(self) -> None:
        """Raise `ConfigurationError` if `acquire_target` would; writes nothing."""
        owner = self._other() if self._database.has_table("turnback_owners") else None
        if owner is None:
            return
        if not self._ctx.take_over:
            raise self._refused(owner)
        self._refuse_unsettled(owner)

    def acquire_target(self) -> None:
        """Make the table this job's, if it has no owner or is to be taken over."""
        if self._ctx.job_directory is None:
            return
        self.check_target()
        mine = _Owner(self._ctx.job, canonical_directory(self._ctx.job_directory), self._ctx.job_id)
        owner = recorded_owner(self._database)
        if owner is None:
            try:
                self._database.execute(
                    f"INSERT INTO {self._table} (target, job, directory, job_id) "
                    "VALUES (%s, %s, %s, %s)",
                    (self._database.target, *mine),
                )
            except SinkError:
                # Of two jobs that come at once, one has the row; `check` tells which.
                if recorded_owner(self._database) is None:
                    raise
        elif owner.directory == mine.directory:
            if owner != mine:
                self._replace(owner, mine)
        else:
            self._take_over(owner, mine)
        self.check()

    def _take_over(self, owner: _Owner, mine: _Owner) -> None:
        """Replace the owner, once it publishes nothing and has promised nothing."""
        self._database.begin()
        try:
            # Waits for what the owner is publishing; then it can publish nothing any more.
            self._replace(owner, mine)
            self._refuse_unsettled(owner)
        except BaseException:
            with suppress(SinkError):
                self._database.roll_back()
            raise
        self._database.commit()

    def _replace(self, owner: _Owner, mine: _Owner) -> None:
        # Only the owner that was seen: somebody else may have taken it meanwhile.
        self._database.execute(
            f"UPDATE {self._table} SET job = %s, directory = %s, job_id = %s "
            "WHERE target = %s AND directory = %s",
            (*mine, self._database.target, owner.directory),
        )

    def check(self, *, hold: bool = False) -> None:
        """Raise `ConfigurationError` if another job owns the table.

        With `hold` no job can take it over before the open transaction ends.
        """
        owner = self._other(hold=hold)
        if owner is not None:
            raise self._refused(owner)

    def job_before(self) -> str:
        """The id of the job that the table belongs to, if it is in this job directory."""
        if self._ctx.job_directory is None or not self._database.has_table("turnback_owners"):
            return ""
        owner = recorded_owner(self._database)
        here = canonical_directory(self._ctx.job_directory)
        return owner.job_id or "" if owner is not None and owner.directory == here else ""

    def owns_alone(self) -> bool:
        """Whether no other directory has a table here under this job's id, as a copy would."""
        if self._ctx.job_directory is None or not self._database.has_table("turnback_owners"):
            return False
        mine = canonical_directory(self._ctx.job_directory)
        owner = recorded_owner(self._database)
        others = self._database.query(
            f"SELECT 1 FROM {self._table} WHERE job_id = %s AND directory <> %s",
            (self._ctx.job_id, mine),
        )
        return owner is not None and owner.directory == mine and not others

    def _other(self, *, hold: bool = False) -> _Owner | None:
        if self._ctx.job_directory is None:
            return None
        owner = recorded_owner(self._database, hold=hold)
        if owner is None or owner.directory == canonical_directory(self._ctx.job_directory):
            return None
        return owner

    def _refused(self, owner: _Owner) -> ConfigurationError:
        return ConfigurationError(
            f"{sink_label(self._ctx.job, self._ctx.uid)}: table {self._database.target!r} in "
            f"{self._database.where} belongs to job {owner.job!r} in {owner.directory}, and two "
            "jobs must not write to one table: readers would see the output of both. Give this "
            f"sink another table; or stop job {owner.job!r} and take the table over permanently "
            "with take_over_sinks=True (turnback run --take-over-sinks)"
        )

    def _refuse_unsettled(self, owner: _Owner) -> None:
        """Hand nothing over while the owner has output that a checkpoint promises, or may."""
        left = [txn for txn in self._database.prepared() if _is_of(owner, txn)]
        if left:
            unsettled = self._unsettled(
                owner, f"it has {len(left)} prepared transactions in {self._database.where}"
            )
            # The command above looks for the job where it is recorded to be.
            raise ConfigurationError(
                f"{unsettled}. If its directory was moved, move it back first; if that job no "
                f"longer exists, roll them back in the database (the first is {left[0].name!r})"
            )
        if self._ctx.other_jobs is None:
            return
        try:
            promised = self._ctx.other_jobs.promised_by(owner.directory)
        except StorageError as error:
            raise ConfigurationError(
                f"{self._cannot(owner)}, because it is unknown whether that job has in-doubt "
                f"output, which would be lost: {error}. Make its directory readable; if that job "
                f"no longer exists, delete its row from {self._table}"
            ) from error
        if promised:
            raise self._unsettled(owner, f"it has {promised} in-doubt transactions")

    def _unsettled(self, owner: _Owner, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._cannot(owner)} yet: {reason}, which would be lost. Stop it, and if they are "
            f"still there run `turnback transactions commit {owner.job}`"
        )

    def _cannot(self, owner: _Owner) -> str:
        return (
            f"{sink_label(self._ctx.job, self._ctx.uid)}: table {self._database.target!r} cannot "
            f"be taken over from job {owner.job!r} in {owner.directory}"
        )


def recorded_owner(database: Database, *, hold: bool = False) -> _Owner | None:
    """The job that the table belongs to; with `hold` until the open transaction ends."""
    rows = database.query(
        f"SELECT job, directory, job_id FROM {database.helper('turnback_owners')} "
        f"WHERE target = %s{database.share_lock if hold else ''}",
        (database.target,),
    )
    return _Owner(*rows[0]) if rows else None


def check_owner_in_task(database: Database, ctx: WriterContext) -> None:
    """Refuse to prepare rows for a table that another job has taken over since."""
    owner = recorded_owner(database) if ctx.directory_id else None
    # What is recorded is canonical where the driver is; links may differ on this machine.
    if owner is None or _digest(owner.directory) == ctx.directory_id:
        return
    raise ConfigurationError(
        f"{sink_label(ctx.job, ctx.uid)}: table {database.target!r} in {database.where} was taken "
        f"over by job {owner.job!r} in {owner.directory}; stop this job"
    )


def _digest(directory: str) -> str:
    return hashlib.sha256(directory.encode()).hexdigest()[:12]


def _is_of(owner: _Owner, txn: TransactionId) -> bool:
    if txn.directory:
        return txn.directory in (directory_digest(owner.directory), _digest(owner.directory))
    name = name_without_directory(owner.job_id, "")
    return bool(owner.job_id) and txn.sink.rpartition(":")[0] == name.rpartition(":")[0]
