"""One job, seen from outside: through its directory, whether or not it runs."""

from __future__ import annotations

from collections.abc import Mapping

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.config.savepoints import SavepointFormat
from turnback.core.errors import (
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    JobNotRunningError,
    NotFoundError,
    StorageError,
)
from turnback.core.units import Clock, SystemClock
from turnback.inspect.history import (
    AttemptLife,
    checkpoint_history,
    failure_rows,
    read_attempts,
    under_way_rows,
    unrecorded,
)
from turnback.inspect.locations import is_directory_of, last_segment, shown
from turnback.inspect.model import (
    CheckpointHistory,
    ConfigRow,
    FailureRow,
    JobDetail,
    JobSummary,
    RequestRow,
    SavepointRow,
)
from turnback.inspect.requests import (
    ENDED,
    ended_row,
    request_format,
    request_kind,
    request_row,
    request_rows,
    savepoint_settings,
    takes_savepoint,
)
from turnback.inspect.snapshots import savepoint_rows
from turnback.inspect.summary import (
    UNREADABLE,
    Liveness,
    is_terminal,
    judge,
    operators,
    state_names,
    summarise,
    unreadable,
)
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JOB, JobDirectory, JobInfo
from turnback.job.history import read_history
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.job.status import JobProgram, Metrics
from turnback.snapshot.find import find_snapshot
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef


class Job:
    """A job, for those who look at it and ask something of it. What it shows is never cached."""

    def __init__(
        self,
        directory: JobDirectory,
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.directory = directory
        self.name = directory.name
        self.options = dict(options or {})
        self._clock = clock or SystemClock()
        self._requests = Requests(directory.storage, self._clock)

    # -- how it is

    def info(self) -> JobInfo:
        """Return who the job is.

        Raises:
            NotFoundError: There is no job in the directory.
            CorruptFileError: What the directory says of its job is damaged, or is of another job.
            FormatVersionError: It was written by a newer version.
        """
        found = self.directory.info()
        uri = self.directory.storage.uri
        if found is None:
            raise NotFoundError(f"{shown(uri)} is no job directory: it holds no {JOB}")
        if found.job != self.name or not is_directory_of(last_segment(uri), found.job):
            raise CorruptFileError(
                f"{shown(uri)} says that it belongs to the job {found.job!r}, whose directory has "
                "another name: it was copied or renamed. Give it its name again, or remove it"
            )
        return found

    def summary(self) -> JobSummary:
        """Return how the job is; UNREADABLE if its files do not say."""
        uri = self.directory.storage.uri
        try:
            info = self.info()
        except StorageError as error:
            return unreadable(self.name, uri, str(error))
        try:
            return summarise(self.directory, info, self._clock.now_ms())
        except StorageError as error:
            return unreadable(self.name, uri, str(error), info.job_id)

    def liveness(self) -> Liveness:
        """Return whether somebody runs the job.

        Raises:
            StorageError: Its status cannot be read.
        """
        return judge(self.directory.status(), self._clock.now_ms())

    def detail(self) -> JobDetail:
        summary = self.summary()
        if summary.state == UNREADABLE:
            return JobDetail(summary=summary)
        status = self.directory.status()
        metrics = status.metrics if status is not None else Metrics()
        requests = tuple(row for row in self.requests() if row.state not in ENDED)
        try:
            program = self.directory.program()
        except (CorruptFileError, FormatVersionError) as error:
            return JobDetail(summary=summary, warnings=(str(error),), requests=requests)
        if program is None:
            return JobDetail(summary=summary, requests=requests)
        return JobDetail(
            summary=summary,
            operators=operators(program, metrics, state_names(self.directory, summary.checkpoint)),
            max_parallelism=program.max_parallelism,
            warnings=program.warnings,
            versions=program.versions,
            script=program.script,
            requests=requests,
        )

    def configuration(self) -> list[ConfigRow]:
        """Return the settings its newest attempt runs with, by key."""
        program = self.directory.program()
        settings = sorted(program.settings, key=lambda s: s.key) if program is not None else []
        return [ConfigRow(key=s.key, value=s.value, origin=s.origin) for s in settings]

    # -- its past

    def checkpoints(self) -> CheckpointHistory:
        """Return the checkpoints it has taken and is taking."""
        storage = self.directory.storage
        status = self.directory.status()
        driven = judge(status, self._clock.now_ms()).is_driven
        log, records = CheckpointLog(storage), read_history(storage)
        return checkpoint_history(
            records,
            under_way=under_way_rows(status) if status is not None and driven else (),
            unrecorded=unrecorded(log, records),
            retained=set(log.numbers()),
            directory=shown(storage.uri),
        )

    def retained(self) -> tuple[Manifest, ...]:
        """Return the checkpoints it can be started from, oldest first.

        The history may not know the newest yet.
        """
        return CheckpointLog(self.directory.storage).scan().manifests

    def savepoints(self) -> list[SavepointRow]:
        """Return the savepoints it has taken, newest first."""
        entries, program = SavepointCatalog(self.directory.storage).list(), self._program()
        script = program.script if program is not None else ()
        return savepoint_rows(entries, self.name, script, self.options)

    def attempts(self) -> list[AttemptLife]:
        return read_attempts(self.directory, self.directory.status())

    def failures(self) -> list[FailureRow]:
        """Return what went wrong with it, newest first."""
        status = self.directory.status()
        alive = judge(status, self._clock.now_ms())
        return failure_rows(read_attempts(self.directory, status), alive)

    # -- asking

    def requests(self) -> list[RequestRow]:
        """Return what was asked of it, newest first; those that ended long ago are forgotten."""
        return request_rows(self._requests)

    def request(self, id: str) -> RequestRow:
        """Return one of the requests.

        One that its job has fulfilled by ending is done, also if the driver died before it could
        say so.

        Raises:
            NotFoundError: There is none of this id.
        """
        row = request_row(self._requests, id)
        if row.state in ENDED:
            return row
        try:
            status = self.directory.status()
            if status is None or not status.state.is_terminal:
                return row
            return ended_row(row, self._requests, status.state, self.directory.storage)
        except (CorruptFileError, FormatVersionError):
            return row  # what the job says of itself is another matter

    def ask(
        self,
        kind: RequestKind,
        *,
        target: str | None = None,
        savepoint: bool | None = None,
        drain: bool = False,
        format: SavepointFormat | None = None,
        label: str | None = None,
        note: str | None = None,
    ) -> RequestRow:
        """Ask something of its driver; durable on return, done later.

        Args:
            kind: What.
            target: Directory for the savepoint; the configured one if left out.
            savepoint: Whether to stop or cancel with a savepoint. If left out, a stop takes one
                if the job is configured so, a target is given or it drains, a cancel only for a
                target.
            drain: Whether to let event time run to its end before a stop.
            format: How the savepoint is written; as configured if left out.
            label: A short name for it.
            note: Why it is taken.

        Raises:
            JobNotRunningError: Nobody is there to do it.
            ConfigurationError: The arguments contradict each other, or the target is relative.
        """
        self._require_served()
        wanted = request_kind(kind)
        program = self._program()
        settings = savepoint_settings(program.settings if program is not None else ())
        spec = RequestSpec(
            wanted,
            target=target,
            type=request_format(format) or settings.format,
            label=label,
            note=note,
            savepoint=takes_savepoint(wanted, settings, target, savepoint, drain=drain),
            drain=drain,
        )
        request = self._requests.submit(spec)
        return request_row(self._requests, request.id)

    # -- its snapshots

    def snapshot(self, text: str) -> Snapshot:
        """Return one of its checkpoints or savepoints.

        Args:
            text: "latest"; a number or "chk-7"; the id or label of a savepoint; or a time, for the
                newest snapshot before it. Never a path.

        Raises:
            CheckpointNotFoundError: There is none.
            ConfigurationError: Several savepoints fit.
            CorruptFileError: It is damaged.
        """
        if not isinstance(text, str):
            raise ConfigurationError(f"{text!r} names no snapshot of job {self.name!r}")
        return find_snapshot(text, StorageRef(self.directory.storage.uri, self.options))

    # -- internals

    def _require_served(self) -> None:
        summary = self.summary()
        if summary.state == UNREADABLE:
            raise JobNotRunningError(f"job {self.name!r} cannot take requests: {summary.problem}")
        alive = self.liveness()
        if alive.is_served:
            return
        if alive.driver is None:
            why = "has never been run by a driver"
        elif is_terminal(alive.state):
            why = f"is {alive.state}"
        else:
            process = alive.driver
            why = f"is {alive.state}: its driver (pid {process.pid} on {process.host}) died"
        raise JobNotRunningError(
            f"job {self.name!r} {why}, so nobody is there to do it. Start it again with `turnback "
            "run`; it goes on from its latest checkpoint"
        )

    def _program(self) -> JobProgram | None:
        try:
            return self.directory.program()
        except (CorruptFileError, FormatVersionError):
            return None

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {self.directory.storage.uri!r})"
