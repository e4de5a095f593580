"""Which job a table belongs to, recorded beside it in `turnback_owners`."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import NamedTuple

from turnback.connectors.sql.database import Database, TransactionId, name_without_directory
from turnback.core.errors import ConfigurationError, SinkError, StorageError
from turnback.sinks.base import (
    CommitterContext,
    WriterContext,
    directory_digest,
    name_sink,
)
from turnback.storage.locations import canonical_directory


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

    def check_claim(self) -> None:
        """Raise `ConfigurationError` if `claim` would; writes nothing."""
        owner = self._other() if self._database.has_table("turnback_owners") else None
        if owner is None:
            return
        if not self._ctx.take_over:
            raise self._refused(owner)
        self._refuse_unsettled(owner)

    def claim(self) -> None:
        """Make the table this job's, if it has no owner or is to be taken over.

        Raises:
            ConfigurationError: It is another job's; nothing was written.
        """
        if self._ctx.job_directory is None:
            return
        self.check_claim()
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
        """The other job that owns the table, if there is one."""
        if self._ctx.job_directory is None:
            return None
        owner = recorded_owner(self._database, hold=hold)
        if owner is None or owner.directory == canonical_directory(self._ctx.job_directory):
            return None
        return owner

    def _refused(self, owner: _Owner) -> ConfigurationError:
        return ConfigurationError(
            f"{name_sink(self._ctx.job, self._ctx.uid)}: table {self._database.target!r} in "
            f"{self._database.where} belongs to job {owner.job!r} in {owner.directory}, and two "
            "jobs must not write to one table: readers would see the output of both. Give this "
            f"sink another table; or stop job {owner.job!r} and hand the table over for good, "
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
                f"{unsettled}. If its directory was moved, move it back for that; if that job is "
                "gone for good, roll them back in the database, the first of them is "
                f"{left[0].name!r}"
            )
        if self._ctx.other_jobs is None:
            return
        try:
            promised = self._ctx.other_jobs.promised_by(owner.directory)
        except StorageError as error:
            raise ConfigurationError(
                f"{self._cannot(owner)}: whether it has promised output, which would be lost, "
                f"cannot be read: {error}. Make its directory readable; if that job is gone for "
                f"good, delete its row from {self._table}"
            ) from error
        if promised:
            raise self._unsettled(owner, f"it has promised {promised} transactions")

    def _unsettled(self, owner: _Owner, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._cannot(owner)} yet: {reason}, which would be lost. Stop it, and if they are "
            f"still there run `turnback transactions commit {owner.job}`"
        )

    def _cannot(self, owner: _Owner) -> str:
        return (
            f"{name_sink(self._ctx.job, self._ctx.uid)}: table {self._database.target!r} cannot "
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
    """Refuse to prepare rows for a table that another job has taken over since.

    Raises:
        ConfigurationError: It is another job's.
    """
    owner = recorded_owner(database) if ctx.directory_id else None
    # What is recorded is canonical where the driver is; links may differ on this machine.
    if owner is None or _digest(owner.directory) == ctx.directory_id:
        return
    raise ConfigurationError(
        f"{name_sink(ctx.job, ctx.uid)}: table {database.target!r} in {database.where} was taken "
        f"over by job {owner.job!r} in {owner.directory}; stop this job"
    )


def _digest(directory: str) -> str:
    return hashlib.sha256(directory.encode()).hexdigest()[:12]


def _is_of(owner: _Owner, txn: TransactionId) -> bool:
    if txn.directory:
        return txn.directory in (directory_digest(owner.directory), _digest(owner.directory))
    name = name_without_directory(owner.job_id, "")
    return bool(owner.job_id) and txn.sink.rpartition(":")[0] == name.rpartition(":")[0]
