"""One job, seen from outside: through its directory, whether or not it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.config.checkpointing import SavepointFormat, SavepointSettings
from turnback.config.options import SPARK_PREFIX
from turnback.core.clock import Clock, SystemClock
from turnback.core.masking import mask_arguments, mask_text, mask_value
from turnback.errors import (
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    JobNotRunningError,
    NotFoundError,
    StorageError,
)
from turnback.job.catalog import SavepointCatalog, SavepointEntry, SavepointReplay
from turnback.job.directory import JOB, JobDirectory, JobInfo
from turnback.job.liveness import Liveness, is_terminal, liveness_of
from turnback.job.request import RequestKind, RequestSpec, RequestState, outcome_of_ended_job
from turnback.job.requests import Requests
from turnback.job.status import JobProgram
from turnback.job.throughput import condense, read_throughput, width_at
from turnback.snapshot.find import find_snapshot
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef
from turnback.storage.base import Storage
from turnback.storage.locations import display_path, is_directory_of, last_segment
from turnback.views import model
from turnback.views.history import (
    AttemptLife,
    changed_files,
    checkpoint_history,
    grouped_failures,
    read_attempts,
)
from turnback.views.model import OperatorNode, View
from turnback.views.snapshots import savepoint_rows
from turnback.views.summary import UNREADABLE, Observation, observe, operators, state_names


class ThroughputPoint(View, frozen=True, kw_only=True):
    """What a job did in some seconds or minutes.

    Attributes:
        start_ms: When these begin, by the driver's clock.
        in_per_s: Elements that the sources gave in a second, on average.
        out_per_s: Elements that the sinks were given.
        lag: Records that the sources had not processed at the end; None if that was not known.
    """

    start_ms: int
    in_per_s: float
    out_per_s: float
    lag: int | None = None


class ThroughputHistory(View, frozen=True, kw_only=True):
    """How fast a job was, also before this attempt and before this driver.

    Elements that a restart has processed again are counted again.

    Attributes:
        step_ms: How long the time of each point is.
        points: Oldest first, without times in which the job did not run.
    """

    step_ms: int
    points: tuple[ThroughputPoint, ...] = ()


def throughput_history(
    storage: Storage, job_id: str, minutes: int, now_ms: int
) -> ThroughputHistory:
    """Return how fast a job was in the last minutes; raises as `read_throughput` does."""
    since = now_ms - minutes * 60_000
    step = width_at(minutes * 60_000 - 1)
    buckets = condense(read_throughput(storage, job_id), now_ms, step)
    points = tuple(
        ThroughputPoint(
            start_ms=each.start_ms,
            in_per_s=round(each.records_in * 1000 / each.span_ms, 2),
            out_per_s=round(each.records_out * 1000 / each.span_ms, 2),
            lag=each.lag,
        )
        for each in buckets
        if each.start_ms > since - step
    )
    return ThroughputHistory(step_ms=step, points=points)


ENDED = ("COMPLETED", "FAILED")
"""The states of a request that has its result."""
_SAVEPOINT_KEYS = (
    "state.savepoints.dir",
    "execution.checkpointing.savepoint-dir",
    "savepoints.on-stop",
    "savepoints.format",
)


class Job:
    """A job, for those who inspect and control it. Nothing is cached."""

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

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # -- how it is

    def info(self) -> JobInfo:
        """Return who the job is; `CorruptFileError` if its directory was copied or renamed."""
        info = self.directory.info()
        uri = self.directory.storage.uri
        if info is None:
            raise NotFoundError(f"{display_path(uri)} is not a job directory: it has no {JOB}")
        if info.job != self.name or not is_directory_of(last_segment(uri), info.job):
            raise CorruptFileError(
                f"{display_path(uri)} belongs to job {info.job!r}, whose directory has another "
                "name: it was copied or renamed. Rename it back, or remove it"
            )
        return info

    def observe(self) -> Observation:
        """Look how the job is; UNREADABLE if its files do not say."""
        info = None
        try:
            info = self.info()
            return observe(self.directory, info, self._clock.now_ms())
        except StorageError as error:
            summary = model.JobSummary(
                name=self.name,
                job_id=info.job_id if info is not None else None,
                directory=display_path(self.directory.storage.uri),
                state=UNREADABLE,
                problem=str(error),
            )
            return Observation(summary, None, Liveness(UNREADABLE))

    def summary(self) -> model.JobSummary:
        return self.observe().summary

    def liveness(self) -> Liveness:
        return liveness_of(self.directory.status(), self._clock.now_ms())

    def detail(self) -> model.JobDetail:
        seen = self.observe()
        summary = seen.summary
        metrics = seen.metrics
        if summary.state == UNREADABLE:
            return model.JobDetail(summary=summary)
        requests = tuple(row for row in self.requests() if row.state not in ENDED)
        try:
            program = self.directory.program()
        except (CorruptFileError, FormatVersionError) as error:
            return model.JobDetail(summary=summary, warnings=(str(error),), requests=requests)
        if program is None:
            return model.JobDetail(summary=summary, requests=requests)
        states = state_names(self.directory, summary.checkpoint)
        nodes = with_bottlenecks(operators(program, metrics, states))
        return model.JobDetail(
            summary=summary,
            operators=nodes,
            max_parallelism=program.max_parallelism,
            warnings=program.warnings,
            versions=program.versions,
            script=mask_arguments(program.script),  # older versions stored them as they were
            requests=requests,
            busy=metrics.busy,
            bottleneck=bottleneck(nodes),
        )

    def configuration(self) -> list[model.ConfigRow]:
        """Return the settings its newest attempt runs with, by key."""
        program = self.directory.program()
        settings = sorted(program.settings, key=lambda s: s.key) if program is not None else []
        return [
            model.ConfigRow(key=s.key, value=_shown(s.key, s.value), origin=s.origin)
            for s in settings
        ]

    # -- its past

    def checkpoints(self) -> model.CheckpointHistory:
        """Return the checkpoints it has taken and is taking."""
        status = self.directory.status()
        alive = liveness_of(status, self._clock.now_ms())
        return checkpoint_history(self.directory.storage, status if alive.has_live_driver else None)

    def throughput(self, minutes: int) -> ThroughputHistory:
        """Return how fast it was in the last minutes, as far as its drivers have counted."""
        job_id = self.info().job_id
        storage = self.directory.storage
        return throughput_history(storage, job_id, minutes, self._clock.now_ms())

    def retained(self) -> tuple[Manifest, ...]:
        """Return the checkpoints it can be started from, oldest first."""
        return CheckpointLog(self.directory.storage).scan().manifests

    def savepoints(self) -> list[model.SavepointRow]:
        """Return the savepoints it has taken, newest first."""
        entries = self.savepoint_entries()
        program = self.program()
        script = program.script if program is not None else ()
        replays = self._replays()
        return savepoint_rows(entries, self.name, script, self.options, replays)

    def savepoint_entries(self) -> list[SavepointEntry]:
        """Return what is recorded of them, oldest first, without looking whether they are there."""
        return SavepointCatalog(self.directory.storage).list()

    def attempts(self) -> list[AttemptLife]:
        return read_attempts(self.directory, self.directory.status())

    def failures(self) -> list[model.FailureRow]:
        """Return what went wrong with it, newest first; what is the same is one row."""
        status = self.directory.status()
        alive = liveness_of(status, self._clock.now_ms())
        rows: list[model.FailureRow] = []
        for attempt in reversed(read_attempts(self.directory, status)):
            failure = attempt.failure(alive)
            if failure is not None:
                rows.append(failure)
            rows += changed_files(attempt)
        return grouped_failures(rows)

    # -- requests

    def requests(self) -> list[model.RequestRow]:
        """Return what was requested of it, newest first; what ended long ago is forgotten."""
        rows = []
        for id_ in reversed(self._requests.ids()):
            with suppress(NotFoundError):  # forgotten a moment ago
                rows.append(self._request_row(id_))
        return rows

    def request(self, id: str) -> model.RequestRow:
        """Return one of the requests; `NotFoundError` if there is none of this id.

        One that its job has fulfilled by ending is completed, also if the driver died before it
        could write the result.
        """
        row = self._request_row(id)
        if row.state in ENDED:
            return row
        try:
            status = self.directory.status()
            if status is None or not status.state.is_terminal:
                return row
            request = self._requests.get(id)
            # The driver may have written the result since the row was read.
            if request is None or self._requests.result(id) is not None:
                return self._request_row(id)
            catalog = SavepointCatalog(self.directory.storage)
            outcome = outcome_of_ended_job(request, status.state, catalog)
        except (CorruptFileError, FormatVersionError):
            return row  # the summary reports that the job cannot be read
        if outcome.state is not RequestState.COMPLETED:
            return row
        path = display_path(outcome.path) if outcome.path is not None else None
        return msgspec.structs.replace(row, state=outcome.state.value, path=path)

    def submit(
        self,
        kind: RequestKind,
        *,
        target: str | None = None,
        savepoint: bool | None = None,
        drain: bool = False,
        format: SavepointFormat | None = None,
        label: str | None = None,
        note: str | None = None,
    ) -> model.RequestRow:
        """Submit a request to its driver; durable on return, done later. See `RequestSpec`.

        What is left out is as configured. If `savepoint` is, a stop takes one if the job is
        configured so, a target is given or it drains, a cancel only for a target.
        """
        self._require_driver()
        program = self.program()
        settings = _savepoint_settings(program)
        if drain and savepoint is False:
            raise ConfigurationError("draining requires a savepoint: take one, or do not drain")
        if savepoint is None and kind is not RequestKind.SAVEPOINT:
            on_stop = settings.on_stop and settings.directory is not None
            savepoint = target is not None or (kind is RequestKind.STOP and (on_stop or drain))
        spec = RequestSpec(
            kind,
            target=target,
            type=format or settings.format,
            label=label,
            note=note,
            savepoint=bool(savepoint),
            drain=drain,
        )
        return self._request_row(self._requests.submit(spec).id)

    def _request_row(self, id_: str) -> model.RequestRow:
        try:
            request = self._requests.get(id_)
            result = self._requests.result(id_)
        except ConfigurationError as error:
            raise NotFoundError(f"there is no request {id_!r}: {error}") from None
        except (CorruptFileError, FormatVersionError) as error:
            created_ms = _created_ms(id_)
            return model.RequestRow(
                id=id_, kind="unreadable", state="FAILED", created_ms=created_ms, error=str(error)
            )
        if request is None and result is None:
            raise NotFoundError(
                f"there is no request {id_}: it was never made, or it ended long ago and has "
                "been deleted"
            )
        progress = self._requests.progress(id_)
        state = "RUNNING" if progress is not None else "WAITING"
        path = result.path if result is not None else None
        row = model.RequestRow(
            id=id_,
            kind=request.kind.value if request is not None else "unreadable",
            state=result.state.value if result is not None else state,
            created_ms=request.created_ms if request is not None else _created_ms(id_),
            savepoint=request.takes_savepoint if request is not None else path is not None,
            ended_ms=result.ended_ms if result is not None else None,
            path=display_path(path) if path is not None else None,
            error=result.error if result is not None else None,
        )
        measured = msgspec.structs.asdict(progress) if progress is not None else {}
        return msgspec.structs.replace(row, **measured)

    def _require_driver(self) -> None:
        seen = self.observe()
        alive = seen.alive
        problem = seen.summary.problem
        if alive.state == UNREADABLE:
            raise JobNotRunningError(f"job {self.name!r} cannot take requests: {problem}")
        if alive.takes_requests:
            return
        if alive.driver is None:
            why = "has never had a driver"
        elif is_terminal(alive.state):
            why = f"is {alive.state}"
        else:
            process = alive.driver
            why = f"is {alive.state}: its driver (pid {process.pid} on {process.host}) died"
        raise JobNotRunningError(
            f"job {self.name!r} {why}, so it cannot process requests. Start it again with "
            "`turnback run`; it resumes from its latest checkpoint"
        )

    # -- snapshots

    def snapshot(self, text: str) -> Snapshot:
        """Return one of its checkpoints or savepoints, by name or time; a path is not followed."""
        return find_snapshot(text, StorageRef(self.directory.storage.uri, self.options))

    def _replays(self) -> Mapping[str, SavepointReplay]:
        try:
            return self.directory.replays().savepoints
        except StorageError:
            return {}  # it is not worth hiding the savepoints for

    def program(self) -> JobProgram | None:
        try:
            return self.directory.program()
        except (CorruptFileError, FormatVersionError):
            return None


def _savepoint_settings(program: JobProgram | None) -> SavepointSettings:
    """Read how a job takes savepoints; no other setting of it can keep it from being stopped."""
    settings = program.settings if program is not None else ()
    values = {s.key: s.value for s in settings if s.key in _SAVEPOINT_KEYS and s.value}
    return SavepointSettings.from_configuration(values)


def _shown(key: str, value: str) -> str:
    """A setting as it may be shown; older versions masked fewer of them."""
    return mask_value(key, value) if key.startswith(SPARK_PREFIX) else mask_text(value)


def _created_ms(request_id: str) -> int:
    digits = request_id.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


_IDLE = 0.05
"""Who works less than this share of the time holds nobody back."""


def bottleneck(nodes: Iterable[OperatorNode]) -> str | None:
    """Return the uid of the operator whose busiest task is the busiest of all; None if all rest."""
    busy = [(node.load.busiest, node.uid) for node in nodes if node.load is not None]
    busiest, uid = max(busy, default=(0.0, ""))
    return uid if busiest >= _IDLE else None


def with_bottlenecks(nodes: Collection[OperatorNode]) -> tuple[OperatorNode, ...]:
    """Tell of each source which of the operators that read from it is its bottleneck."""
    by_uid = {node.uid: node for node in nodes}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for input in node.inputs:
            readers[input].append(node.uid)

    def downstream(uid: str) -> set[str]:
        found = set[str]()
        waiting = [uid]
        while waiting:
            for reader in readers[waiting.pop()]:
                if reader not in found:
                    found.add(reader)
                    waiting.append(reader)
        return found

    return tuple(
        msgspec.structs.replace(
            node, bottleneck=bottleneck(by_uid[uid] for uid in downstream(node.uid))
        )
        if not node.inputs
        else node
        for node in nodes
    )
