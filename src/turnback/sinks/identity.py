"""Which sink of which job: what a directory or a table tells its writers apart by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from turnback.core.errors import ConfigurationError
from turnback.core.ids import path_segment, segment_name
from turnback.sinks.base import CommitterContext, WriterContext

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
