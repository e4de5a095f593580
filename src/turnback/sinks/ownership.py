"""Who may write into a directory: the job that is recorded in it.

The owner is recorded in the directory itself, because jobs in different roots do not see each
other. A job is identified by where its job directory is: names and ids are copied with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from turnback.core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    SinkError,
    StorageError,
)
from turnback.core.ids import path_segment
from turnback.sinks.base import CommitterContext, canonical_directory, name_sink
from turnback.storage.base import Storage, claim
from turnback.storage.envelope import seal, unseal

HIDDEN = ".turnback"
"""What sinks keep in a directory that others read; no reader looks into hidden directories."""
SUFFIX = ".inprogress"
"""Ends the names of files that stand for output which is not published yet."""
_OWNER, _OWNER_FORMAT = "sink-owner", 1
_OWNER_PATH = f"{HIDDEN}/.owner"
"""No job's directory beside it can have this name, and no reader of `*.json` takes it for data."""


class Owner(msgspec.Struct, frozen=True):
    """The job that a directory belongs to; jobs are told apart by their directories."""

    job: str
    directory: str


class Ownership:
    """A job's right to write into a directory, which its sinks share.

    Without a job directory in the context nothing is claimed or checked.

    Args:
        storage: The directory.
        place: What messages call it.
        ctx: Who wants to write there.
    """

    def __init__(self, storage: Storage, place: str, ctx: CommitterContext) -> None:
        self._storage, self._place, self._ctx = storage, place, ctx
        self._name = name_sink(ctx.job, ctx.uid)

    def check_claim(self) -> None:
        """Raise `ConfigurationError` if `claim` would; writes nothing."""
        owner = self._other()
        if owner is None:
            return
        if not self._ctx.take_over:
            raise self._refused(owner)
        self._refuse_unsettled(owner)

    def claim(self) -> None:
        """Make the directory this job's, if it has no owner or is to be taken over.

        Raises:
            ConfigurationError: It is another job's; nothing was written.
            SinkError: It cannot be read or written.
        """
        self.check_claim()
        if self._ctx.take_over and self._other() is not None:
            with self._failures():
                self._storage.put(_OWNER_PATH, self._data())
        self.check()

    def check(self) -> None:
        """Raise `ConfigurationError` if another job owns the directory; claim it if none does."""
        if self._ctx.job_directory is None:
            return
        owner = self._recorded()
        if owner is None:
            with self._failures(), suppress(AlreadyExistsError):
                claim(self._storage, _OWNER_PATH, self._data())
            owner = self._recorded()
        if owner is not None and self._is_other(owner):
            raise self._refused(owner)

    def _other(self) -> Owner | None:
        """The other job that owns the directory, if there is one."""
        owner = self._recorded() if self._ctx.job_directory is not None else None
        return owner if owner is not None and self._is_other(owner) else None

    def _is_other(self, owner: Owner) -> bool:
        return canonical_directory(owner.directory) != canonical_directory(
            self._ctx.job_directory or ""
        )

    def _recorded(self) -> Owner | None:
        with self._failures():
            try:
                data = self._storage.get(_OWNER_PATH)
            except NotFoundError:
                return None
        try:
            _, body = unseal(_OWNER, _OWNER_FORMAT, data, self._owner_path)
            return msgspec.json.decode(body, type=Owner)
        except (StorageError, msgspec.MsgspecError) as error:
            raise ConfigurationError(
                f"{self._name}: which job {self._place} belongs to cannot be read: {error}. Remove "
                f"{self._owner_path} if you know that no other job writes there"
            ) from error

    @property
    def _owner_path(self) -> str:
        return f"{self._place}/{_OWNER_PATH}"

    def _data(self) -> bytes:
        owner = Owner(self._ctx.job, canonical_directory(self._ctx.job_directory or ""))
        return seal(_OWNER, _OWNER_FORMAT, msgspec.json.encode(owner))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            raise SinkError(f"{self._name}: cannot use {self._place}: {error}") from error

    def _refused(self, owner: Owner) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name}: {self._place} belongs to job {owner.job!r} in {owner.directory}, and "
            "two jobs must not write to one directory: readers would see the output of both. Give "
            f"this sink another path; or stop job {owner.job!r} and hand the directory over for "
            "good, with take_over_sinks=True (turnback run --take-over-sinks)"
        )

    def _refuse_unsettled(self, owner: Owner) -> None:
        """Hand nothing over while the owner has files there that a checkpoint may promise."""
        home = f"{HIDDEN}/{path_segment(owner.job)}"
        mine = f"{home}/{path_segment(self._ctx.job_id)}/" if self._ctx.job_id else None
        with self._failures():
            staged = [
                path
                for path in self._storage.list(home)
                if path.endswith(SUFFIX) and not (mine and path.startswith(mine))
            ]
        if staged:
            raise ConfigurationError(
                f"{self._name}: {self._place} cannot be taken over from job {owner.job!r} in "
                f"{owner.directory} yet: it has {len(staged)} files there that are not published, "
                f"which would be lost. Stop it, and if they are still there run `turnback "
                f"transactions commit {owner.job}`; if that job is gone for good, remove "
                f"{self._place}/{home}"
            )
