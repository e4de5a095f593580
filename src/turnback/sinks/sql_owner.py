"""Which job a table belongs to, recorded beside it in `turnback_owners`."""

from __future__ import annotations

from typing import NamedTuple

from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks.base import CommitterContext, canonical_directory, name_sink
from turnback.sinks.sql_database import Database, name_job_in_database


class _Owner(NamedTuple):
    job: str
    directory: str
    job_id: str


class TableOwner:
    """A job's right to write into a table, which its sinks share.

    Without a job directory in the context nothing is claimed or checked.
    """

    def __init__(self, database: Database, ctx: CommitterContext) -> None:
        self._database, self._ctx = database, ctx
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
        owner = self._recorded()
        target = self._database.target
        if owner is None:
            try:
                self._database.execute(
                    f"INSERT INTO {self._table} (target, job, directory, job_id) "
                    "VALUES (%s, %s, %s, %s)",
                    (target, *mine),
                )
            except SinkError:
                # Of two jobs that come at once, one has the row; `check` tells which.
                if self._recorded() is None:
                    raise
        elif owner != mine:
            # Only from the owner that was seen: somebody else may have taken it meanwhile.
            self._database.execute(
                f"UPDATE {self._table} SET job = %s, directory = %s, job_id = %s "
                "WHERE target = %s AND directory = %s",
                (*mine, target, owner.directory),
            )
        self.check()

    def check(self) -> None:
        """Raise `ConfigurationError` if another job owns the table."""
        owner = self._other()
        if owner is not None:
            raise self._refused(owner)

    def _other(self) -> _Owner | None:
        """The other job that owns the table, if there is one."""
        if self._ctx.job_directory is None:
            return None
        owner = self._recorded()
        if owner is None or owner.directory == canonical_directory(self._ctx.job_directory):
            return None
        return owner

    def _recorded(self) -> _Owner | None:
        rows = self._database.query(
            f"SELECT job, directory, job_id FROM {self._table} WHERE target = %s",
            (self._database.target,),
        )
        return _Owner(*rows[0]) if rows else None

    def _refused(self, owner: _Owner) -> ConfigurationError:
        return ConfigurationError(
            f"{name_sink(self._ctx.job, self._ctx.uid)}: table {self._database.target!r} in "
            f"{self._database.where} belongs to job {owner.job!r} in {owner.directory}, and two "
            "jobs must not write to one table: readers would see the output of both. Give this "
            f"sink another table; or stop job {owner.job!r} and hand the table over for good, "
            "with take_over_sinks=True (turnback run --take-over-sinks)"
        )

    def _refuse_unsettled(self, owner: _Owner) -> None:
        """Hand nothing over while the owner has transactions that a checkpoint may promise."""
        if not owner.job_id:
            return
        theirs = name_job_in_database(owner.job_id)
        left = [txn for txn in self._database.prepared() if txn.sink.startswith(theirs)]
        if left:
            raise ConfigurationError(
                f"{name_sink(self._ctx.job, self._ctx.uid)}: table {self._database.target!r} "
                f"cannot be taken over from job {owner.job!r} in {owner.directory} yet: it has "
                f"{len(left)} prepared transactions in {self._database.where}, which would be "
                f"lost. Stop it, and if they are still there run `turnback transactions commit "
                f"{owner.job}`"
            )
