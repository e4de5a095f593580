"""The job directory: the interface between a driver and everything that reads or controls a job.

job.json     who the job is; written once
attempts/    one record per attempt: what it started from, and how
programs/    the scripts of attempts, by digest
program.json what its newest attempt runs
status.json  how it is doing; rewritten by the driver, with a heartbeat
throughput.json  how many records it has processed lately and long ago
checkpoints/ the checkpoint log
state/, offsets/  files that checkpoints reference, below the attempt that wrote them
history/     events
alerts/      what somebody was told of, see `turnback.job.alerts`
restoring/   how far tasks are with restoring state, while they are
savepoints/  one record per savepoint the job took
ops/, sinks/ requests to the driver; scratch space of sinks
newest-request  the id of a request, which tells the driver that there is a new one
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from contextlib import suppress
from functools import cached_property
from os import PathLike, fspath
from urllib.parse import quote

import msgspec

from turnback.core.clock import Clock, SystemClock
from turnback.core.ids import check_job_name, path_segment
from turnback.errors import (
    UNDECODABLE,
    AlreadyExistsError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    JobInUseError,
    NotFoundError,
    StorageError,
)
from turnback.job.catalog import Replays
from turnback.job.run import ProcessId, StartedProgram
from turnback.job.status import FORMAT as STATUS_FORMAT
from turnback.job.status import JobProgram, JobState, Status, StatusUpdate
from turnback.storage.base import Storage, put_if_absent_or_same
from turnback.storage.envelope import decode_document, encode_document, read_document
from turnback.storage.open import open_storage

_LOG = logging.getLogger(__name__)
JOB = "job.json"
PROGRAM = "program.json"
STATUS = "status.json"
REPLAYS = "replays.json"
HEARTBEAT_S = 2.0
"""How often a driver has to call `heartbeat`."""
_WATCH_S = 7.0
_FORMAT = 1
_ATTEMPT = re.compile(r"attempts/([0-9]+)\.json")
_MAX_ATTEMPTS = 100


class JobInfo(msgspec.Struct, frozen=True):
    """Who a job is."""

    job: str
    job_id: str
    created_ms: int


class AttemptInfo(msgspec.Struct, frozen=True):
    """What an attempt started from.

    Attributes:
        checkpoint: Number of the job's own checkpoint it started from.
        snapshot: Where another snapshot it started from is, such as a savepoint.
        started: How its program was started, without the text of the script.
        abandoned: The job's own checkpoints whose promised output was rolled back because the
            attempt did not start from them.
        goes_on: Whether it goes on from a checkpoint in which event time had ended.
        commits_every_epoch: Whether sinks commit without a checkpoint; None in older records.
        start_id: Identifies the start that it belongs to, if whoever starts drivers gave it an id.
    """

    attempt: int
    started_ms: int
    process: ProcessId
    checkpoint: int | None = None
    snapshot: str | None = None
    started: StartedProgram | None = None
    abandoned: tuple[int, ...] = ()
    goes_on: bool = False
    commits_every_epoch: bool | None = None
    start_id: str | None = None


def _script_path(digest: str) -> str:
    return f"programs/{digest.rpartition(':')[2]}.py"


class JobDirectory:
    """One job's directory; `storage` is that directory itself."""

    def __init__(self, storage: Storage, name: str, clock: Clock | None = None) -> None:
        self.storage = storage
        self.name = check_job_name(name)
        self._clock = clock or SystemClock()
        self._owner = uuid.uuid4().hex
        self._status: Status | None = None
        self._status_lock = threading.RLock()

    @classmethod
    def locate(
        cls,
        root: str | PathLike[str],
        name: str,
        options: dict[str, str] | None = None,
        clock: Clock | None = None,
    ) -> JobDirectory:
        """Return the directory of a job below the root of all jobs."""
        base = fspath(root)
        segment = path_segment(check_job_name(name))
        if base.lower().startswith("file:"):
            # A file URI is decoded once more, which must not turn %2F back into a slash.
            segment = quote(segment, safe="~")
        return cls(open_storage(f"{base.rstrip('/')}/{segment}", options), name, clock)

    @cached_property
    def _process(self) -> ProcessId:
        return ProcessId.current()

    # -- identity

    def open(self) -> JobInfo:
        """Return who the job is, or make it a new one if the directory is empty.

        Raises as `check_owner` does.
        """
        info = self.check_owner()
        if info is None:
            info = JobInfo(self.name, uuid.uuid4().hex, self._clock.now_ms())
            try:
                put_if_absent_or_same(self.storage, JOB, _sealed("job", info))
            except AlreadyExistsError:
                return self.open()
        return info

    def check_owner(self) -> JobInfo | None:
        """Return who the job is, `None` if the directory is empty; writes nothing.

        Raises:
            ConfigurationError: The directory belongs to another job.
            StorageError: It holds checkpoints but no `job.json`, or cannot be read.
        """
        info = self.info()
        if info is None and self.storage.list("checkpoints"):
            info = self.info()  # a driver that starts at the same time writes this file first
            if info is None:
                raise StorageError(
                    f"{self.storage.uri} holds checkpoints but no {JOB}: it is incomplete. "
                    "Restore the file, or give the job another name"
                )
        if info is not None and info.job != self.name:
            raise ConfigurationError(
                f"{self.storage.uri} belongs to job {info.job!r}, not to {self.name!r}: give "
                "each job its own directory"
            )
        return info

    def renew(self) -> JobInfo:
        """Start the job afresh: it becomes a new one of the same name, with its own lineage.

        Its older checkpoints stay until retention drops them; nothing resumes from them by itself.
        """
        info = JobInfo(self.name, uuid.uuid4().hex, self._clock.now_ms())
        self.open()
        self.storage.put(JOB, _sealed("job", info))
        return info

    def info(self) -> JobInfo | None:
        """Return who the job is, `None` if it does not exist yet."""
        return read_document(self.storage, "job", _FORMAT, JOB, JobInfo)

    # -- attempts

    def record_attempt(
        self,
        attempt: int,
        *,
        checkpoint: int | None = None,
        snapshot: str | None = None,
        started: StartedProgram | None = None,
        abandoned: tuple[int, ...] = (),
        goes_on: bool = False,
        commits_every_epoch: bool | None = None,
        start_id: str | None = None,
    ) -> None:
        """Record what an attempt starts from; those of very old ones are dropped if not needed."""
        if started is not None and started.text is not None and started.digest is not None:
            with suppress(AlreadyExistsError):
                path = _script_path(started.digest)
                self.storage.put_if_absent(path, started.text.encode())
            started = msgspec.structs.replace(started, text=None)
        now_ms = self._clock.now_ms()
        info = AttemptInfo(
            attempt,
            now_ms,
            self._process,
            checkpoint,
            snapshot,
            started,
            abandoned=abandoned,
            goes_on=goes_on,
            commits_every_epoch=commits_every_epoch,
            start_id=start_id,
        )
        self.storage.put(f"attempts/{attempt}.json", _sealed("attempt", info))
        self._drop_old_attempts()

    def _drop_old_attempts(self) -> None:
        """Drop old records, but not those of checkpoints that were given up and are still there.

        A start from one of these is refused, unless a later attempt has started from it.
        """
        old = self.attempts()[:-_MAX_ATTEMPTS]
        checkpoints = set(self.storage.list("checkpoints")) if old else set()
        given_up: set[int] = set()
        for number in old:
            try:
                info = self.attempt(number)
            except (CorruptFileError, FormatVersionError):
                continue  # what it has given up is not known
            if info is None:
                continue
            there = {n for n in info.abandoned if f"checkpoints/chk-{n}.json" in checkpoints}
            given_up |= there
            if not there and info.checkpoint not in given_up:
                self.storage.delete(f"attempts/{number}.json")

    def attempt(self, number: int) -> AttemptInfo | None:
        """Return what an attempt started from, `None` if that is not recorded."""
        path = f"attempts/{number}.json"
        return read_document(self.storage, "attempt", _FORMAT, path, AttemptInfo)

    def started(self, attempt: int) -> StartedProgram | None:
        """Return how the program of an attempt was started, None if that is not recorded."""
        try:
            info = self.attempt(attempt)
        except (CorruptFileError, FormatVersionError) as error:
            _LOG.warning("cannot read how attempt %d was started: %s", attempt, error)
            return None
        started = None if info is None else info.started
        if started is None or started.digest is None:
            return started
        try:
            text = self.storage.get(_script_path(started.digest)).decode("utf-8", "replace")
        except NotFoundError:
            return started
        return msgspec.structs.replace(started, text=text)

    def has_started(self, start_id: str) -> bool:
        """Whether an attempt of the start with this id has begun."""
        infos = map(self.attempt, reversed(self.attempts()))
        return any(info is not None and info.start_id == start_id for info in infos)

    def attempts(self) -> list[int]:
        matches = map(_ATTEMPT.fullmatch, self.storage.list("attempts"))
        return sorted(int(match[1]) for match in matches if match)

    def record_program(self, program: JobProgram) -> None:
        self.storage.put(PROGRAM, _sealed("program", program))

    def program(self) -> JobProgram | None:
        return read_document(self.storage, "program", _FORMAT, PROGRAM, JobProgram)

    def record_replays(self, replays: Replays) -> None:
        self.storage.put(REPLAYS, _sealed("replays", replays))

    def replays(self) -> Replays:
        """Return how long savepoints can be replayed, as far as a driver has found out."""
        found = read_document(self.storage, "replays", _FORMAT, REPLAYS, Replays)
        return found if found is not None else Replays()

    @staticmethod
    def sink_path(uid: str) -> str:
        """Where a sink may put files, relative to the job directory."""
        return f"sinks/{path_segment(uid)}"

    # -- status

    def status(self) -> Status | None:
        try:
            data = self.storage.get(STATUS)
        except NotFoundError:
            return None
        name = f"{self.storage.uri}/{STATUS}"
        try:
            version = msgspec.json.decode(data).get("format")
            if version != STATUS_FORMAT:
                raise FormatVersionError(
                    f"{name} has format version {version}, but this version of Turnback "
                    f"reads {STATUS_FORMAT}"
                )
            return msgspec.json.decode(data, type=Status)
        except (*UNDECODABLE, AttributeError) as error:
            raise CorruptFileError(
                f"{name} is damaged: {error}. If no driver runs this job, delete the file"
            ) from error

    def write_status(
        self, state: JobState, job_id: str, update: StatusUpdate | None = None
    ) -> Status:
        """Write the status, as the driver of the job. Thread-safe.

        A driver that a newer attempt has replaced writes nothing any more.
        """
        with self._status_lock:
            first = self._status is None
            now = self._clock.now_ms()
            status = self._status or Status(
                job=self.name,
                job_id=job_id,
                state=state,
                process=self._process,
                owner=self._owner,
                heartbeat=0,
                updated_ms=now,
            )
            status = msgspec.structs.replace(
                status if update is None else update.apply(status),
                state=state,
                job_id=job_id,
                heartbeat=status.heartbeat + 1,
                updated_ms=now,
            )
            self._status = status
            if first or not self._is_replaced(status):
                self.storage.put(STATUS, msgspec.json.encode(status))
            return status

    def heartbeat(self, update: StatusUpdate | None = None) -> None:
        """Show that the driver lives, every `HEARTBEAT_S` seconds; only after `write_status`.

        A heartbeat that the storage refuses is left out: fencing protects the job, not this.
        """
        with self._status_lock:
            if self._status is None or self._status.state.is_terminal:
                return
            try:
                self.write_status(self._status.state, self._status.job_id, update)
            except StorageError as error:
                _LOG.warning("job %r: a heartbeat was missed: %s", self.name, error)

    def _is_replaced(self, mine: Status) -> bool:
        there = self.status()
        if there is None or there.owner == self._owner:
            return False
        return (there.attempt or 0) > (mine.attempt or 0)

    def in_use(self) -> Status | None:
        """Return the status of another live driver of this job, if there is one.

        A driver on this machine is looked up among its processes. Of one elsewhere the heartbeat
        is watched for a few seconds. Clocks are never compared.
        """
        seen = self.status()
        if seen is None or seen.state.is_terminal or seen.owner == self._owner:
            return None
        if seen.process.is_local() and seen.process != self._process:
            return seen if seen.process.is_alive() else None
        waited = 0.0
        while waited < _WATCH_S:
            self._clock.sleep(0.5)
            waited += 0.5
            now = self.status()
            if now is None or now.state.is_terminal:
                return None
            if (now.owner, now.heartbeat) != (seen.owner, seen.heartbeat):
                return now
        return None

    def require_free(self) -> None:
        """Raise `JobInUseError` if another live driver runs this job."""
        other = self.in_use()
        if other is not None:
            process = other.process
            raise JobInUseError(
                f"job {self.name!r} is already {other.state.value} as pid {process.pid} on "
                f"{process.host} (attempt {other.attempt}): stop that driver first, or give this "
                "job another name"
            )


def decode_info(data: bytes, name: str) -> JobInfo:
    """Read the bytes of a `job.json`; `name` is the file, for messages."""
    return decode_document("job", _FORMAT, data, name, JobInfo)


def _sealed(kind: str, info: JobInfo | AttemptInfo | JobProgram | Replays) -> bytes:
    return encode_document(kind, _FORMAT, info)
