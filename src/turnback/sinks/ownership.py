"""Who may write into a directory: the job that is recorded in it.

The owner is recorded in the directory itself, because jobs in different roots do not see each
other. A job is identified by where its job directory is: names and ids are copied with it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import msgspec

from turnback.core.ids import path_segment, segment_name
from turnback.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    StorageError,
    StorageNotSharedError,
)
from turnback.sinks.base import (
    CommitterContext,
    WriterContext,
    directory_digest,
    sink_errors,
    sink_label,
)
from turnback.storage.base import Storage, put_if_absent_or_same
from turnback.storage.envelope import decode_document, encode_document
from turnback.storage.locations import canonical_directory

HIDDEN = ".turnback"
"""What sinks keep in a directory that others read; no reader looks into hidden directories."""
_PLACE = "@"
"""Begins the name of a directory that stands for a job directory; no id of a job begins so."""


@dataclass(frozen=True)
class SinkIdentity:
    """One sink of one job. A copy of the job has another `directory_id`, a fresh start a `job_id`.

    `directory_id` is empty where the job directory is not known, and in what was written before
    targets were told.
    """

    job: str
    directory_id: str
    job_id: str
    uid: str

    @classmethod
    def of(cls, ctx: WriterContext | CommitterContext) -> SinkIdentity:
        return cls(ctx.job, ctx.directory_id, ctx.job_id, ctx.uid)

    def found_in(self, home: PurePosixPath) -> SinkIdentity | None:
        """Whose home it is; None if nobody's, or of a sink whose names are too long to be read."""
        for identity in (self, self.without_directory):
            if identity.home == home:
                return identity
        return self.parse(home)

    @classmethod
    def parse(cls, home: PurePosixPath) -> SinkIdentity | None:
        """Read what `home` has made; None if it is something else, or has too long names."""
        if len(home.parts) not in (4, 5):
            return None
        job, *place, job_id, uid = home.parts[1:]
        directory_id = "".join(place).removeprefix(_PLACE)
        try:
            found = cls(segment_name(job), directory_id, segment_name(job_id), segment_name(uid))
        except ConfigurationError:
            return None
        return found if found.home == home else None

    @property
    def without_directory(self) -> SinkIdentity:
        """The same sink in what was written before targets were told of job directories."""
        return replace(self, directory_id="")

    @property
    def home(self) -> PurePosixPath:
        """Where the sink keeps what nobody is to see yet, with one directory per attempt."""
        sink = PurePosixPath(path_segment(self.job_id), path_segment(self.uid))
        return job_home(self.job, self.directory_id) / sink

    @property
    def hashed(self) -> bytes:
        """What to hash where a name has to stand for the sink."""
        known = (self.directory_id,) if self.directory_id else ()
        return "\0".join((*known, self.job_id, self.uid)).encode()


def job_home(job: str, directory_id: str = "") -> PurePosixPath:
    """Where all sinks of a job keep such things; without a directory, of all jobs of that name."""
    home = PurePosixPath(HIDDEN, path_segment(job))
    return home / f"{_PLACE}{directory_id}" if directory_id else home


def homes_of(ctx: CommitterContext, paths: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """Of directories that may be homes of sinks, those of this job, under whatever uid and id.

    Homes without a job directory are this job's if the target is: callers have checked that.
    """
    if not ctx.directory_id:
        return {SinkIdentity.of(ctx).home} & set(paths)
    named = job_home(ctx.job)
    placed = job_home(ctx.job, ctx.directory_id)
    return {
        path
        for path in paths
        if path.parent.parent == placed
        or (path.parent.parent == named and not path.parent.name.startswith(_PLACE))
    }


SUFFIX = ".inprogress"
"""Ends the names of files that stand for output which is not published yet."""
_OWNER = "sink-owner"
_OWNER_FORMAT = 1
_OWNER_PATH = f"{HIDDEN}/.owner"
"""No job's directory beside it can have this name, and no reader of `*.json` takes it for data."""


class Owner(msgspec.Struct, frozen=True):
    """The job that a directory belongs to; jobs are told apart by their directories.

    `job_id` is empty if the job had none yet, or was recorded by an older version of Turnback.
    """

    job: str
    directory: str
    job_id: str = ""


_confirmed: set[tuple[str, str]] = set()


def require_shared_target(storage: Storage, place: str, ctx: WriterContext) -> None:
    """Check in a task that the driver has recorded the job in this directory; once per process.

    Without this, a task on a machine that has its own directory at the same path would write files
    there that the driver cannot publish. Nothing is checked if the context names no driver.
    """
    key = (storage.uri, ctx.nonce)
    if not ctx.nonce or not ctx.directory_id or key in _confirmed:
        return
    sink = sink_label(ctx.job, ctx.uid)
    owner = _read_owner(storage, place, sink)
    if owner is None or directory_digest(owner.directory) != ctx.directory_id:
        raise StorageNotSharedError(
            f"{sink}: {socket.gethostname()} does not share {place} with the driver: the directory "
            f"there does not belong to job {ctx.job!r}. Mount a shared file system at the same "
            "path on every machine, or write to an object store"
        )
    _confirmed.add(key)


def _read_owner(storage: Storage, place: str, sink: str) -> Owner | None:
    with sink_errors(f"{sink}: cannot use {place}", (OSError, StorageError)):
        try:
            data = storage.get(_OWNER_PATH)
        except NotFoundError:
            return None
    path = f"{place}/{_OWNER_PATH}"
    try:
        return decode_document(_OWNER, _OWNER_FORMAT, data, path, Owner)
    except StorageError as error:
        raise ConfigurationError(
            f"{sink}: cannot read which job owns {place}: {error}. Remove {path} if you are sure "
            "that no other job writes there"
        ) from error


class Ownership:
    """A job's right to write into a directory, which its sinks share.

    Without a job directory in the context nothing is claimed or checked. `place` is what messages
    call the directory.
    """

    def __init__(self, storage: Storage, place: str, ctx: CommitterContext) -> None:
        self._storage = storage
        self._place = place
        self._ctx = ctx
        self._name = sink_label(ctx.job, ctx.uid)

    def check_target(self) -> None:
        """Raise `ConfigurationError` if `acquire_target` would; writes nothing."""
        owner = self._other()
        if owner is None:
            return
        if not self._ctx.take_over:
            raise self._refused(owner)
        self._refuse_unsettled(owner)

    def acquire_target(self) -> None:
        """Make the directory this job's, if it has no owner or is to be taken over."""
        self.check_target()
        if self._ctx.job_directory is None:
            return
        owner = self._recorded()
        if owner is not None and self._is_to_be_replaced(owner):
            with self._using():
                self._storage.put(_OWNER_PATH, self._data())
        self.check()

    def _is_to_be_replaced(self, owner: Owner) -> bool:
        """Whether another job's directory is taken over, or this job was started afresh in it."""
        if self._is_other(owner):
            return self._ctx.take_over
        return owner.job_id != self._ctx.job_id

    def job_before(self) -> str:
        """The id of the job that the directory belongs to, if that is in this job directory."""
        owner = self._recorded() if self._ctx.job_directory is not None else None
        return owner.job_id if owner is not None and not self._is_other(owner) else ""

    def check(self) -> None:
        """Raise `ConfigurationError` if another job owns the directory; claim it if none does."""
        if self._ctx.job_directory is None:
            return
        owner = self._recorded()
        if owner is None:
            with self._using(), suppress(AlreadyExistsError):
                put_if_absent_or_same(self._storage, _OWNER_PATH, self._data())
            owner = self._recorded()
        if owner is not None and self._is_other(owner):
            raise self._refused(owner)

    def _other(self) -> Owner | None:
        owner = self._recorded() if self._ctx.job_directory is not None else None
        return owner if owner is not None and self._is_other(owner) else None

    def _is_other(self, owner: Owner) -> bool:
        return canonical_directory(owner.directory) != canonical_directory(
            self._ctx.job_directory or ""
        )

    def _recorded(self) -> Owner | None:
        return _read_owner(self._storage, self._place, self._name)

    @property
    def _owner_path(self) -> str:
        return f"{self._place}/{_OWNER_PATH}"

    def _data(self) -> bytes:
        directory = canonical_directory(self._ctx.job_directory or "")
        owner = Owner(self._ctx.job, directory, self._ctx.job_id)
        return encode_document(_OWNER, _OWNER_FORMAT, owner)

    def _using(self) -> AbstractContextManager[None]:
        return sink_errors(f"{self._name}: cannot use {self._place}", (OSError, StorageError))

    def _refused(self, owner: Owner) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name}: {self._place} belongs to job {owner.job!r} in {owner.directory}, and "
            "two jobs must not write to one directory: readers would see the output of both. "
            f"Give this sink another path; or stop job {owner.job!r} and take the directory over "
            "permanently with take_over_sinks=True (turnback run --take-over-sinks)"
        )

    def _refuse_unsettled(self, owner: Owner) -> None:
        """Hand nothing over while the owner has output for it that is not published."""
        promised = self._promised_by(owner)
        if promised:
            raise self._not_yet(
                owner,
                f"a checkpoint of that job has {promised} in-doubt transactions that are not "
                "committed and would be lost",
                "if that job no longer exists, drop them with `turnback transactions abort "
                f"{owner.job}`",
            )
        staged = self._staged_by(owner, nothing_promised=promised is not None)
        if staged:
            raise self._not_yet(
                owner,
                f"it has {len(staged)} unpublished files there, which would be lost",
                f"if that job no longer exists, remove {self._place}/{job_home(owner.job)}",
            )

    def _promised_by(self, owner: Owner) -> int | None:
        """How many transactions the owner has promised; None if that cannot be learned at all."""
        if self._ctx.other_jobs is None:
            return None
        try:
            return self._ctx.other_jobs.promised_by(owner.directory)
        except StorageError as error:
            raise ConfigurationError(
                f"{self._name}: {self._place} cannot be taken over from job {owner.job!r}, "
                "because it is unknown whether that job has in-doubt output for it: cannot read "
                f"{owner.directory}: {error}. Make it readable; if that job no longer exists, "
                f"remove {self._owner_path}"
            ) from error

    def _staged_by(self, owner: Owner, *, nothing_promised: bool) -> list[str]:
        """The files that stand for output of the owner.

        If it has promised nothing, those of this very job are left out: it was moved here, and what
        it has staged at its former place it may have promised itself.
        """
        theirs = replace(self._ctx, job=owner.job, job_directory=owner.directory)
        with self._using():
            found = [p for p in self._storage.list(str(job_home(owner.job))) if p.endswith(SUFFIX)]
        homes = {path: PurePosixPath(path).parent.parent for path in found}
        of_owner = homes_of(theirs, homes.values())
        own: set[PurePosixPath] = set()
        if nothing_promised and self._ctx.job_id:
            identity = SinkIdentity.of(theirs)
            own = {identity.home.parent, identity.without_directory.home.parent}
        return [p for p, home in homes.items() if home in of_owner and home.parent not in own]

    def _not_yet(self, owner: Owner, why: str, otherwise: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name}: {self._place} cannot be taken over from job {owner.job!r} in "
            f"{owner.directory} yet: {why}. Stop that job, and if they remain, run `turnback "
            f"transactions commit {owner.job}`; {otherwise}"
        )
