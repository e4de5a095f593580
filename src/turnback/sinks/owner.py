"""Which job a directory of files belongs to.

The owner is recorded in the directory itself, because jobs in different roots do not see each
other. A job is known by the place of its job directory: names and ids are copied with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from turnback.core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    SinkError,
    StorageError,
)
from turnback.core.ids import path_segment
from turnback.sinks.base import CommitterContext, name_sink
from turnback.sinks.staging import HIDDEN, SUFFIX
from turnback.storage.base import claim
from turnback.storage.envelope import seal, unseal
from turnback.storage.local import LocalStorage

_KIND, _FORMAT = "sink-owner", 1
_PATH = f"{HIDDEN}/.owner"
"""No job's directory beside it can have this name, and no reader of `*.json` takes it for data."""


class Owner(msgspec.Struct, frozen=True):
    """The job that a directory belongs to.

    Attributes:
        job: Its name.
        directory: Where its job directory is; this is what tells jobs apart.
    """

    job: str
    directory: str


class Ownership:
    """A job's right to write into a directory. Several sinks of one job share it.

    Args:
        root: The directory.
        ctx: The sink and its job; without a job directory nothing is claimed or checked.
    """

    def __init__(self, root: Path, ctx: CommitterContext) -> None:
        self._root, self._ctx = root, ctx
        self._name = name_sink(ctx.job, ctx.uid)
        self._storage = LocalStorage(root)

    def check_claim(self) -> None:
        """Make sure that `claim` may be called; writes nothing.

        Raises:
            ConfigurationError: The directory is another job's, and cannot be taken over.
            SinkError: It cannot be read.
        """
        owner = self._other()
        if owner is None:
            return
        if not self._ctx.take_over:
            raise self._refused(owner)
        self._refuse_unsettled(owner)

    def claim(self) -> None:
        """Make the directory this job's, if it is nobody's or is to be taken over.

        Raises:
            ConfigurationError: It is another job's; nothing was written.
            SinkError: It cannot be read or written.
        """
        self.check_claim()
        if self._ctx.take_over and self._other() is not None:
            with self._failures():
                self._storage.put(_PATH, self._data())
        self.check()

    def check(self) -> None:
        """Make sure that the directory is still this job's; what is nobody's becomes this job's.

        Raises:
            ConfigurationError: Another job has taken it over.
            SinkError: It cannot be read or written.
        """
        if self._ctx.job_directory is None:
            return
        owner = self._recorded()
        if owner is None:
            with self._failures(), suppress(AlreadyExistsError):
                claim(self._storage, _PATH, self._data())
            owner = self._recorded()
        if owner is not None and self._is_other(owner):
            raise self._refused(owner)

    def _other(self) -> Owner | None:
        """The other job that the directory belongs to, if it is another's."""
        owner = self._recorded() if self._ctx.job_directory is not None else None
        return owner if owner is not None and self._is_other(owner) else None

    def _is_other(self, owner: Owner) -> bool:
        return _place(owner.directory) != _place(self._ctx.job_directory or "")

    def _recorded(self) -> Owner | None:
        with self._failures():
            try:
                return self._decode(self._storage.get(_PATH))
            except NotFoundError:
                return None

    def _decode(self, data: bytes) -> Owner:
        path = self._root / _PATH
        try:
            _, body = unseal(_KIND, _FORMAT, data, str(path))
            return msgspec.json.decode(body, type=Owner)
        except (StorageError, msgspec.MsgspecError) as error:
            raise ConfigurationError(
                f"{self._name}: which job {self._root} belongs to cannot be read: {error}. Remove "
                f"{path} if you know that no other job writes there"
            ) from error

    def _data(self) -> bytes:
        owner = Owner(self._ctx.job, _place(self._ctx.job_directory or ""))
        return seal(_KIND, _FORMAT, msgspec.json.encode(owner))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            raise SinkError(f"{self._name}: cannot use {self._root}: {error}") from error

    def _refused(self, owner: Owner) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name}: {self._root} belongs to job {owner.job!r} in {owner.directory}, and "
            "two jobs must not write to one directory: readers would see the output of both. Give "
            f"this sink another path; or stop job {owner.job!r} and hand the directory over for "
            "good, with take_over_sinks=True (turnback run --take-over-sinks)"
        )

    def _refuse_unsettled(self, owner: Owner) -> None:
        """Hand nothing over while the owner has files there that a checkpoint may promise."""
        home = self._root / HIDDEN / path_segment(owner.job)
        mine = home / path_segment(self._ctx.job_id) if self._ctx.job_id else None
        with self._failures():
            staged = [p for p in home.rglob(f"*{SUFFIX}") if mine not in p.parents]
        if staged:
            raise ConfigurationError(
                f"{self._name}: {self._root} cannot be taken over from job {owner.job!r} in "
                f"{owner.directory} yet: it has {len(staged)} files there that are not published, "
                f"which would be lost. Stop it, and if they are still there run `turnback "
                f"transactions commit {owner.job}`; if that job is gone for good, remove {home}"
            )


def _place(directory: str) -> str:
    """A job directory's URI, the same by whatever links it was reached."""
    url = urlsplit(directory)
    if url.scheme != "file":
        return directory
    return Path(unquote(url.path)).resolve().as_uri()
