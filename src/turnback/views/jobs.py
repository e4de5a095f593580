"""All jobs below a root directory, and finding one of them by what people type."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from urllib.parse import quote

from turnback.core.clock import Clock, SystemClock
from turnback.core.ids import check_job_name, path_segment, segment_name
from turnback.errors import (
    AmbiguousJobError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    JobNotFoundError,
    NotFoundError,
    StorageError,
)
from turnback.job.directory import JOB, JobDirectory, JobInfo, decode_info
from turnback.storage.locations import display_path, is_directory_of, last_segment
from turnback.storage.open import open_storage
from turnback.views.job import Job
from turnback.views.model import JobSummary, SavepointRow
from turnback.views.timeline import Timeline, timeline

_LOG = logging.getLogger(__name__)
_SHORTEST_ID = 4


class Jobs:
    """The jobs below a root, whether or not they run. Nothing is cached.

    Names of directories are not trusted: a job's name is what its `job.json` says, and has to be
    the name its directory is made from. Links in the root are not followed.
    """

    def __init__(
        self, root: str, options: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        if not isinstance(root, str):
            raise ConfigurationError(f"the root of all jobs must be a path or URI, got {root!r}")
        self.options = dict(options or {})
        self._storage = open_storage(root, self.options)
        self._clock = clock or SystemClock()
        self.root = display_path(self._storage.uri)

    def names(self) -> builtins.list[str]:
        """Return the names of the jobs, those of unreadable ones included."""
        return sorted(job.name for job in self.all())

    def all(self) -> builtins.list[Job]:
        jobs = (self._job_in(segment) for segment in self._storage.folders())
        return sorted((job for job in jobs if job is not None), key=lambda job: job.name)

    def list(self) -> builtins.list[JobSummary]:
        """Return how the jobs are, by name; one that cannot be read hides no other."""
        return [job.summary() for job in self.all()]

    def get(self, name: str) -> Job:
        """Return the job of exactly this name; `JobNotFoundError` if there is none."""
        try:
            job = self._by_name(check_job_name(name))
        except ConfigurationError as error:
            raise JobNotFoundError(f"job not found: {error}") from None
        if job is None:
            raise self._missing(name)
        return job

    def find(self, text: str, /, *, whole: bool = False) -> Job:
        """Return the job of this name, id, beginning of either, or path or URI of its directory.

        With `whole` a beginning is not enough: for what changes or ends a job, where a guess might
        hit the wrong one.
        """
        if not isinstance(text, str) or not text.strip():
            raise JobNotFoundError(
                f"{text!r} does not specify a job: use a name, an id, or a directory"
            )
        exact = self._by_name(text)
        if exact is not None:
            return exact
        return self._job_at(text) if "/" in text else self._by_prefix(text, whole)

    def find_directory(self, text: str, /, *, whole: bool = False) -> JobDirectory:
        return self.find(text, whole=whole).directory

    def savepoints(self) -> builtins.list[SavepointRow]:
        """Return the savepoints of all jobs, newest first by their clocks."""
        rows: builtins.list[SavepointRow] = []
        for job in self.all():
            try:
                rows.extend(job.savepoints())
            except StorageError as error:
                _LOG.warning(
                    "the savepoints of job %r are missing from the list: %s", job.name, error
                )
        return sorted(rows, key=lambda row: (row.created_ms, row.id), reverse=True)

    def timeline(self, job: Job) -> Timeline:
        """Return a job, the jobs it descends from and those that descend from it."""
        return timeline(job, self.all(), self._clock.now_ms())

    # -- internals

    def _by_name(self, name: str) -> Job | None:
        try:
            segment = path_segment(check_job_name(name))
        except ConfigurationError:
            return None
        # A link is no folder, and what it leads to is not ours to read.
        return self._job_in(segment) if segment in self._storage.folders() else None

    def _by_prefix(self, text: str, whole: bool) -> Job:
        jobs = self.all()
        ids = [(job, _id(job)) for job in jobs]
        for job, id_ in ids:
            if id_ == text:
                return job
        by_name = [job for job in jobs if job.name.startswith(text)]
        by_id = [j for j, id_ in ids if id_ and len(text) >= _SHORTEST_ID and id_.startswith(text)]
        for fitting in (by_name, by_id):
            if len(fitting) == 1 and not whole:
                return fitting[0]
            if len(fitting) == 1:
                raise JobNotFoundError(
                    f"there is no job {text!r} in {self.root}. If you mean {fitting[0].name!r}, "
                    "use its full name or id: commands that change a job do not accept a prefix"
                )
            if fitting:
                names = ", ".join(repr(job.name) for job in fitting)
                more = "the full" if whole else "a longer"
                raise AmbiguousJobError(f"{text!r} matches {names}: use {more} name")
        raise self._missing(text)

    def _job_in(self, segment: str) -> Job | None:
        """Return the job in a directory directly below the root, None if it is none."""
        name = _fallback_name(segment)
        try:
            info = self._read(segment)
            if info is not None and is_directory_of(segment, info.job):
                name = info.job
            elif info is None and "checkpoints" not in self._storage.folders(segment):
                return None
        except StorageError as error:
            _LOG.debug("%s/%s cannot be read: %s", self.root, segment, error)  # its summary says so
        inside = quote(segment) if self._storage.uri.startswith("file:") else segment
        storage = open_storage(f"{self._storage.uri.rstrip('/')}/{inside}", self.options)
        return Job(JobDirectory(storage, name, self._clock), self.options, self._clock)

    def _read(self, segment: str) -> JobInfo | None:
        try:
            data = self._storage.get(f"{segment}/{JOB}")
        except NotFoundError:
            return None
        return decode_info(data, f"{self._storage.uri}/{segment}/{JOB}")

    def _job_at(self, location: str) -> Job:
        """Return the job whose directory this is, wherever that is."""
        try:
            storage = open_storage(location.removesuffix(f"/{JOB}"), self.options)
            data = storage.get(JOB)
        except (NotFoundError, ConfigurationError) as error:
            raise JobNotFoundError(
                f"{location} is neither the name nor the directory of a job: {error}"
            ) from None
        segment = last_segment(storage.uri)
        try:
            name = decode_info(data, f"{storage.uri}/{JOB}").job
        except (CorruptFileError, FormatVersionError):
            name = segment  # its summary says that it cannot be read
        if not is_directory_of(segment, name):
            name = _fallback_name(segment)
        return Job(JobDirectory(storage, name, self._clock), self.options, self._clock)

    def _missing(self, text: str) -> JobNotFoundError:
        names = self.names()
        if not names:
            return JobNotFoundError(
                f"there is no job {text!r}: {self.root} contains no jobs. To look elsewhere, use "
                "--root, or set state.checkpoints.dir or the environment variable TURNBACK_ROOT"
            )
        folded = {name.casefold(): name for name in names}
        close = get_close_matches(text.casefold(), folded, 1)
        hint = f"available jobs: {', '.join(map(repr, names[:5]))}"
        if close:
            hint = f"did you mean {folded[close[0]]!r}?"
        elif len(names) > 5:
            hint += f" and {len(names) - 5} more"
        return JobNotFoundError(f"there is no job {text!r} in {self.root}: {hint}")


def _fallback_name(segment: str) -> str:
    """Return what to call a directory that does not say whose it is."""
    for name in (segment_name, check_job_name, path_segment):
        try:
            return check_job_name(name(segment))
        except ConfigurationError:
            continue
    return "?"


def _id(job: Job) -> str | None:
    try:
        return job.info().job_id
    except StorageError:
        return None
